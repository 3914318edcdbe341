"""Watching: what is interrupted is brought back, at the pace of the ladder, and said once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import mulligan
from mulligan import Store
from mulligan.recovery.plan import plan_next
from mulligan.recovery.resume import open_session, resume, settle
from mulligan.recovery.watch import Watcher
from mulligan.testing.clock import FakeClock
from tests.unit.recovery.dead import control, team


@dataclass
class Helper:
    """Stands for a process that brings a session back."""

    pid: int = 7
    status: int | None = None

    def poll(self) -> int | None:
        return self.status


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Store:
    return mulligan.open("memory:", clock=clock)


def test_an_interrupted_session_is_brought_back_once(store: Store) -> None:
    started: list[str] = []
    helper = Helper()

    def start(name: str) -> Helper:
        started.append(name)
        return helper

    watcher = Watcher(store, start)
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

    def start(name: str) -> Helper:
        started.append(name)
        return Helper(status=1)

    team(store, "coder")
    watcher = Watcher(store, start)
    looks = [[notice.what for notice in watcher.look()] for _ in range(5)]
    assert looks == [["started"], ["waiting"], [], [], []]
    clock.advance(60)
    assert [notice.what for notice in watcher.look()] == ["started"]
    assert len(started) == 2


def test_the_whole_ladder_and_then_it_stops(store: Store, clock: FakeClock) -> None:
    session = team(store, "coder", plan=("one",))
    session.checkpoint("routine")
    rungs: list[str] = []

    def start(name: str) -> Helper:
        handle = open_session(store, name)
        rungs.append(resume(store, handle, plan_next(handle)).plan.rung)
        settle(handle, "failed", "it did not live")
        handle.close()
        control(session, "status", "failed")
        return Helper(status=1)

    watcher = Watcher(store, start)
    said = []
    for _ in range(4000):
        said += [notice.what for notice in watcher.look()]
        clock.advance(1)
    assert rungs == ["retry", "good", "clean"]
    assert said.count("stopped") == 1
    assert said[-1] == "stopped"


def test_what_a_person_stopped_is_left_alone(store: Store) -> None:
    session = team(store, "coder")
    watcher = Watcher(store, lambda name: pytest.fail(f"{name} was started"))
    for status in ("paused", "done", "failed"):
        control(session, "status", status)
        assert watcher.look() == []
