"""What the supervisor decides about an agent that drifts: no processes, no clock."""

from __future__ import annotations

from signal import SIGTERM

import pytest

from mulligan.drift import ladder
from mulligan.supervisor.machine import SAFE_POINT_SECONDS, Machine, Phase
from mulligan.supervisor.stimuli import (
    AskRestart,
    Beat,
    Begin,
    Delay,
    Drifted,
    Ended,
    Exited,
    Finish,
    Isolate,
    Kill,
    PauseAsked,
    Prepare,
    Start,
    TakeCheckpoint,
    Tick,
)
from mulligan.supervisor.workflow import AgentSpec, Workflow
from tests.unit.supervisor.test_machine import Run, up

LOOPS = "it loops"
KEPT = "a drifts, {}: it loops"


def drifted(rung: str) -> Drifted:
    return Drifted("a", rung, LOOPS)


def attached() -> Run:
    run = up(a={"max_restarts": 0}, b={})
    run.at(1, Beat("a"))
    return run


def test_a_note_is_nothing_to_do() -> None:
    assert attached().at(2, drifted(ladder.NOTE)) == []


def test_a_checkpoint_lets_the_agent_go_on() -> None:
    run = attached()
    kept = TakeCheckpoint("recovery", KEPT.format("checkpoint"))
    assert run.at(2, drifted(ladder.CHECKPOINT)) == [kept]
    assert run.machine.phase("a") is Phase.UP


@pytest.mark.parametrize("rung", ladder.RESTARTS)
def test_an_agent_is_asked_to_end_and_starts_again(rung: str) -> None:
    run = attached()
    kept = TakeCheckpoint("recovery", KEPT.format(rung))
    assert run.at(2, drifted(rung)) == [kept, AskRestart("a", rung)]
    assert run.at(3, Exited("a", 75, "working")) == [
        Prepare("a", rung),
        Delay("a", 0.0, rung),
        Start("a", 1),
    ]


def test_it_counts_as_no_restart_however_often() -> None:
    run = attached()
    for second in (10, 20, 30):
        run.at(second, drifted(ladder.REFRESH))
        run.at(second + 1, Exited("a", 75, "working"))
        assert run.has(Start)
        run.at(second + 1, Beat("a"))


def test_an_agent_that_reaches_no_safe_point_is_ended() -> None:
    run = attached()
    run.at(2, drifted(ladder.REFRESH))
    run.at(20, Beat("a"))
    assert run.machine.due() == 2 + SAFE_POINT_SECONDS
    assert Kill("a", SIGTERM, "it reached no safe point") in run.at(
        2 + SAFE_POINT_SECONDS, Beat("a"), Tick()
    )
    assert Prepare("a", ladder.REFRESH) in run.at(33, Exited("a", -15, "working"))


def test_an_agent_that_never_attached_is_ended_at_once() -> None:
    run = up(a={})
    assert run.at(2, drifted(ladder.REFRESH))[-1] == Kill("a", SIGTERM, LOOPS)


def test_an_agent_that_finishes_meanwhile_is_done() -> None:
    run = attached()
    run.at(2, drifted(ladder.REFRESH))
    assert run.at(3, Exited("a", 0, "done")) == [Ended("a", "done")]


def test_a_second_response_waits_for_the_first() -> None:
    run = attached()
    run.at(2, drifted(ladder.REFRESH))
    assert run.at(3, drifted(ladder.ISOLATE)) == []


def test_a_pause_comes_first() -> None:
    run = attached()
    run.at(2, drifted(ladder.REFRESH))
    run.at(3, PauseAsked("p", 5))
    assert run.at(4, Exited("a", 75, "working")) == [Ended("a", "suspended")]
    assert run.at(4, drifted(ladder.ISOLATE)) == []


def test_an_isolated_agent_is_not_started_again_and_the_others_go_on() -> None:
    run = attached()
    run.at(2, drifted(ladder.ISOLATE))
    assert run.at(3, Exited("a", 75, "working")) == [Ended("a", "suspended"), Isolate("a", LOOPS)]
    assert run.machine.phase("b") is Phase.UP
    assert run.at(4, Exited("b", 0))[-1] == Finish("paused")


def test_an_agent_that_waits_for_its_restart_is_isolated_at_once() -> None:
    run = up(a={}, b={})
    for second in (2, 3):
        run.at(second, Exited("a", 1, "working"))
    assert run.machine.phase("a") is Phase.DELAYED
    assert run.at(3, drifted(ladder.ISOLATE)) == [Ended("a", "suspended"), Isolate("a", LOOPS)]


def test_an_agent_that_was_isolated_before_is_not_started() -> None:
    specs = {"a": AgentSpec(command=("x",)), "b": AgentSpec(command=("x",))}
    machine = Machine(Workflow(agents=specs), isolated=["a"])
    assert machine.handle(Begin(), 0) == [Start("b")]
    alone = Machine(Workflow(agents=specs), done=["b"], isolated=["a"])
    assert alone.handle(Begin(), 0)[-1] == Finish("paused")
