"""The supervisor's decisions, one situation at a time: no processes, no clock."""

from __future__ import annotations

from signal import SIGKILL, SIGTERM
from typing import Any

import pytest

from mulligan.supervisor.machine import (
    HEARTBEAT_TIMEOUT_SECONDS,
    KILL_AFTER_PAUSE_SECONDS,
    TERMINATE_GRACE_SECONDS,
    Machine,
    Phase,
)
from mulligan.supervisor.stimuli import (
    Action,
    Answered,
    Beat,
    Begin,
    CannotStart,
    CheckpointAsked,
    Delay,
    EndAsked,
    Ended,
    Escalate,
    Exited,
    Finish,
    Health,
    Kill,
    PauseAsked,
    Progressed,
    Quarantine,
    RequestSafePoint,
    Start,
    Started,
    Stimulus,
    TakeCheckpoint,
    Tick,
    Wanted,
)
from mulligan.supervisor.workflow import AgentSpec, Backoff, Workflow


def team(**agents: dict[str, Any]) -> Machine:
    specs = {name: AgentSpec(command=("x",), **fields) for name, fields in agents.items()}
    return Machine(Workflow(agents=specs))


class Run:
    """Drives a machine through time and keeps what it decided last."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.now = 0.0
        self.actions: list[Action] = []

    def at(self, now: float, *stimuli: Stimulus) -> list[Action]:
        self.now = now
        self.actions = [a for stimulus in stimuli for a in self.machine.handle(stimulus, now)]
        return self.actions

    def has(self, kind: type) -> Any:
        return next((action for action in self.actions if isinstance(action, kind)), None)


def up(**agents: dict[str, Any]) -> Run:
    """Return a team whose first agents are running."""
    run = Run(team(**agents))
    for action in run.at(0, Begin()):
        if isinstance(action, Start):
            run.machine.handle(Started(action.agent, 1), 0)
    return run


def test_all_agents_are_started_at_once_but_those_that_wait_for_others() -> None:
    run = Run(team(a={}, b={}, c={"after": ("a", "b")}))
    assert run.at(0, Begin()) == [Start("a"), Start("b")]
    assert run.at(1, Exited("a", 0)) == [Ended("a", "done")]
    assert run.at(2, Exited("b", 0)) == [Ended("b", "done"), Start("c")]
    assert run.at(3, Exited("c", 0))[-1] == Finish("done")


def test_an_agent_that_was_done_is_not_started_again() -> None:
    specs = {"a": AgentSpec(command=("x",)), "b": AgentSpec(command=("x",), after=("a",))}
    machine = Machine(Workflow(agents=specs), done=["a"])
    assert machine.handle(Begin(), 0) == [Start("b")]
    everybody = Machine(Workflow(agents=specs), done=["a", "b"])
    assert everybody.handle(Begin(), 0)[-1] == Finish("done")


@pytest.mark.parametrize(
    ("policy", "status", "expected"),
    [
        ("on_failure", 0, Ended("a", "done")),
        ("on_failure", 1, Start("a", 1)),
        ("on_failure", -9, Start("a", 1)),
        ("always", 0, Start("a", 1)),
        ("always", 1, Start("a", 1)),
        ("never", 0, Ended("a", "done")),
        ("never", 1, Escalate("a", "ended with status 1")),
        ("never", -9, Escalate("a", "was ended by SIGKILL")),
        ("never", 75, Start("a", 1)),
        ("on_failure", 75, Start("a", 1)),
    ],
)
def test_what_becomes_of_an_agent_that_ended(policy: str, status: int, expected: Action) -> None:
    run = up(a={"restart": policy})
    assert expected in run.at(10, Exited("a", status, "working"))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (-13, Escalate("a", "was ended by SIGPIPE, and nothing reads its output any more")),
        (1, Escalate("a", "ended with status 1, and nothing reads its output any more")),
        (-9, Start("a", 1)),
        (0, Ended("a", "done")),
    ],
)
def test_an_agent_whose_output_is_closed_is_restarted_only_if_that_did_not_end_it(
    status: int, expected: Action
) -> None:
    run = up(a={})
    assert expected in run.at(10, Exited("a", status, "working", output_closed=True))


def test_restarts_wait_longer_each_time_and_end_at_the_limit() -> None:
    backoff = Backoff(initial=1, factor=2, max=3)
    run = up(a={"max_restarts": 5, "within": 60, "backoff": backoff})
    now, waits = 0.0, []
    for _ in range(5):
        run.at(now, Exited("a", 1))
        waits.append(run.has(Delay).seconds)
        now += waits[-1]
        if waits[-1]:
            assert run.at(now - 0.01, Tick()) == []
            assert isinstance(run.at(now, Tick())[0], Start)
    assert waits == [0, 1, 2, 3, 3]
    run.at(now, Exited("a", 1))
    assert "5 restarts in 60 s are allowed" in run.has(Escalate).reason
    assert run.has(Finish) == Finish("failed")


def test_the_wait_grows_no_further_than_numbers_do() -> None:
    backoff = Backoff(initial=1, factor=100, max=5)
    run = up(a={"max_restarts": 1, "within": 0.1, "backoff": backoff})
    for number in range(400):
        run.at(number * 10, Exited("a", 1))
        run.at(number * 10 + 9.95, Tick())
    assert run.machine.phase("a") is Phase.UP


def test_restarts_long_ago_do_not_count() -> None:
    run = up(a={"max_restarts": 1, "within": 10})
    for now in (0, 10, 20, 30):
        assert Start("a", now // 10 + 1) in run.at(now, Exited("a", 1))
    given_up = Escalate("a", "ended with status 1; 1 restarts in 10 s are allowed")
    assert given_up in run.at(35, Exited("a", 1))


def test_a_refresh_counts_for_nothing_but_is_no_busy_loop() -> None:
    run = up(a={"max_restarts": 0})
    for number in range(1, 20):
        assert Start("a", number) in run.at(number * 5, Exited("a", 75, "starting"))
    assert run.at(95.2, Exited("a", 75))[0] == Delay("a", pytest.approx(0.8), "refresh")
    assert run.at(96, Tick()) == [Start("a", 20)]


def test_the_crash_of_an_agent_at_work_is_kept_and_one_at_its_start_is_not() -> None:
    run = up(a={})
    first, *_ = run.at(0.5, Exited("a", -9, "working"))
    assert first == TakeCheckpoint("recovery", "a was ended by SIGKILL")
    run = up(a={})
    run.at(0.5, Exited("a", 1, "starting"))
    assert run.has(TakeCheckpoint) is None
    run = up(a={})
    run.at(50, Exited("a", 1, "starting"))  # it does not speak for itself, but it lived
    assert run.has(TakeCheckpoint) is not None


def test_an_agent_that_gave_a_sign_of_life_has_to_go_on_giving_them() -> None:
    run = up(a={})
    assert ticks(run, 0, 100) == []  # it never gave one, and nobody asked for any
    assert ticks(run, 100, 101, beat="a") == []
    assert ticks(run, 101, 100 + HEARTBEAT_TIMEOUT_SECONDS) == []
    assert run.at(100 + HEARTBEAT_TIMEOUT_SECONDS, Tick()) == [
        TakeCheckpoint("recovery", "a is hung: no sign of life for 30.0 s"),
        Kill("a", SIGKILL, "no sign of life for 30.0 s"),
    ]
    run.at(131, Exited("a", -9, "working"))
    assert run.has(TakeCheckpoint) is None  # that was done before
    assert run.has(Start) == Start("a", 1)


def test_a_heartbeat_that_is_demanded_has_to_begin() -> None:
    run = up(a={"heartbeat": 3})
    run.at(2.9, Tick())
    assert run.has(Kill) is None
    run.at(3, Tick())
    assert run.has(Kill) is not None


def test_a_step_may_take_as_long_as_it_said() -> None:
    run = up(a={"progress": 10})
    ticks(run, 0, 9)
    run.at(9, Progressed("a", 100), Beat("a"))
    assert ticks(run, 9, 108, beat="a") == []
    assert Kill("a", SIGKILL, "its step took longer than it may") in run.at(109, Tick())


def test_without_a_deadline_of_its_own_a_step_has_that_of_the_workflow() -> None:
    run = up(a={"progress": 10})
    run.at(5, Progressed("a", None))
    assert ticks(run, 5, 14.5) == []
    assert run.at(15, Tick()) != []
    free = up(a={})
    free.at(5, Progressed("a", 1), Progressed("a", None))
    assert ticks(free, 5, 60) == []


def test_nobody_is_late_when_the_supervisor_itself_was_held_up() -> None:
    run = up(a={"progress": 10})
    run.at(0, Beat("a"))
    run.at(1, Tick())
    assert run.at(500, Tick()) == []
    assert ticks(run, 500, 508) == []
    assert ticks(run, 508, 520) != []


def ticks(run: Run, start: float, end: float, beat: str | None = None) -> list[Action]:
    """Let the time pass in looks of a second."""
    found: list[Action] = []
    now = start
    while now < end:
        signs: list[Stimulus] = [Beat(beat)] if beat else []
        found += run.at(now, *signs, Tick())
        now += 1
    return found


def test_three_bad_verdicts_in_a_row_restart_an_agent() -> None:
    run = up(a={})
    for ok in (False, False, True, False, False):
        assert run.at(1, Health("a", ok)) == []
    run.at(2, Health("a", False))
    assert run.has(Kill) == Kill("a", SIGKILL, "unhealthy 3 times in a row")


def test_a_task_that_ends_its_agent_is_put_in_quarantine_and_forgiven() -> None:
    run = up(a={"max_restarts": 2, "within": 1000})
    for crashes in (1, 2):
        run.at(crashes, Exited("a", -9, "working", "poison", crashes))
        assert run.has(Quarantine) is None
        run.at(crashes + 0.9, Tick())
    run.at(3, Exited("a", -9, "working", "poison", 3))
    assert run.has(Quarantine) == Quarantine("a", "poison", 3)
    assert run.has(Start) == Start("a", 3)
    run.at(4, Exited("a", 1))
    assert run.has(Escalate) is None
    run.at(4.9, Tick())
    run.at(5, Exited("a", 1))
    assert run.has(Escalate) is not None


def test_others_go_on_when_one_is_given_up() -> None:
    run = up(a={"restart": "never"}, b={}, c={"after": ("a",)}, d={"after": ("b",)})
    run.at(1, Exited("a", 1))
    assert run.has(Finish) is None
    assert run.at(2, Exited("b", 0)) == [Ended("b", "done"), Start("d")]
    run.at(3, Exited("d", 0))
    assert run.has(Finish) == Finish("failed")
    assert run.machine.phase("c") is Phase.WAITING


def test_a_command_that_cannot_be_started_is_not_tried_again() -> None:
    run = up(a={})
    assert run.at(0, CannotStart("a", "no such file"))[0] == Escalate("a", "no such file")
    assert run.has(Finish) == Finish("failed")


def test_a_pause_ends_everybody_at_a_safe_point() -> None:
    run = up(a={}, b={}, later={"after": ("a",)})
    run.at(1, Beat("a"), Beat("b"))
    assert run.at(2, PauseAsked("p", 30)) == [RequestSafePoint("pause", "p", 32)]
    assert run.at(3, Answered("a")) == []
    assert run.at(4, Exited("a", 0, "suspended")) == [Ended("a", "suspended")]
    run.at(5, Answered("b"))
    assert run.at(6, Exited("b", 0, "suspended")) == [
        Ended("b", "suspended"),
        TakeCheckpoint("routine", "paused; answered: a, b", "p", ("a", "b"), ()),
        Finish("paused"),
    ]


def test_who_does_not_answer_is_told_to_end_then_made_to() -> None:
    run = up(a={})
    run.at(1, Beat("a"))
    run.at(2, PauseAsked("p", 5))
    run.at(6, Beat("a"))
    assert run.at(6.9, Tick()) == []
    assert run.at(7, Tick()) == [Kill("a", SIGTERM)]
    assert run.at(7 + KILL_AFTER_PAUSE_SECONDS - 0.1, Tick()) == []
    assert run.at(7 + KILL_AFTER_PAUSE_SECONDS, Tick()) == [Kill("a", SIGKILL)]
    assert run.at(10, Exited("a", -9, "working")) == [
        Ended("a", "suspended"),
        TakeCheckpoint("routine", "paused; late: a", "p", (), ("a",)),
        Finish("paused"),
    ]


def test_who_cannot_answer_is_told_to_end_at_once() -> None:
    run = up(a={})
    assert run.at(2, PauseAsked("p", 30)) == [
        RequestSafePoint("pause", "p", 32),
        Kill("a", SIGTERM),
    ]
    run.at(3, Exited("a", -15))
    assert run.has(Finish) == Finish("paused")


def test_who_answers_and_stays_is_made_to_end() -> None:
    run = up(a={})
    run.at(1, Beat("a"), PauseAsked("p", 30), Answered("a"))
    assert run.at(1 + TERMINATE_GRACE_SECONDS, Tick()) == [Kill("a", SIGKILL)]


def test_a_short_pause_is_short_for_everybody() -> None:
    run = up(deaf={}, slow={}, stays={})
    run.at(1, Beat("slow"), Beat("stays"), PauseAsked("p", 3), Answered("stays"))
    assert run.at(4, Tick()) == [Kill("slow", SIGTERM)]
    killed = run.at(4 + KILL_AFTER_PAUSE_SECONDS, Tick())
    assert killed == [Kill(name, SIGKILL) for name in ("deaf", "slow", "stays")]


def test_a_process_that_takes_its_time_to_die_keeps_nobody_busy() -> None:
    run = up(a={})
    run.at(1, PauseAsked("p", 5))
    over = 6 + KILL_AFTER_PAUSE_SECONDS
    for now in (6.0, over):
        run.at(now, Tick())
    assert run.has(Kill) == Kill("a", SIGKILL)
    assert run.machine.due() == over + TERMINATE_GRACE_SECONDS
    assert run.at(over + 0.001, Tick()) == []


def test_a_team_checkpoint_is_what_was_wanted() -> None:
    run = up(a={})
    run.at(1, Beat("a"))
    wanted = Wanted("nightly", "before the merge", "green")
    note = "before the merge; answered: a"
    assert run.at(2, CheckpointAsked("c", 5, wanted), Answered("a")) == [
        RequestSafePoint("checkpoint", "c", 7),
        TakeCheckpoint("nightly", note, "c", ("a",), (), "green"),
    ]


def test_a_pause_while_an_agent_waits_for_its_restart() -> None:
    run = up(a={"backoff": Backoff(initial=10)}, b={})
    run.at(1, Exited("a", 1), Exited("a", 1))
    run.at(2, Exited("a", 1))
    assert run.machine.phase("a") is Phase.DELAYED
    assert Ended("a", "suspended") in run.at(3, PauseAsked("p", 30))
    assert run.has(Start) is None
    run.at(4, Exited("b", -15))
    assert run.has(Finish) == Finish("paused")


def test_an_agent_that_finishes_its_work_during_a_pause_is_done() -> None:
    run = up(a={})
    run.at(1, Beat("a"), PauseAsked("p", 30))
    assert run.at(2, Exited("a", 0, "working"))[-1] == Finish("done")


def test_the_end_at_once() -> None:
    run = up(a={}, b={})
    run.at(1, Beat("a"), PauseAsked("p", 30))
    assert run.at(2, EndAsked()) == [Kill("a", SIGKILL), Kill("b", SIGKILL)]
    run.at(3, Exited("a", -9), Exited("b", -9))
    assert run.has(Finish) == Finish("paused")


def test_a_team_checkpoint_says_who_answered_and_who_was_late() -> None:
    run = up(a={}, b={}, deaf={})
    run.at(1, Beat("a"), Beat("b"))
    assert run.at(2, CheckpointAsked("c", 5)) == [RequestSafePoint("checkpoint", "c", 7)]
    run.at(3, Answered("a"))
    assert run.machine.is_asking
    assert run.at(7, Tick()) == [
        TakeCheckpoint(
            "manual", "team checkpoint; answered: a; late: b, deaf", "c", ("a",), ("b", "deaf")
        )
    ]
    assert not run.machine.is_asking
    assert run.machine.phase("b") is Phase.UP


def test_a_team_checkpoint_does_not_wait_for_the_dead() -> None:
    run = up(a={}, b={})
    run.at(1, Beat("a"), Beat("b"), CheckpointAsked("c", 5), Answered("a"))
    run.at(2, Exited("b", 0))
    assert run.has(TakeCheckpoint).answered == ("a",)


def test_an_agent_that_suspends_itself_leaves_the_session_paused() -> None:
    run = up(a={"restart": "always"})
    assert run.at(5, Exited("a", 0, "suspended"))[-1] == Finish("paused")


def test_nothing_is_decided_after_the_end() -> None:
    run = up(a={})
    run.at(1, Exited("a", 0))
    assert run.at(2, Tick(), PauseAsked("p", 1), Exited("a", 1)) == []


def test_when_to_look_again() -> None:
    run = up(a={"backoff": Backoff(initial=7)})
    assert run.machine.due() is None
    run.at(1, Beat("a"))
    assert run.machine.due() == 1 + HEARTBEAT_TIMEOUT_SECONDS
    run.at(2, Progressed("a", 5))
    assert run.machine.due() == 7
    run.at(3, Exited("a", 1), Exited("a", 1))
    assert run.machine.due() == 10
