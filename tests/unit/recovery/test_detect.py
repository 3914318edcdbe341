"""Finding interrupted sessions: dead supervisors, dead agents, and those that only look so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mulligan import Store
from mulligan.errors import ApprovalPending, EffectInDoubt
from mulligan.recovery.detect import (
    in_doubt,
    interrupted,
    interruption,
    is_alive,
    is_paused,
)
from mulligan.session.write.leases import this_process
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store
from tests.unit.recovery.dead import ELSEWHERE, control, dead, team


@pytest.fixture
def store(clock: FakeClock) -> Store:
    return open_store("memory:", clock=clock)


def test_a_session_that_nobody_ever_ran_is_not_interrupted(store: Store) -> None:
    store.session("run").state.set("a", 1)
    assert interrupted(store) == []


def test_a_running_session_whose_supervisor_died(store: Store, clock: FakeClock) -> None:
    session = team(store, "coder", "tester", plan=("one", "two", "three"))
    taken = session.checkpoint("routine")
    session.checkpoint("recovery")
    clock.advance(90)
    [found] = interrupted(store)
    assert (found.session, found.is_supervised, found.seconds) == ("run", True, 90)
    assert "is dead" in found.why
    assert found.checkpoint == taken
    coder, tester = found.agents
    assert (coder.name, coder.state, coder.prompt) == ("coder", "working", "do coder")
    assert (coder.tasks, tester.tasks) == (("one",), ("two",))
    assert (coder.process_id, coder.is_alive) == (2**22 + 1, False)


def test_a_live_supervisor_is_no_interruption(store: Store) -> None:
    supervisor = store.agent("supervisor", session="run")
    control(supervisor, "status", "running")
    session = store.session("run")
    assert interruption(session) is None
    assert interruption(supervisor) is not None  # whoever has the lease is to bring it back
    supervisor.internal.release()
    assert interruption(session) is not None


def test_a_supervisor_on_another_host_counts_as_dead_when_its_lease_is_over(
    store: Store, clock: FakeClock
) -> None:
    session = store.session("run")
    control(session, "status", "running")
    dead(session, "supervisor", ELSEWHERE)
    assert interruption(session) is None
    clock.advance(31)
    found = interruption(session)
    assert found is not None
    assert "no sign of life" in found.why


def test_the_lease_of_an_agent_is_compared_with_the_clock_of_the_journal(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session("run")
    store.session("run", actor="coder").agent.update(state="working")
    dead(session, "coder", ELSEWHERE)
    now = clock.now()
    monkeypatch.setattr(session._engine.journal, "now", lambda: now)
    clock.advance(31)
    assert interruption(session) is None
    assert is_alive(session, "coder", {})
    monkeypatch.undo()
    assert interruption(session) is not None


@pytest.mark.parametrize("status", ["done", "failed", "paused"])
def test_what_ended_is_not_interrupted(store: Store, status: str) -> None:
    session = team(store, "coder")
    control(session, "status", status)
    assert interruption(session) is None
    assert is_paused(session) == (status == "paused")


def test_without_a_supervisor_a_dead_agent_at_work_counts(store: Store) -> None:
    session = store.session("run", actor="coder")
    session.agent.update(state="working", working_on="the parser")
    assert interruption(session) is None  # it has no lease, so nobody knows
    dead(session, "coder")
    found = interruption(session)
    assert found is not None
    assert not found.is_supervised
    assert "coder is dead" in found.why
    store.session("run").internal.state.set("agents/coder/state", "suspended")
    assert interruption(session) is None


def test_without_a_supervisor_a_live_agent_counts_as_alive_however_old_its_lease(
    store: Store, clock: FakeClock
) -> None:
    session = store.agent("coder", session="run")
    session.agent.update(state="working")
    clock.advance(1000)
    assert interruption(session) is None
    session.internal.release()
    assert interruption(session) is None


def test_a_process_that_was_gone_before_its_start_was_noted_is_not_alive(store: Store) -> None:
    session = team(store, "coder")
    gone = 2**22 + 1
    session.internal.state.set("agents/coder/identity", f"{os.uname().nodename}/{gone}/0")
    [found] = interrupted(store)
    assert not found.agents[0].is_alive


def test_a_lease_that_the_supervisor_took_says_nothing_of_a_process(store: Store) -> None:
    session = store.agent("supervisor", session="run")
    control(session, "status", "running")
    session.internal.state.set("agents/coder", {"state": "waiting", "process_id": 2**22 + 1})
    store.session("run", actor="coder").internal.take(30)
    record = session.state.get("agents/coder")
    assert not is_alive(session, "coder", record)
    own = {"process_id": os.getpid(), "identity": this_process()}
    assert is_alive(session, "coder", {**record, **own})


def test_calls_that_never_returned_are_in_doubt(store: Store, work: Path) -> None:
    session = team(store, "coder")
    session.tools.record("search", result=1)
    files = store.session("run", workspace=work)
    (work / "a").write_text("1")
    files.checkpoint()
    (work / "b").write_text("2")
    session.internal.state.set(
        "tools/c", {"status": "called", "name": "pay", "seq": files.head.seq}
    )
    session.internal.state.set("tools/d", "odd")
    [doubt] = in_doubt(session)
    assert (doubt.call, doubt.tool, doubt.files, doubt.process) == ("c", "pay", None, None)
    # A handle with files can say what changed since.
    [doubt] = in_doubt(files)
    assert doubt.files == ("b",)


def test_effects_in_doubt_and_questions_are_part_of_an_interruption(store: Store) -> None:
    session = team(store, "coder")
    with pytest.raises(EffectInDoubt), session.effect("mail.send"):
        raise EffectInDoubt("who knows")
    session.effects.rule("deploy", approval="ask")
    with pytest.raises(ApprovalPending), session.effect("deploy"):
        raise AssertionError
    control(session, "status", "running")
    found = interruption(session)
    assert found is not None
    assert [(e.name, e.status, e.is_pending) for e in found.effects] == [
        ("mail.send", "in_doubt", False),
        ("deploy", "intended", True),
    ]


def test_open_operations_are_named(store: Store) -> None:
    operation = store.session("run", actor="coder").operation("migrate schema")
    operation.__enter__()
    session = team(store, "coder")
    found = interruption(session)
    assert found is not None
    [one] = found.operations
    assert (one.name, one.agent) == ("migrate schema", "coder")
    assert operation.checkpoint is not None
    assert one.checkpoint == operation.checkpoint.id


def test_odd_values_under_our_names_are_taken_as_they_are(store: Store) -> None:
    session = store.session("run")
    session.internal.state.set("agents", ["not", "ours"])
    session.internal.state.set("tools", 7)
    assert interruption(session) is None
    control(session, "status", "running")
    found = interruption(session)
    assert found is not None
    assert found.agents == ()
