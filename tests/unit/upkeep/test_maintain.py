"""Upkeep by itself: when it runs, where, and that its errors do not affect other work."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import mulligan
from mulligan import Store
from mulligan.errors import DiskFull, ReadOnlyStore, UpkeepBusy
from mulligan.failpoints import Failpoint
from mulligan.store import engine_of
from mulligan.testing.clock import FakeClock
from mulligan.testing.failpoints import fail_at
from mulligan.testing.stores import open_store
from mulligan.upkeep import background
from mulligan.upkeep.background import SETTLED_SECONDS, Maintenance
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.maintain import maintain
from mulligan.upkeep.record import INTERVAL_SECONDS, next_due, read_record


@pytest.fixture
def timed(tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    """A store whose clock moves only when it is told to, with checkpoints to remove."""
    with open_store(tmp_path / "store", clock=clock, upkeep=True) as opened:
        session = opened.session("run")
        for _ in range(8):
            session.checkpoint("routine")
        yield opened


def count(store: Store) -> int:
    return len(store.session("run").checkpoints())


def test_it_prunes_when_it_is_due(timed: Store, clock: FakeClock) -> None:
    engine = engine_of(timed)
    done = maintain(engine, 10)
    assert done is not None
    assert (done.removed, count(timed)) == (5, 3)
    record = read_record(engine)
    assert record is not None
    assert (record.removed, record.error) == (5, None)
    due = next_due(engine)
    assert due is not None
    assert due - record.at == timedelta(seconds=INTERVAL_SECONDS)
    assert maintain(engine, 10) is None
    clock.advance(INTERVAL_SECONDS + 1)
    assert next_due(engine) is None
    assert maintain(engine, 10) is not None


def test_a_record_from_the_future_does_not_stop_it(timed: Store, clock: FakeClock) -> None:
    clock.advance(10 * 365 * 24 * 3600)
    maintain(engine_of(timed), 10)
    clock.set(clock.now() - timedelta(days=3650))
    assert next_due(engine_of(timed)) is None


def test_one_process_at_a_time(timed: Store) -> None:
    engine = engine_of(timed)
    assert engine.directory is not None
    with (engine.directory / "locks" / "upkeep").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert maintain(engine, 10) is None
        with pytest.raises(UpkeepBusy), upkeep_lock(engine, wait=False):
            pass
    assert count(timed) == 8
    assert maintain(engine, 10) is not None


def test_an_error_is_recorded_and_not_raised(timed: Store) -> None:
    engine = engine_of(timed)
    assert engine.directory is not None
    (engine.directory / "config.toml").write_text("[retention]\nkeep_lats = 3\n")
    assert maintain(engine, 10) is None
    record = read_record(engine)
    assert record is not None
    assert "keep_lats" in (record.error or "")
    assert count(timed) == 8


def test_a_full_disk_is_recorded_and_costs_nothing(tmp_path: Path) -> None:
    hook = fail_at(Failpoint.PRUNE_REMOVED, DiskFull("There is no space left."))
    with open_store(tmp_path / "store", failpoint=hook) as store:
        session = store.session("run")
        for _ in range(8):
            session.checkpoint("routine")
        assert maintain(engine_of(store), 10) is None
        record = read_record(engine_of(store))
        assert record is not None
        assert "no space left" in (record.error or "")
        assert count(store) == 8
        assert store.verify().problems == ()


def test_a_budget_that_is_used_up_ends_it(timed: Store, clock: FakeClock) -> None:
    done = maintain(engine_of(timed), 0)
    assert done is not None
    assert (done.removed, done.stopped, count(timed)) == (0, True, 8)
    record = read_record(engine_of(timed))
    assert record is not None
    assert record.stopped


def test_a_damaged_record_is_none(timed: Store) -> None:
    engine = engine_of(timed)
    assert engine.directory is not None
    (engine.directory / "tmp" / "upkeep").write_bytes(b"{")
    assert read_record(engine) is None
    assert maintain(engine, 10) is not None


def test_a_process_that_has_been_up_for_a_while_does_it_in_a_thread(
    timed: Store, clock: FakeClock
) -> None:
    session = timed.session("run")
    upkeep = engine_of(timed).upkeep
    assert isinstance(upkeep, Maintenance)
    session.checkpoint("routine")
    assert upkeep._thread is None
    clock.advance(SETTLED_SECONDS + 1)
    session.checkpoint("routine")
    assert upkeep._thread is not None
    upkeep._thread.join()
    assert count(timed) == 3
    first = upkeep._thread
    session.checkpoint("routine")
    assert upkeep._thread is first


def test_closing_ends_the_thread(
    timed: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "CLOSE_SECONDS", 60.0)
    engine = engine_of(timed)
    upkeep = engine.upkeep
    assert isinstance(upkeep, Maintenance)
    clock.advance(SETTLED_SECONDS + 1)
    with engine.pin():  # the collection waits for this operation to end
        timed.session("run").checkpoint("routine")
        assert upkeep._thread is not None
        assert upkeep._thread.daemon
        upkeep.close()
    assert not upkeep._thread.is_alive()


def test_a_store_without_upkeep(tmp_path: Path) -> None:
    with open_store("memory:") as store:
        store.maintain()
    assert engine_of(store).upkeep is None


def test_maintain_of_a_store(timed: Store) -> None:
    timed.maintain(10)
    assert count(timed) == 3


def test_a_fork_of_the_process_starts_no_thread(timed: Store, clock: FakeClock) -> None:
    clock.advance(SETTLED_SECONDS + 1)
    upkeep = engine_of(timed).upkeep
    assert isinstance(upkeep, Maintenance)
    upkeep._pid = os.getpid() + 1
    upkeep.work_done()
    assert upkeep._thread is None


def test_a_checkpoint_while_the_program_exits_starts_no_thread(
    timed: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    clock.advance(SETTLED_SECONDS + 1)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    taken = timed.session("run").checkpoint("routine")
    assert timed.session("run").checkpoints.at(taken.id) == taken
    timed.close()


def test_a_store_that_is_open_for_reading_is_not_looked_after(tmp_path: Path) -> None:
    mulligan.open(tmp_path).close()
    with (
        mulligan.open(tmp_path, read_only=True) as store,
        pytest.raises(ReadOnlyStore, match="opened for reading"),
        upkeep_lock(engine_of(store), wait=False),
    ):
        raise AssertionError


def test_a_store_is_closed_by_garbage_that_its_upkeep_collects(
    timed: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    upkeep, failed = Maintenance(engine_of(timed)), list[BaseException]()
    is_started = threading.Event()

    def run(_: Maintenance) -> None:
        is_started.wait()
        try:
            upkeep.close()
        except RuntimeError as error:
            failed.append(error)

    monkeypatch.setattr(Maintenance, "_run", run)
    clock.advance(SETTLED_SECONDS)
    upkeep.work_done()
    is_started.set()
    assert upkeep._thread is not None
    upkeep._thread.join()
    assert failed == []
