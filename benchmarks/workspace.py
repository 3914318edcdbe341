"""Files: the first capture, steps, restores, rollbacks, and what is kept.

Three trees of files, and in each the steps of an agent: three files edited, one added, one
deleted. Everybody looks at the same tree. Steps are taken in two ways: in turns, where each keeper
finds the caches of the processor full of what the others did, and several in a row, as an agent
takes them that has one keeper. The targets are for the second.

Nothing is deleted before the end: a filesystem may be slow for a minute where many files were
deleted (ext4 does not give their inodes away again), which would be charged to whoever comes next.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import WORKPLACE, Result, Row, Setting, Table, Target
from benchmarks.keepers import (
    PEERS,
    Borg,
    Keeper,
    MulliganScan,
    MulliganWatch,
    Restic,
    ShadowGit,
    TarZstd,
    peak_in_child,
)
from benchmarks.timing import (
    MEGABYTE,
    MILLISECONDS,
    Spent,
    disk_usage,
    median,
    ratio,
    timed,
    timed_with_cpu,
)
from benchmarks.trees import Steps, count_files, tree_copy


@dataclass(frozen=True, slots=True)
class Size:
    """A tree, and how often each thing is measured in it."""

    files: int
    captures: int
    restores: int
    turns: int
    rows: int
    rollbacks: int


SMALL, MIDDLE, LARGE = SIZES = (
    Size(2_000, captures=5, restores=5, turns=50, rows=6, rollbacks=21),
    Size(20_000, captures=3, restores=3, turns=12, rows=6, rollbacks=21),
    Size(100_000, captures=3, restores=3, turns=5, rows=6, rollbacks=21),
)
QUICK = Size(2_000, captures=3, restores=3, turns=10, rows=2, rollbacks=11)

IN_A_ROW = 5
"""How many steps one keeper is asked for before it is another's turn."""

BIG_FILE = 1 << 30


def _targets(size: Size) -> Iterator[Target]:
    n, full = size.files, size is not SMALL
    checkout = 1.5 if size is SMALL else 2.5
    promises: tuple[tuple[str, str, float | None, float | None, str], ...] = (
        ("watch ms", "a step with the watcher", 4.0, None, " ms"),
        ("rollback ms", "a rollback with the watcher", 12.0, None, " ms"),
        ("git/scan", "shadow git beside a step with a scan", None, 1.7, "×"),
        ("git/first", "shadow git beside a first capture", None, 4.0, "×"),
        ("restic/first", "restic beside a first capture", None, 2.5, "×"),
        ("borg/first", "borg beside a first capture", None, 2.5, "×"),
        ("git/restore", "git checkout-index beside a restore", None, checkout, "×"),
        ("restic/restore", "restic beside a restore", None, 3.0, "×"),
    )
    for measure, promise, at_most, at_least, unit in promises:
        name, text = f"{measure} {n}", f"{promise}, {n:,} files"
        yield Target(name, text, at_most, at_least, unit, full_only=full)


TARGETS = (
    *chain.from_iterable(_targets(size) for size in SIZES),
    Target(
        "watch growth",
        "a step with the watcher, 100,000 files beside 2,000",
        1.5,
        None,
        "×",
        full_only=True,
    ),
    Target("git/watch 2000", "shadow git beside the watcher, 2,000 files", None, 5.0, "×"),
    Target(
        "git/watch 100000",
        "shadow git beside the watcher, 100,000 files",
        None,
        100.0,
        "×",
        full_only=True,
    ),
    Target("store/restic", "the store beside restic's after all steps", 1.0, None, "×"),
    Target("store/git", "the store beside shadow git's after all steps", 1.0, None, "×"),
    Target("peak MB", "the peak memory in the largest tree", 300.0, None, " MB"),
    Target("big file MB", "1 KB changed in a file of 1 GB", 4.0, None, " MB"),
)

OURS: tuple[type[Keeper], ...] = (MulliganScan, MulliganWatch)
FIRST: tuple[type[Keeper], ...] = (MulliganScan, *PEERS, TarZstd)
"""Who captures a tree for the first time; what the watcher does there is a scan, too."""
STEPPING: tuple[type[Keeper], ...] = (*OURS, *PEERS)
IN_ROWS: tuple[type[Keeper], ...] = (*OURS, ShadowGit)
"""Whose steps are compared; those of the others take seconds."""
ALL: tuple[type[Keeper], ...] = (*OURS, *PEERS, TarZstd)


@dataclass(slots=True)
class Figures:
    """What one keeper needed in one tree."""

    first: list[Spent] = field(default_factory=list)
    restore: list[Spent] = field(default_factory=list)
    turn: list[Spent] = field(default_factory=list)
    step: list[Spent] = field(default_factory=list)
    rollback: list[Spent] = field(default_factory=list)
    store: int | None = None


