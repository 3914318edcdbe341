"""Pruning is killed at every named failpoint; what is kept restores, and the next run goes on."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from mulligan import Store, layout
from mulligan.clock import SystemClock
from mulligan.errors import UpkeepBusy
from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.model import Event
from mulligan.store import engine_of
from mulligan.testing.clock import FakeClock
from mulligan.testing.failpoints import FailpointCounter, kill_at
from mulligan.testing.stores import open_store
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.maintain import maintain
from mulligan.upkeep.retention.policy import Policy
from mulligan.upkeep.retention.prune import PRUNED, Pruner

STEPS = 12
POINTS = [
    point for point in Failpoint if point.name.startswith(("PRUNE_", "UPKEEP_", "FOLD_", "GC_"))
]


def content(number: int) -> bytes:
    return bytes([number]) * 30_000


def clock() -> FakeClock:
    """Return a clock that is two days ahead, so that there is something to fold."""
    return FakeClock(SystemClock().now() + timedelta(days=2))


@pytest.fixture
def place(tmp_path: Path, work: Path) -> Path:
    """A store of an earlier version, in which two sessions took a checkpoint after every step."""
    place = tmp_path / "store"
    with open_store(place) as store:
        sessions = [store.session("one", workspace=work), store.session("two")]
        for number in range(STEPS):
            (work / "file").write_bytes(content(number))
            for session in sessions:
                session.state.set("step", number)
                session.checkpoint("routine")
    layout.drop_feature(place / ".mulligan", layout.PINS)
    return place


def prune(place: Path, failpoint: FailpointHook) -> None:
    with open_store(place, clock=clock(), failpoint=failpoint) as store:
        maintain(engine_of(store), 60)


def killed(place: Path, point: Failpoint, nth: int) -> bool:
    """Prune in a child that dies at a failpoint; return whether it did."""
    child = os.fork()
    if not child:
        prune(place, kill_at(point, nth))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def kept(store: Store, name: str) -> list[int]:
    return [one.seq for one in store.session(name).checkpoints()]


def check(store: Store, work: Path) -> None:
    """Everything that the policy keeps is there, byte for byte."""
    assert store.verify(full=True).problems == ()
    session = store.session("one", workspace=work)
    for number, taken in zip((9, 10, 11), session.checkpoints()[-3:], strict=True):
        assert session.state.at(taken).get("step") == number
        assert session.files.read(taken, "file") == content(number)
    # What was removed has its event, and nothing else has.
    gone = STEPS - len(session.checkpoints())
    events = [engine_of(store).plain(e.payload) for e in events_of(store) if e.kind == PRUNED]
    assert sum(event["removed"] for event in events) == gone


def events_of(store: Store) -> list[Event]:
    engine = engine_of(store)
    with engine.read() as view:
        record = view.find("one")
        assert record is not None
        return list(view.remaining(record.number, 1, view.head(record.number).seq))


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_killed_while_pruning(place: Path, work: Path, point: Failpoint, nth: int) -> None:
    counter = FailpointCounter()
    is_killed = killed(place, point, nth)
    assert is_killed or nth > 1, f"{point} was not reached"
    with open_store(place) as store:
        check(store, work)
    prune(place, counter)
    with open_store(place) as store:
        check(store, work)
        assert len(kept(store, "one")) == len(kept(store, "two")) == 3


def test_a_prune_beside_a_prune_says_so(place: Path) -> None:
    with open_store(place) as one:
        engine = engine_of(one)
        reached: list[bool] = []

        def second() -> bool:
            reached.append(True)
            child = os.fork()
            if not child:
                status = 1
                with open_store(place) as other:
                    try:
                        with upkeep_lock(engine_of(other), wait=False):
                            pass
                    except UpkeepBusy:
                        status = 0
                os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            return True

        with upkeep_lock(engine, wait=False):
            Pruner(engine, Policy()).run(stop=second)
        assert reached
