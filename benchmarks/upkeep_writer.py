"""How long a writer waits beside upkeep in another process, and beside nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import upkeep_child
from benchmarks.harness import Result, Row, Setting, Table
from benchmarks.timing import MILLISECONDS, median, percentile, timed

if TYPE_CHECKING:
    from mulligan import Session, Store

FILE_BYTES = 20_000

ROUNDS = 3
"""How often it is measured; the longest wait of a single run is mostly that of the disk."""


def measure(setting: Setting, result: Result) -> None:
    """Append and take checkpoints beside prune, fold, collection and compaction, and alone."""
    rows: list[Row] = []
    added, locked = list[float](), list[float]()
    for number in range(ROUNDS):
        found = _round(setting, setting.directory / f"writer{number}", random.Random(number))
        rows.append(found.row())
        added.append(max(found.beside) - max(found.alone))
        locked.append(max(found.locked))
    result.measure("writer added ms", median(added) * MILLISECONDS)
    result.measure("lock ms", median(locked) * MILLISECONDS)
    notes = [
        "each wait is that of one append or one checkpoint; alone: the same writer, as many waits",
        "lock: the longest wait for the write lock alone; the rest is the disk, which both sync to",
        "held: the longest that one transaction of upkeep held that lock, its sync included",
        "the journal is not compacted while the writer has it open",
    ]
    result.tables.append(Table("A writer beside prune, fold and collection", rows, notes))


class _Waits(NamedTuple):
    """What a writer waited for, in seconds, and the longest that upkeep held the write lock."""

    alone: list[float]
    beside: list[float]
    locked: list[float]
    held: float

    def row(self) -> Row:
        return {
            "writer": f"{len(self.beside):,} waits",
            "median alone ms": median(self.alone) * MILLISECONDS,
            "median beside ms": median(self.beside) * MILLISECONDS,
            "99 % alone ms": percentile(self.alone, 99) * MILLISECONDS,
            "99 % beside ms": percentile(self.beside, 99) * MILLISECONDS,
            "longest alone ms": max(self.alone) * MILLISECONDS,
            "longest beside ms": max(self.beside) * MILLISECONDS,
            "lock ms": max(self.locked) * MILLISECONDS,
            "held ms": self.held * MILLISECONDS,
        }


def _round(setting: Setting, place: Path, rng: random.Random) -> _Waits:
    import mulligan

    work, store = place / "work", place / "store"
    work.mkdir(parents=True)
    with mulligan.open(store) as opened:
        writer = _steps(opened.session("old", workspace=work), work, rng)
        for _ in range(2 * setting.choose(full=1_000, quick=300)):
            next(writer)()
        mine = place / "mine"
        mine.mkdir()
        writer = _steps(opened.session("new", workspace=mine), mine, rng)
        child = upkeep_child.start("prune", store)
        beside, locked = list[float](), list[float]()
        while child.poll() is None:
            beside.append(timed(next(writer))[0])
            locked.append(timed(_lock, opened)[0])
        held = upkeep_child.cost_of(child).longest_hold
        alone = [timed(next(writer))[0] for _ in beside]
    return _Waits(alone, beside, locked, held)


def _lock(store: Store) -> None:
    """Get the write lock and release it; a transaction without changes syncs nothing."""
    from mulligan.store import engine_of

    with engine_of(store).write():
        pass


def _steps(session: Session, work: Path, rng: random.Random) -> Iterator[Callable[[], object]]:
    """Yield calls without end: an append, a checkpoint of a changed file, an append, …"""
    number = 0
    while True:
        number += 1
        text = f"{number} {rng.random()}"
        yield lambda text=text: session.state.append("conversation", {"text": text})  # type: ignore[misc]
        (work / f"f{number % 50}").write_bytes(rng.randbytes(FILE_BYTES))
        yield lambda: session.checkpoint("routine")
