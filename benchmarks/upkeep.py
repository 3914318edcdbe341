"""A store that runs for a year: retention, garbage collection, verify, and weeks of daily work.

restic and borg check the same content and thin the same history in the same run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks import harness, upkeep_child, upkeep_writer
from benchmarks.daily import DailyWork, WorkClock
from benchmarks.harness import Result, Row, Setting, Table, Target
from benchmarks.keepers import Borg, Keeper, MulliganScan, Restic
from benchmarks.live import live_bytes
from benchmarks.thinning import TimedBorg, TimedKeeper, TimedMulligan, TimedRestic
from benchmarks.timing import (
    MEGABYTE,
    MILLISECONDS,
    Spent,
    median,
    occupied,
    ratio,
    timed,
    timed_with_cpu,
)
from benchmarks.trees import generate, source_text

TARGETS = (
    Target("plan ms", "planning retention over 10,000 checkpoints", at_most=200, unit=" ms"),
    Target("apply s", "applying it", at_most=2, unit=" s"),
    Target("gc s", "a collection in 1 GB with 10 % garbage", at_most=10, unit=" s"),
    Target("gc MB", "its peak memory", at_most=200, unit=" MB"),
    Target("beside ×", "a checkpoint beside it", at_most=3, unit="×"),
    Target("writer added ms", "a writer's longest wait beside upkeep", at_most=50, unit=" ms more"),
    Target("lock ms", "of which for the write lock", at_most=50, unit=" ms"),
    Target("verify MB/s", "verify --full, stored bytes a core", at_least=500, unit=" MB/s"),
    Target("verify small MB/s", "the same, of 30,000 small files", at_least=500, unit=" MB/s"),
    Target("restic/verify", "restic check --read-data beside it", at_least=2, unit="×"),
    Target("borg/verify", "borg check --verify-data beside it", at_least=2, unit="×"),
    Target("store/live", "the store beside its live content, at most", at_most=1.5, unit="×"),
    Target("last/first", "the last 100 steps beside the first 100", at_most=1.2, unit="×"),
)

GARBAGE = 0.1
NOISE = 0.8
FILE_MEDIAN = 40_000

UPKEEP_SECONDS = 600.0
"""The time that upkeep has when it runs by itself."""

T = TypeVar("T")


def run(setting: Setting) -> Result:
    """Run all parts."""
    result = Result()
    _retention(setting, result)
    upkeep_writer.measure(setting, result)
    _one_gigabyte(setting, result)
    _small_files(setting, result)
    _daily_work(setting, result)
    _peers(setting, result)
    return result


def _retention(setting: Setting, result: Result) -> None:
    """Plan and apply the default policy in a store with many checkpoints."""
    from mulligan.store import engine_of
    from mulligan.testing.stores import open_store
    from mulligan.upkeep.lock import upkeep_lock
    from mulligan.upkeep.retention.policy import Policy
    from mulligan.upkeep.retention.prune import Pruner

    count = setting.choose(full=10_000, quick=1_000)
    clock, place = WorkClock(), setting.directory / "retention"
    with open_store(place, clock=clock) as store:
        session = store.session("main")
        for number in range(count):
            session.state.set("memory/step", number)
            session.checkpoint("routine")
            clock.skip(60)
    rows: list[Row] = []
    with open_store(place, clock=clock) as store, upkeep_lock(engine_of(store), wait=True):
        # In a new handle, which has read nothing yet.
        pruner = Pruner(engine_of(store), Policy())
        plan, spent = _spent(pruner.plan)
        result.measure("plan ms", spent.wall * MILLISECONDS)
        rows.append(_row(f"plan over {count:,} checkpoints", spent))
        removed, spent = _spent(lambda: pruner.apply(plan))
        result.measure("apply s", spent.wall)
        rows.append(_row(f"apply: {removed:,} checkpoints removed", spent))
        done, spent = _spent(pruner.run)
        rows.append(_row(f"then fold {done.events:,} events and give space back", spent))
    result.tables.append(Table("Retention", rows))


def _one_gigabyte(setting: Setting, result: Result) -> None:
    """Verify a store, collect its garbage, and take checkpoints beside that."""
    tree, place = setting.directory / "content", setting.directory / "content-stores"
    make_content(tree, setting.choose(full=1_150_000_000, quick=100_000_000))
    place.mkdir()
    kinds: tuple[type[Keeper], ...] = (MulliganScan, Restic, Borg)
    keepers = {kind: _made(kind, tree, place) for kind in kinds}
    _verify(keepers, result)
    ours = keepers[MulliganScan]
    assert isinstance(ours, MulliganScan)
    garbage = make_garbage(ours)
    size = occupied(ours.directory)
    alone, beside, cost = _collect_beside(ours, setting)
    result.measure("gc s", cost.spent.wall)
    result.measure("gc MB", cost.peak / MEGABYTE)
    result.measure("beside ×", ratio(median(beside), median(alone)))
    rows: list[Row] = [
        {
            "collection": f"{size / MEGABYTE:,.0f} MB, {garbage / size:.0%} of it garbage",
            "s": cost.spent.wall,
            "cpu s": cost.spent.cpu,
            "peak MB": cost.peak / MEGABYTE,
            "left MB": occupied(ours.directory) / MEGABYTE,
            "checkpoint alone ms": median(alone) * MILLISECONDS,
            "beside ms": median(beside) * MILLISECONDS,
            "slowest beside ms": max(beside) * MILLISECONDS,
        }
    ]
    ours.close()
    note = f"{len(beside)} checkpoints were taken by another process while it ran"
    result.tables.append(Table("Garbage collection", rows, [note]))


def make_content(root: Path, size: int) -> None:
    """Write files of so many bytes, most of which do not compress."""
    rng, text, left, number = random.Random(size), source_text(), size, 0
    while left > 0:
        length = min(left, 8 << 20, int(rng.lognormvariate(0, 1.5) * FILE_MEDIAN) + 1)
        place = root / f"d{number % 200}"
        place.mkdir(parents=True, exist_ok=True)
        noise = rng.randbytes(int(length * NOISE))
        start = rng.randrange(len(text) - (8 << 20)) if len(text) > 8 << 20 else 0
        (place / f"f{number}").write_bytes(noise + text[start : start + length - len(noise)])
        left, number = left - length, number + 1


def make_garbage(keeper: MulliganScan) -> int:
    """Change a part of the files, capture them, prune the earlier capture; return the garbage."""
    rng, garbage = random.Random(7), 0
    for path in sorted(keeper.tree.rglob("f*")):
        if rng.random() < GARBAGE:
            garbage += path.stat().st_size
            path.write_bytes(rng.randbytes(100))
    # A new directory makes the next tree a full one: a patch would keep all of its base.
    (keeper.tree / "changed").mkdir()
    keeper.capture()
    _prune_older(keeper)
    return garbage


def _prune_older(keeper: MulliganScan) -> None:
    from mulligan.store import engine_of
    from mulligan.upkeep.retention.policy import Policy, Rules
    from mulligan.upkeep.retention.prune import Pruner

    pruner = Pruner(engine_of(keeper.store), Policy(routine=Rules()))
    if pruner.apply(pruner.plan()) != 1:
        raise AssertionError("the earlier capture was not pruned")


def _collect_beside(
    keeper: MulliganScan, setting: Setting
) -> tuple[list[float], list[float], upkeep_child.Cost]:
    """Return how long checkpoints take alone and beside a collection, and what that needed."""
    work = setting.directory / "small"
    work.mkdir()
    session = keeper.store.session("small", workspace=work)

    def step(number: int) -> None:
        (work / f"f{number % 20}").write_text(f"{number}\n" * 500)
        session.checkpoint("routine")

    alone = [timed(step, number)[0] for number in range(100)]
    child = upkeep_child.start("collect", keeper.directory / "store")
    beside, number = [], 100
    while child.poll() is None:
        beside.append(timed(step, number)[0])
        number += 1
    return alone, beside, upkeep_child.cost_of(child)


def _verify(keepers: dict[type[Keeper], Keeper | None], result: Result) -> None:
    """Let everybody read what it stores."""
    rows: list[Row] = []
    ours: Spent | None = None
    for kind, keeper in keepers.items():
        if keeper is None:
            rows.append({"verify": kind.name, "s": "not installed"})
            continue
        spent, stored = _verified(keeper), occupied(keeper.directory)
        rows.append(
            {
                "verify": kind.name,
                "s": spent.wall,
                "cpu s": spent.cpu,
                "stored MB": stored / MEGABYTE,
                "MB/s a core": stored / MEGABYTE / spent.cpu,
                "MB/s": stored / MEGABYTE / spent.wall,
            }
        )
        if ours is None:
            ours = spent
            result.measure("verify MB/s", stored / MEGABYTE / spent.cpu)
        else:
            result.measure(f"{kind.name}/verify", ratio(spent.wall, ours.wall))
    result.tables.append(Table("Every byte read and checked", rows))


def _small_files(setting: Setting, result: Result) -> None:
    """Verify a store of small files, where the work is by object rather than by byte."""
    count = setting.choose(full=30_000, quick=5_000)
    place = setting.directory / "small-files"
    generate(place / "tree", count)
    keeper = MulliganScan(place / "tree", _new(place / "keeper"))
    keeper.capture()
    keeper.close()
    spent, stored = _verified(keeper), occupied(keeper.directory)
    result.measure("verify small MB/s", stored / MEGABYTE / spent.cpu)
    row: Row = {
        "verify": f"{count:,} small files",
        "s": spent.wall,
        "cpu s": spent.cpu,
        "stored MB": stored / MEGABYTE,
        "MB/s a core": stored / MEGABYTE / spent.cpu,
    }
    result.tables.append(Table("Every byte of small files", [row]))


def _verified(keeper: Keeper) -> Spent:
    if isinstance(keeper, MulliganScan):
        return upkeep_child.cost_of(upkeep_child.start("verify", keeper.directory / "store")).spent
    return timed_with_cpu(keeper.check)


def _daily_work(setting: Setting, result: Result) -> None:
    """Work for weeks under the default policy."""
    from mulligan.store import engine_of
    from mulligan.testing.stores import open_store
    from mulligan.upkeep.maintain import maintain

    steps = setting.choose(full=5_000, quick=600)
    clock, place = WorkClock(), setting.directory / "daily"
    work = DailyWork(setting.directory / "project", seed=11, steps=steps)
    taken: list[Spent] = []
    upkeep: list[Spent] = []
    worst = 0.0
    # Without the thread, for which a skipped night would be the end of its time.
    with open_store(place, clock=clock) as store:
        session = store.session("main", workspace=work.root)
        session.internal.watch()
        for step in range(steps):
            taken.append(work.step(step, session))
            work.skip_to_next(step, clock)
            # What a thread does after a checkpoint; here, so that no step is beside it.
            upkeep.append(timed_with_cpu(maintain, engine_of(store), UPKEEP_SECONDS))
            if step % 100 == 99:
                live = live_bytes(engine_of(store), setting.directory)
                worst = max(worst, occupied(place) / live)
        kept = len(session.checkpoints())
    first, last = _median(taken[:100]), _median(taken[-100:])
    result.measure("store/live", worst)
    result.measure("last/first", last.wall / first.wall)
    rows: list[Row] = [
        {
            "daily work": f"{steps:,} steps",
            "first 100 ms": first.wall * MILLISECONDS,
            "last 100 ms": last.wall * MILLISECONDS,
            "cpu last/first": last.cpu / first.cpu,
            "store MB": occupied(place) / MEGABYTE,
            "live MB": live / MEGABYTE,
            "× live, at most": worst,
            "checkpoints": kept,
            "upkeep cpu ms a step": sum(s.cpu for s in upkeep) / steps * MILLISECONDS,
            "longest upkeep ms": max(s.wall for s in upkeep) * MILLISECONDS,
        }
    ]
    notes = [
        "a step: 1 or 2 messages of 1 KB, files edited, built or installed, one checkpoint",
        "live: what is reachable, stored anew in one go, and the journal without free pages",
        "upkeep runs every ten minutes of work, which is every fifth step here",
    ]
    result.tables.append(Table("Daily work", rows, notes))


def _peers(setting: Setting, result: Result) -> None:
    """Capture the same moments of daily work, and thin them by the same rules."""
    steps, captures = setting.choose(5_000, 600), setting.choose(100, 20)
    place = setting.directory / "peers"
    work = DailyWork(place / "project", seed=11, steps=steps)
    clock = WorkClock()
    kinds: tuple[type[TimedKeeper], ...] = (TimedMulligan, TimedRestic, TimedBorg)
    keepers = [kind(work.root, _new(place / kind.name)) for kind in kinds if kind.is_installed()]
    for step in range(steps):
        work.act()
        work.skip_to_next(step, clock)
        if step % (steps // captures) == 0:
            for keeper in keepers:
                keeper.capture_at(clock.now())
    rows = [_thin(keeper) for keeper in keepers]
    rows += [{"thin": k.name, "s": "not installed"} for k in kinds if not k.is_installed()]
    title = f"{captures} captures of the same work, thinned by the same rules"
    notes = ["keep the last 3, 24 hours and 7 days; restic forget --prune, borg prune and compact"]
    result.tables.append(Table(title, rows, notes))


def _thin(keeper: TimedKeeper) -> Row:
    before = occupied(keeper.directory)
    spent = timed_with_cpu(keeper.thin)
    keeper.close()
    return {
        "thin": keeper.name,
        "s": spent.wall,
        "cpu s": spent.cpu,
        "MB before": before / MEGABYTE,
        "MB after": occupied(keeper.directory) / MEGABYTE,
    }


def _made(kind: type[Keeper], tree: Path, place: Path) -> Keeper | None:
    """Return a keeper that has captured the tree; None if it is not installed."""
    if not kind.is_installed():
        return None
    keeper = kind(tree, _new(place / kind.name))
    keeper.capture()
    return keeper


def _new(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


def _spent(call: Callable[[], T]) -> tuple[T, Spent]:
    found: list[T] = []
    spent = timed_with_cpu(lambda: found.append(call()))
    return found[0], spent


def _median(taken: Sequence[Spent]) -> Spent:
    return Spent(median([one.wall for one in taken]), median([one.cpu for one in taken]))


def _row(what: str, spent: Spent) -> Row:
    return {"retention": what, "ms": spent.wall * MILLISECONDS, "cpu ms": spent.cpu * MILLISECONDS}


BENCHMARK = harness.Benchmark("upkeep", "A store that runs for a year", TARGETS, run)

if __name__ == "__main__":
    raise SystemExit(harness.main(BENCHMARK))
