"""Slices: how much one transaction does depends on how long the earlier ones held the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from mulligan.upkeep.retention.policy import Policy, Rules
from mulligan.upkeep.retention.prune import SLICE_CHECKPOINTS, Pruner
from mulligan.upkeep.slices import AIM_SECONDS, PART_ITEMS, SliceSize
from mulligan.upkeep.space.fold import fold_session
from mulligan.upkeep.space.gc import SLICE_OBJECTS, collect

ITEM_SECONDS = 0.001
"""How long this disk takes for each item; so a slice has room for 10 of them."""


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


def assert_within_budget(slices: list[int], least: int) -> None:
    """Once it is known how slow the disk is, no slice does more than the time allows."""
    assert max(slices) <= PART_ITEMS
    assert min(slices[:-1]) == least


def test_removing_checkpoints(store: Store, work: Work) -> None:
    session = store.session("run")
    for _ in range(2 * SLICE_CHECKPOINTS):
        session.checkpoint("routine")
    work.count("prune", lambda arguments: len(arguments[1]))
    pruner = Pruner(engine_of(store), Policy(routine=Rules(keep_last=1)))
    assert pruner.apply(pruner.plan()) == 2 * SLICE_CHECKPOINTS - 1
    assert_within_budget(work.slices, 16)


def test_a_slice_ends_when_its_time_is_used(store: Store, clock: FakeClock) -> None:
    """The processor may be taken away inside of a transaction: the rest waits for the next one."""
    session = store.session("run")
    for _ in range(2 * SLICE_CHECKPOINTS):
        session.checkpoint("routine")
    pruner = Pruner(engine_of(store), Policy(routine=Rules(keep_last=1)))
    pruner._slice.now = SLICE_CHECKPOINTS
    prune, calls = KvTransaction.prune, list[int]()

    def slow(txn: KvTransaction, number: int, seqs: list[int]) -> None:
        clock.advance(AIM_SECONDS if len(calls) == 1 else 0.0)
        calls.append(len(seqs))
        prune(txn, number, seqs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KvTransaction, "prune", slow)
        assert pruner.apply(pruner.plan()) == 2 * SLICE_CHECKPOINTS - 1
    removed = [
        event.payload["removed"] for event in session.events() if event.kind == "upkeep.pruned"
    ]
    # Two parts of the first slice, then the time was over. What it did is on the timeline.
    assert calls[:3] == [PART_ITEMS] * 3
    assert removed[0] == 2 * PART_ITEMS
    assert sum(removed) == 2 * SLICE_CHECKPOINTS - 1
    assert store.verify(full=True).problems == ()


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
    assert_within_budget(work.slices, 16)


class Write:
    """A transaction that waits for the lock, and then holds it."""

    def __init__(self, clock: FakeClock, *, wait: float = 0.0, hold: float = 0.0) -> None:
        self._clock = clock
        self._wait, self._hold = wait, hold
        self.locked_at = 0.0

    def __enter__(self) -> Any:
        self._clock.advance(self._wait)
        self.locked_at = self._clock.monotonic()

    def __exit__(self, *error: object) -> None:
        self._clock.advance(self._hold)


def test_a_fast_disk_gets_large_slices_again(clock: FakeClock) -> None:
    size = SliceSize(clock, 1_000, least=10)
    found = []
    for seconds in (0.0, 0.0, 0.0, 0.04, 0.4, 10.0, 0.001, 0.001, 0.019, 0.0):
        found.append(size.now)
        with size.transaction(Write(clock, hold=seconds)):
            pass
    assert found == [125, 250, 500, 1_000, 250, 10, 10, 20, 40, 21]


def test_the_wait_for_the_lock_does_not_count(clock: FakeClock) -> None:
    size = SliceSize(clock, 1_000)
    with size.transaction(Write(clock, wait=100)):
        assert len(list(size.parts(range(200)))) == 4
    assert size.now == 250
    assert size.longest == 0.0


def test_the_longest_hold_is_known(clock: FakeClock) -> None:
    size = SliceSize(clock, 1_000)
    for seconds in (0.01, 0.25, 0.02):
        with size.single(Write(clock, wait=3, hold=seconds)):
            pass
    assert size.longest == pytest.approx(0.25)
    assert size.now == 125  # they are no slices


def test_others_get_the_lock_between_two_slices(clock: FakeClock) -> None:
    size = SliceSize(clock, 1_000)
    before = clock.monotonic()
    with size.transaction(Write(clock, hold=0.02)):
        pass
    assert clock.monotonic() - before == pytest.approx(0.03)


def test_a_prune_says_how_long_writers_waited(store: Store, clock: FakeClock) -> None:
    session = store.session("run")
    for _ in range(40):
        session.checkpoint("routine")
    sweep = KvTransaction.sweep

    def slow(txn: KvTransaction, digests: Any) -> int:
        clock.advance(0.3)
        return sweep(txn, digests)

    garbage(engine_of(store), 10)
    pruner = Pruner(engine_of(store), Policy(routine=Rules(keep_last=1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KvTransaction, "sweep", slow)
        pruned = pruner.run()
    assert pruned.removed == 39
    assert pruned.longest_hold == pytest.approx(0.3)
