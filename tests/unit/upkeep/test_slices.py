"""Slices: how much one transaction does depends on how long the earlier ones held the lock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mulligan import Store
from mulligan.engine import Engine
from mulligan.journal.kv_transaction import KvTransaction
from mulligan.model import ObjectKind
from mulligan.store import engine_of
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store
from mulligan.upkeep.fold import fold_session
from mulligan.upkeep.gc import PART_OBJECTS, SLICE_OBJECTS, collect
from mulligan.upkeep.policy import Policy, Rules
from mulligan.upkeep.prune import SLICE_CHECKPOINTS, Pruner
from mulligan.upkeep.slices import SliceSize

ITEM_SECONDS = 0.001
"""How long this disk takes for each item; so a slice has room for 15 of them."""


class Work:
    """Counts what transactions remove, and lets time pass for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
        self._patch = monkeypatch
        self._clock = clock
        self.slices: list[int] = []

    def count(self, name: str, items: Callable[[tuple[Any, ...]], int]) -> None:
        """Count the calls of a method, each by the items in its arguments."""
        method = getattr(KvTransaction, name)

        def counted(txn: KvTransaction, *arguments: Any) -> Any:
            done = items(arguments)
            self._clock.advance(done * ITEM_SECONDS)
            self.slices.append(done)
            return method(txn, *arguments)

        self._patch.setattr(KvTransaction, name, counted)


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    with open_store(tmp_path / "store", clock=clock) as opened:
        yield opened


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Work:
    return Work(monkeypatch, clock)


def assert_shrunk(slices: list[int], most: int, least: int) -> None:
    """The first slice was as large as allowed; the others became as small as the disk is slow."""
    assert slices[0] == most
    assert all(after <= before for before, after in itertools.pairwise(slices))
    assert min(slices[:-1]) == least


def test_removing_checkpoints(store: Store, work: Work) -> None:
    session = store.session("run")
    for _ in range(2 * SLICE_CHECKPOINTS):
        session.checkpoint("routine")
    work.count("prune", lambda arguments: len(arguments[1]))
    pruner = Pruner(engine_of(store), Policy(routine=Rules(keep_last=1)))
    assert pruner.apply(pruner.plan()) == 2 * SLICE_CHECKPOINTS - 1
    assert_shrunk(work.slices, SLICE_CHECKPOINTS, 16)


def test_folding(store: Store, work: Work) -> None:
    session = store.session("run")
    with session.batch():
        for number in range(2_000):
            session.state.set("memory/count", number)
    work.count("fold", lambda arguments: 512)
    engine = engine_of(store)
    with engine.read() as view:
        record = view.find("run")
    assert record is not None
    fold_session(engine, record, 1_900)
    with engine.read() as view:
        [fold] = view.folds(record.number)
    # 512 events at first, then 128 at a time.
    assert (fold.last, len(work.slices)) == (1_899, 1 + -(-(1_898 - 512) // 128))


def garbage(engine: Engine, count: int) -> None:
    with engine.pin():
        bundle = engine.bundle()
        for number in range(count):
            bundle.put(ObjectKind.VALUE, b"%d" % number)
        with engine.write(bundle):
            pass


def test_sweeping(store: Store, work: Work) -> None:
    garbage(engine_of(store), 2 * SLICE_OBJECTS)
    work.count("sweep", lambda arguments: len(arguments[0]))
    assert collect(engine_of(store)).removed == 2 * SLICE_OBJECTS
    # It looks at the time within a transaction, too.
    assert max(work.slices) == PART_OBJECTS
    assert min(work.slices[:-1]) == 16


def test_a_fast_disk_gets_large_slices_again(clock: FakeClock) -> None:
    @contextmanager
    def write(seconds: float) -> Iterator[Any]:
        yield None
        clock.advance(seconds)

    size = SliceSize(clock, 1_000, least=10)
    found = []
    for seconds in (0.0, 0.05, 0.4, 10.0, 0.001, 0.001, 0.016, 0.0):
        found.append(size.now)
        with size.transaction(write(seconds)):
            pass
    assert found == [1_000, 1_000, 300, 11, 10, 20, 40, 20]


def test_the_wait_for_the_lock_does_not_count(clock: FakeClock) -> None:
    @contextmanager
    def write() -> Iterator[Any]:
        clock.advance(100)
        yield None

    size = SliceSize(clock, 1_000)
    with size.transaction(write()):
        assert not size.is_over
    assert size.now == 1_000
