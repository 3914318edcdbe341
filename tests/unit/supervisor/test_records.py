"""What the supervisor writes down about the end of a process."""

from __future__ import annotations

import pytest

import mulligan
from mulligan import Session
from mulligan.supervisor.process import Ending
from mulligan.supervisor.records import Records
from mulligan.supervisor.stimuli import Quarantine, TakeCheckpoint
from mulligan.supervisor.workflow import AgentSpec, Workflow


@pytest.fixture
def session() -> Session:
    return mulligan.open("memory:").session("main", actor="a")


@pytest.fixture
def records(session: Session) -> Records:
    return Records(session)


KILLED = Ending(-9, {"user_seconds": 0.1})


def test_a_crash_is_held_against_the_task_that_the_process_had_claimed(
    session: Session, records: Records
) -> None:
    session.tasks.plan(["one", "two"])
    assert records.exited("a", KILLED, counts=True).task is None
    for crashes in (1, 2, 3):
        session.tasks.claim()
        found = records.exited("a", KILLED, counts=True)
        assert (found.task, found.crashes) == ("one", crashes)
        again = records.exited("a", KILLED, counts=True)
        assert (again.task, again.crashes) == (None, 0)  # it died before it claimed the task


def test_an_end_in_order_is_held_against_nothing(session: Session, records: Records) -> None:
    session.tasks.plan(["one"])
    session.tasks.claim()
    for ending, counts in ((Ending(0, {}), True), (Ending(75, {}), True), (KILLED, False)):
        assert records.exited("a", ending, counts=counts).task is None
    assert records.exited("b", KILLED, counts=True).task is None


def test_of_several_tasks_the_one_that_the_agent_named_is_blamed(
    session: Session, records: Records
) -> None:
    session.tasks.plan(["one", "two"])
    session.tasks.claim("one")
    session.tasks.claim("two")
    session.agent.update(working_on="two")
    assert records.exited("a", KILLED, counts=True).task == "two"


def test_quarantine_and_another_chance(session: Session, records: Records) -> None:
    session.tasks.plan(["one"])
    session.tasks.claim()
    records.exited("a", KILLED, counts=True)
    records.quarantine(Quarantine("a", "one", 3))
    assert session.tasks.get("one").status == "failed"
    assert session.agent.get()["working_on"] is None
    assert "3 processes of a" in (session.tasks.get("one").error or "")
    assert session.tasks.claim() is None
    session.tasks.retry("one")
    session.tasks.claim()
    assert records.exited("a", KILLED, counts=True).crashes == 1


def test_how_a_process_ended_is_part_of_the_agents_record(
    session: Session, records: Records
) -> None:
    session.agent.update(state="working")
    assert records.exited("a", KILLED, counts=True).state == "working"
    kept = records.agent("a")
    assert (kept["exit_status"], kept["signal"]) == (None, 9)
    assert kept["resources"] == {"user_seconds": 0.1}
    records.exited("a", Ending(3, {}), counts=True)
    assert (records.agent("a")["exit_status"], records.agent("a")["signal"]) == (3, None)


def test_restarts_are_counted_across_supervisors(session: Session, records: Records) -> None:
    fields = {"process_id": 1}
    records.started("a", fields, again=True)
    assert records.agent("a")["restarts"] == 0  # it never ran before
    records.started("a", fields, again=True)
    records.started("a", fields, again=True)
    assert records.agent("a")["restarts"] == 2
    records.started("a", fields, again=False)
    assert records.agent("a")["restarts"] == 0


def test_what_was_asked_of_an_earlier_supervisor_is_void(
    session: Session, records: Records
) -> None:
    workflow = Workflow(agents={"a": AgentSpec(command=("x",), prompt="do it")})
    records.begin(workflow, False)
    assert records.prompts() == {"a": "do it"}
    records.barrier(TakeCheckpoint("manual", "", "x", ("a",), ()), None)
    records.finish("paused", "SIGTERM")
    assert session.internal.control() == {
        "status": "paused",
        "reason": "SIGTERM",
        "barrier": {"id": "x", "answered": ["a"], "late": [], "checkpoint": None},
    }
    records.begin(workflow, True)
    assert session.internal.control() == {"status": "running"}


def test_what_an_agent_says_at_once_is_not_overwritten(session: Session, records: Records) -> None:
    records.starting("a", {"current_prompt": "begin"})
    assert records.agent("a")["state"] == "starting"
    session.agent.update(state="working", prompt="mine")
    records.started("a", {"process_id": 7}, again=False)
    kept = records.agent("a")
    assert (kept["state"], kept["current_prompt"], kept["process_id"]) == ("working", "mine", 7)


def test_a_task_that_another_agent_has_by_now_is_not_quarantined(
    session: Session, records: Records
) -> None:
    session.tasks.plan(["one"])
    session.tasks.claim()
    records.quarantine(Quarantine("b", "one", 3))
    assert session.tasks.get("one").status == "in_progress"
    session.tasks.complete("one")
    records.quarantine(Quarantine("a", "one", 3))
    assert session.tasks.get("one").status == "completed"