@dataclass(slots=True)
class Field:
    """One tree with everybody who keeps it."""

    size: Size
    tree: Path
    directory: Path
    figures: dict[str, Figures] = field(default_factory=dict)
    keepers: dict[str, Keeper] = field(default_factory=dict)

    def of(self, kind: type[Keeper]) -> Figures:
        """The figures of one keeper."""
        return self.figures.setdefault(kind.name, Figures())

    def present(self, kinds: Sequence[type[Keeper]], turn: int) -> list[type[Keeper]]:
        """Those that are installed; who begins rotates, so nobody always follows the same one."""
        installed = [kind for kind in kinds if kind.is_installed()]
        first = turn % len(installed)
        return [*installed[first:], *installed[:first]]

    def place(self, kind: type[Keeper], what: str) -> Path:
        """A place where nothing is yet."""
        taken = sum(1 for _ in self.directory.iterdir())
        return self.directory / f"{kind.__name__}-{what}-{taken}"


def run(setting: Setting) -> Result:
    """Every size in turn, then the file that is large by itself."""
    result = Result()
    sizes = (QUICK,) if setting.quick else SIZES
    _warm_up(setting.directory / "warm-up")
    fields = [_measure(setting, size) for size in sizes]
    peaks = peak_in_child(fields[-1].tree, setting.directory / "peak")
    big = setting.choose(full=BIG_FILE, quick=BIG_FILE // 16)
    added, seconds = _big_file(setting.directory / "big", big)
    for one in fields:
        result.tables.append(_table(one))
        result.measures |= _measures(one)
    result.tables.append(_other(sizes[-1], peaks, big, added, seconds))
    watched = [median_wall(one.of(MulliganWatch).step) for one in (fields[0], fields[-1])]
    result.measure("watch growth", ratio(watched[1], watched[0]))
    result.measure("peak MB", max(peaks.values()) / MEGABYTE)
    result.measure("big file MB", added / MEGABYTE)
    for peer, kind in (("restic", Restic), ("git", ShadowGit)):
        ours, theirs = fields[0].of(MulliganScan).store, fields[0].of(kind).store
        result.measure(f"store/{peer}", ratio(ours, theirs))
    return result


def _warm_up(directory: Path) -> None:
    """Capture and restore once for nothing, so that no import is charged to the first tree."""
    tree = directory / "tree"
    tree.mkdir(parents=True)
    (tree / "file").write_bytes(b"1")
    keeper = MulliganWatch(tree, directory)
    keeper.capture()
    (tree / "file").unlink()
    keeper.rollback()
    keeper.close()


def _measure(setting: Setting, size: Size) -> Field:
    directory = setting.directory / f"{size.files}"
    directory.mkdir()
    tree = tree_copy(size.files, WORKPLACE, directory / "tree")
    one = Field(size, tree, directory)
    _first_captures(one)
    _restores(one)
    agent = Steps(tree)
    _turns(one, agent)
    _rows(one, agent)
    _rollbacks(one, agent)
    for keeper in one.keepers.values():
        keeper.close()
    return one


def _first_captures(one: Field) -> None:
    """Each into a new store; the last ones are kept and stepped in."""
    for turn in range(one.size.captures):
        for kind in one.present(FIRST, turn):
            if kind.name in one.keepers:
                one.keepers.pop(kind.name).close()
            place = one.place(kind, "store")
            place.mkdir()
            keeper = one.keepers[kind.name] = kind(one.tree, place)
            one.of(kind).first.append(timed_with_cpu(keeper.capture))


def _restores(one: Field) -> None:
    found = count_files(one.tree)
    for turn in range(one.size.restores):
        for kind in one.present(FIRST, turn):
            to = one.place(kind, "copy")
            one.of(kind).restore.append(timed_with_cpu(one.keepers[kind.name].restore, to))
            if count_files(to) != found:
                raise AssertionError(f"{kind.name} did not restore the files it was given")


def _turns(one: Field, agent: Steps) -> None:
    """Everybody captures every step, so all have stored the same when their sizes are taken."""
    place = one.place(MulliganWatch, "store")
    place.mkdir()
    watch = one.keepers[MulliganWatch.name] = MulliganWatch(one.tree, place)
    watch.capture()
    for turn in range(one.size.turns):
        agent.take()
        for kind in one.present(STEPPING, turn):
            one.of(kind).turn.append(timed_with_cpu(one.keepers[kind.name].capture))
    for kind in one.present(STEPPING, 0):
        one.of(kind).store = disk_usage(one.keepers[kind.name].directory)


def _rows(one: Field, agent: Steps) -> None:
    """Several steps of one keeper after the other; it catches up with the others' steps before."""
    for row in range(one.size.rows):
        for kind in one.present(IN_ROWS, row):
            capture = one.keepers[kind.name].capture
            capture()
            for _ in range(IN_A_ROW):
                agent.take()
                one.of(kind).step.append(timed_with_cpu(capture))


def _rollbacks(one: Field, agent: Steps) -> None:
    for kind in OURS:
        keeper = one.keepers[kind.name]
        assert isinstance(keeper, MulliganScan)
        for _ in range(one.size.rollbacks):
            keeper.capture()
            agent.take()
            one.of(kind).rollback.append(timed_with_cpu(keeper.rollback))
            agent.forget()


def _big_file(directory: Path, size: int) -> tuple[int, Sequence[float]]:
    """The bytes that 1 KB changed in the middle of a large file adds, and the seconds of both."""
    tree = directory / "tree"
    tree.mkdir(parents=True)
    source, piece = random.Random(7), 1 << 24
    with (tree / "big").open("wb") as file:
        for _ in range(size // piece):
            file.write(source.randbytes(piece))
    keeper = MulliganScan(tree, directory)
    first, _ = timed(keeper.capture)
    before = disk_usage(directory / "store")
    with (tree / "big").open("r+b") as file:
        file.seek(size // 2)
        file.write(source.randbytes(1024))
    again, _ = timed(keeper.capture)
    keeper.close()
    return disk_usage(directory / "store") - before, (first, again)


def median_wall(spent: Sequence[Spent]) -> float | None:
    """The median second on the clock, if anything was measured."""
    return median([one.wall for one in spent]) if spent else None


def median_cpu(spent: Sequence[Spent]) -> float | None:
    """The median second of processors, if anything was measured."""
    return median([one.cpu for one in spent]) if spent else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * MILLISECONDS


def _table(one: Field) -> Table:
    rows = [_row(kind, one.figures.get(kind.name)) for kind in ALL]
    return Table(f"{one.size.files:,} files", rows, _notes(one))


def _row(kind: type[Keeper], figures: Figures | None) -> Row:
    if figures is None:
        return {"keeper": kind.name, "first s": "not installed"}
    return {
        "keeper": kind.name,
        "first s": median_wall(figures.first),
        "cpu s": median_cpu(figures.first),
        "restore s": median_wall(figures.restore),
        "its cpu s": median_cpu(figures.restore),
        "step ms": _ms(median_wall(figures.step)),
        "its cpu ms": _ms(median_cpu(figures.step)),
        "in turns ms": _ms(median_wall(figures.turn)),
        "rollback ms": _ms(median_wall(figures.rollback)),
        "store MB": None if figures.store is None else figures.store / MEGABYTE,
    }


def _measures(one: Field) -> dict[str, float]:
    n, result = one.size.files, Result()
    ours, watch, git = one.of(MulliganScan), one.of(MulliganWatch), one.of(ShadowGit)
    result.measure(f"watch ms {n}", _ms(median_wall(watch.step)))
    result.measure(f"rollback ms {n}", _ms(median_wall(watch.rollback)))
    result.measure(f"git/scan {n}", _beside(git.step, ours.step))
    result.measure(f"git/watch {n}", _beside(git.step, watch.step))
    for peer, kind in (("git", ShadowGit), ("restic", Restic), ("borg", Borg)):
        theirs = one.of(kind)
        result.measure(f"{peer}/first {n}", _beside(theirs.first, ours.first))
        result.measure(f"{peer}/restore {n}", _beside(theirs.restore, ours.restore))
    return result.measures


def _beside(theirs: Sequence[Spent], ours: Sequence[Spent]) -> float | None:
    return ratio(median_wall(theirs), median_wall(ours))


def _other(
    size: Size, peaks: dict[str, int], big: int, added: int, seconds: Sequence[float]
) -> Table:
    rows: list[Row] = [
        {"what": f"peak memory, {size.files:,} files captured", "MB": peaks["captured"] / MEGABYTE},
        {"what": "peak memory, and then restored", "MB": peaks["restored"] / MEGABYTE},
        {"what": f"a file of {big >> 20:,} MiB", "MB": big / MEGABYTE, "s": seconds[0]},
        {"what": "1 KB changed in its middle adds", "MB": added / MEGABYTE, "s": seconds[1]},
    ]
    return Table("memory, and a large file", rows)


def _notes(one: Field) -> list[str]:
    size = one.size
    return [
        f"medians of {size.captures} first captures, {size.restores} restores into an empty"
        f" directory, {size.rows * IN_A_ROW} steps in rows of {IN_A_ROW}, {size.turns} steps in"
        f" turns with all others, {size.rollbacks} rollbacks; cpu: of all processors",
        "a rollback brings the files of a step back in place, with a safety checkpoint before and"
        " a verification after",
        f"store: after the {size.turns} turns; restic and borg keep caches beside, not counted",
    ]


BENCHMARK = harness.Benchmark("workspace", "Files", TARGETS, run)

if __name__ == "__main__":
    raise SystemExit(harness.main(BENCHMARK))
