"""Watching: what is interrupted is brought back, at the pace of the ladder, and said once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import pytest

from mulligan import Store
from mulligan.document.fold import event_change
from mulligan.errors import RecoveryStopped
from mulligan.recovery.plan import attempts, plan_rung
from mulligan.recovery.resume import _begin as begin
from mulligan.recovery.resume import open_session, resume, settle
from mulligan.recovery.watch import Notice, RecoveryWatch
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store
from tests.unit.recovery.dead import control, dead, team


@dataclass
class Helper:
    """Stands for a process that brings a session back."""

    pid: int = 7
    status: int | None = None

    def poll(self) -> int | None:
        return self.status


@pytest.fixture
def store(clock: FakeClock) -> Store:
    return open_store("memory:", clock=clock)


def test_an_interrupted_session_is_brought_back_once(store: Store) -> None:
    started: list[str] = []
    helper = Helper()

    def start(name: str, rung: str) -> Helper:
        started.append(name)
        return helper

    watcher = RecoveryWatch(store, start)
    assert watcher.look() == []
    team(store, "coder")
    [notice] = watcher.look()
    assert (notice.session, notice.what, notice.rung) == ("run", "started", "retry")
    assert watcher.look() == []
    assert started == ["run"]


def test_a_helper_that_dies_at_once_is_not_started_over_and_over(
    store: Store, clock: FakeClock
) -> None:
    started: list[str] = []

    def start(name: str, rung: str) -> Helper:
        started.append(name)
        return Helper(status=1)

    team(store, "coder")
    watcher = RecoveryWatch(store, start)
    looks = [[notice.what for notice in watcher.look()] for _ in range(5)]
    assert looks == [["started"], ["waiting"], [], [], []]
    clock.advance(60)
    assert [notice.what for notice in watcher.look()] == ["started"]
    assert len(started) == 2


@pytest.mark.parametrize("checkpoints", [0, 1, 3])
def test_the_whole_ladder_as_it_was_announced_and_then_it_stops(
    store: Store, clock: FakeClock, checkpoints: int
) -> None:
    session = team(store, "coder", plan=("one",))
    for _ in range(checkpoints):
        session.checkpoint("routine")
    taken: list[str] = []

    def start(name: str, rung: str) -> Helper:
        handle = open_session(store, name)
        with suppress(RecoveryStopped):
            done = resume(store, handle, plan_rung(handle, rung))
            taken.append(done.plan.rung)
            assert (done.plan.point is None) == (done.plan.rung in ("retry", "clean"))
            settle(handle, done.at, "failed", "it did not live")
        handle.close()
        control(session, "status", "failed")
        return Helper(status=1)

    watcher = RecoveryWatch(store, start)
    said: list[Notice] = []
    for _ in range(4000):
        said += watcher.look()
        clock.advance(1)
    assert [notice.rung for notice in said if notice.what == "started"] == taken
    assert taken == ["retry", *["good", "older"][:checkpoints], "clean"]
    assert [notice.rung for notice in said if notice.what == "waiting"] == taken[1:]
    assert [notice.what for notice in said].count("stopped") == 1
    assert (said[-1].what, said[-1].why, said[-1].tried) == ("stopped", "it did not live", taken)
    assert [attempt.rung for attempt in attempts(session)] == [*taken, "stop"]


@pytest.mark.parametrize("has_restored", [False, True])
def test_a_helper_that_is_killed_at_work_is_followed_by_another(
    store: Store, clock: FakeClock, has_restored: bool
) -> None:
    session = team(store, "coder")
    session.checkpoint("routine")
    rungs: list[str] = []

    def start(name: str, rung: str) -> Helper:
        rungs.append(rung)
        handle = open_session(store, name)
        plan = plan_rung(handle, rung)
        if rung == "good" and not has_restored:
            begin(handle, plan)
        else:
            done = resume(store, handle, plan)
        if rung == "retry":
            settle(handle, done.at, "failed", "it did not live")
            control(session, "status", "failed")
        dead(session, "supervisor")
        return Helper(status=-9)

    watcher = RecoveryWatch(store, start)
    for _ in range(2000):
        if len(rungs) < 3:
            watcher.look()
        clock.advance(1)
    assert rungs == ["retry", "good", "good" if not has_restored else "clean"]


def test_a_session_that_somebody_brings_back_is_left_to_them(store: Store) -> None:
    session = team(store, "coder")
    control(session, "status", "failed")
    handle = open_session(store, "run")
    resume(store, handle, plan_rung(handle, "retry"))
    watcher = RecoveryWatch(store, lambda name, rung: pytest.fail(f"{name} was started"))
    assert watcher.look() == []


def test_a_failed_attempt_is_left_to_its_supervisor_until_that_has_let_go(
    store: Store, clock: FakeClock
) -> None:
    session = team(store, "coder")
    handle = open_session(store, "run")
    done = resume(store, handle, plan_rung(handle, "retry"))
    control(session, "status", "failed")
    settle(handle, done.at, "failed", "it did not live")
    clock.advance(300)
    started: list[str] = []

    def start(name: str, rung: str) -> Helper:
        started.append(rung)
        return Helper()

    watcher = RecoveryWatch(store, start)
    assert watcher.look() == []
    handle.close()
    watcher.look()
    assert len(started) == 1


def test_that_it_gave_up_is_said_again_by_the_next_watcher(store: Store) -> None:
    session = team(store, "coder")
    handle = open_session(store, "run")
    with suppress(RecoveryStopped):
        resume(store, handle, plan_rung(handle, "stop"))
    handle.close()
    watcher = RecoveryWatch(store, lambda name, rung: pytest.fail(f"{name} was started"))
    assert [notice.what for notice in watcher.look()] == ["stopped"]
    assert watcher.look() == []
    # Somebody starts it afresh, and it fails by itself: nobody asked for it to be brought back.
    session.internal.commit_events(
        lambda _: [event_change("orchestrator.started", control=[[["gave_up"]]])]
    )
    assert watcher.look() == []


def test_what_a_person_stopped_is_left_alone(store: Store) -> None:
    session = team(store, "coder")
    watcher = RecoveryWatch(store, lambda name, rung: pytest.fail(f"{name} was started"))
    for status in ("paused", "done", "failed"):
        control(session, "status", status)
        assert watcher.look() == []
