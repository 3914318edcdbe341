"""The events of an agent become observations, however it records its work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from mulligan import Session
from mulligan.document.fold import event_change
from mulligan.drift.journal import JournalReader, only_agent
from mulligan.drift.observation import ACTION, CYCLE, MESSAGE, PROGRESS, RESET, Observation
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store


@pytest.fixture
def session(clock: FakeClock) -> Session:
    return open_store("memory:", clock=clock).agent("coder", session="work")


def observed(session: Session, agent: str = "coder") -> list[Observation]:
    reader = JournalReader(agent)
    return [seen for event in session.events() for seen in reader.observe(event)]


def say(session: Session, **message: Any) -> None:
    session.state.append("conversation", message)


def event(session: Session, kind: str, **facts: Any) -> None:
    session.internal.commit_events(lambda _: [event_change(kind, **facts)])


def calls_of_openai(session: Session) -> None:
    call = {"id": "1", "function": {"name": "search", "arguments": '{"q": "x"}'}}
    say(session, role="assistant", content=None, tool_calls=[call])
    say(session, role="tool", tool_call_id="1", content="found")


def calls_of_anthropic(session: Session) -> None:
    use = {"type": "tool_use", "id": "1", "name": "search", "input": {"q": "x"}}
    say(session, role="assistant", content=[{"type": "text", "text": "Look."}, use])
    result = {"type": "tool_result", "tool_use_id": "1", "content": "found"}
    say(session, role="user", content=[result])


def calls_as_events(session: Session) -> None:
    event(session, "tool.called", call="1", name="search", args={"q": "x"})
    event(session, "tool.returned", call="1", result="found")


def calls_in_the_state(session: Session) -> None:
    called = {"status": "called", "name": "search", "args": {"q": "x"}}
    session.internal.state.set("tools/calls/1", called)
    session.internal.state.set("tools/calls/1", {**called, "status": "returned", "result": "found"})


def calls_in_a_record(session: Session) -> None:
    record = {"name": "search", "args": {"q": "x"}, "status": "called"}
    event(session, "tool.called", changes=[[["tools", "1"], record]], call="1")
    changes = [[["tools", "1", "status"], "returned"], [["tools", "1", "result"], "found"]]
    event(session, "tool.returned", changes=changes, call="1")


def calls_of_the_component(session: Session) -> None:
    """Record a call as ``session.tools`` does: the whole record with each event."""
    record = {"name": "search", "args": {"q": "x"}, "status": "called", "agent": "coder", "seq": 1}
    event(session, "tool.called", changes=[[["tools", "c1"], {**record, "acting": "p"}]], call="c1")
    started = {**record, "acting": "p", "process": "h/1/2"}
    event(session, "tool.started", changes=[[["tools", "c1"], started]], call="c1")
    ended = {**record, "status": "returned", "result": "found", "error": None, "acting": None}
    event(session, "tool.returned", changes=[[["tools", "c1"], ended]], call="c1")


def shell(session: Session, call: str, command: str, printed: str, status: str = "failed") -> None:
    result = {"exit": 1, "output": printed}
    record = {"name": "shell", "args": {"command": [command]}, "status": status}
    ended = {**record, "error": "exit code 1", "result": result}
    event(session, f"tool.{status}", changes=[[["tools", call], ended]], call=call)


def test_failures_of_one_shell_are_told_apart_by_what_they_printed(session: Session) -> None:
    shell(session, "1", "make", "no rule for it")
    shell(session, "2", "ls", "no such directory")
    assert [(o.failed, o.result) for o in observed(session)] == [
        (True, "exit code 1 no rule for it"),
        (True, "exit code 1 no such directory"),
    ]


def test_a_call_in_doubt_is_no_action(session: Session) -> None:
    shell(session, "1", "make", "", status="in_doubt")
    assert observed(session) == []


WAYS = [
    calls_of_the_component,
    calls_of_openai,
    calls_of_anthropic,
    calls_as_events,
    calls_in_the_state,
    calls_in_a_record,
]


@pytest.mark.parametrize("record", WAYS)
def test_a_call_is_an_action_once_it_has_returned(
    session: Session, record: Callable[[Session], None]
) -> None:
    record(session)
    [action] = observed(session)
    assert (action.kind, action.name, action.result, action.failed) == (
        ACTION,
        "search",
        "found",
        False,
    )
    assert action.text.replace(" ", "") == '{"q":"x"}'
    assert action.seq == session.head.seq


def test_a_call_that_is_recorded_in_two_ways_counts_once(session: Session) -> None:
    calls_as_events(session)
    calls_of_openai(session)
    calls_in_the_state(session)
    assert len(observed(session)) == 1


@pytest.mark.parametrize(
    "facts", [{"error": "boom"}, {"result": "Error: boom"}, {"result": "boom", "status": "failed"}]
)
def test_a_call_that_failed_is_a_failed_action(session: Session, facts: dict[str, Any]) -> None:
    event(session, "tool.called", call="1", name="search", args={})
    event(session, "tool.returned", call="1", **facts)
    [action] = observed(session)
    assert action.failed
    assert "boom" in action.result


def test_what_is_said_without_a_call_is_a_message(session: Session) -> None:
    say(session, role="user", content="Do it.")
    say(session, role="assistant", content="I will.")
    say(session, role="assistant", content=[{"type": "text", "text": "I do."}])
    assert [(seen.kind, seen.text) for seen in observed(session)] == [
        (MESSAGE, "I will."),
        (MESSAGE, "I do."),
    ]
    assert observed(session)[-1].context > observed(session)[0].context  # type: ignore[operator]


def test_tasks_and_values_of_the_state_are_progress(session: Session) -> None:
    session.tasks.add("write it", id="t1")
    session.tasks.claim()
    session.tasks.fail("t1", "no")
    session.tasks.retry("t1")
    session.tasks.claim()
    session.tasks.complete("t1")
    session.state.set("memory/found", 7)
    session.agent.update(last_action="looked")
    seen = [(o.kind, o.name, o.text, o.failed) for o in observed(session)]
    assert seen == [
        (PROGRESS, "task", "t1", True),
        (PROGRESS, "task", "t1", False),
        (PROGRESS, "state", "memory/found", False),
    ]


def test_cycles_of_the_loop_are_cycles_and_failed_ones_also_failures(
    session: Session, clock: FakeClock
) -> None:
    for cycle in session.loop():
        clock.advance(3)
        if cycle.number == 1:
            cycle.fail("it broke")
        if cycle.number == 3:
            break
    found = [(o.kind, o.seconds, o.failed) for o in observed(session)]
    assert found == [
        (ACTION, None, True),
        (CYCLE, 3.0, False),
        (CYCLE, 3.0, False),
        (ACTION, None, True),
        (CYCLE, 3.0, False),
    ]


def test_an_operation_that_fails_is_a_failure_and_its_rollback_no_reset(session: Session) -> None:
    session.state.set("memory/x", 1)
    for fails in (True, True, False):
        try:
            with session.operation("deploy"):
                session.state.set("memory/x", 2)
                if fails:
                    raise ValueError("refused")
        except ValueError:
            pass
    found = [(o.kind, o.failed) for o in observed(session) if o.kind in (ACTION, RESET)]
    assert found == [(ACTION, True), (ACTION, True), (ACTION, False)]


def test_a_restore_and_a_refresh_reset(session: Session) -> None:
    checkpoint = session.checkpoint()
    session.restore(checkpoint)
    session.agent.record("agent.refreshed", {"state": "starting"})
    assert [o.kind for o in observed(session)] == [RESET, RESET]


def test_a_restore_of_the_context_resets_and_one_of_other_parts_does_not(session: Session) -> None:
    say(session, role="user", content="Do it.")
    session.state.set("memory/x", 1)
    checkpoint = session.checkpoint()
    say(session, role="user", content="Faster.")
    session.restore(checkpoint, only=["memory"])
    assert RESET not in [o.kind for o in observed(session)]
    session.restore(checkpoint, only=["conversation"])
    assert [o.kind for o in observed(session)][-1] == RESET


def test_an_operation_of_another_agent_that_is_rolled_back_resets_nothing(session: Session) -> None:
    say(session, role="user", content="Do it.")
    with contextlib.suppress(ValueError), session.operation("deploy"):
        say(session, role="user", content="Faster.")
        raise ValueError("refused")
    assert [e.kind for e in session.events()].count("restore.applied") == 1
    assert observed(session, "tester") == []


def test_an_effect_is_progress_or_a_failure(session: Session) -> None:
    event(session, "effect.intended", effect="e1", name="mail.send")
    control = [[["effects", "e1", "error"], "refused"]]
    event(session, "effect.failed", effect="e1", name="mail.send", control=control)
    event(session, "effect.done", effect="e1", name="mail.send")
    assert [(o.kind, o.name, o.result, o.failed) for o in observed(session)] == [
        (ACTION, "effect mail.send", "refused", True),
        (PROGRESS, "effect", "done", False),
    ]


def test_what_others_do_is_not_this_agents(session: Session, clock: FakeClock) -> None:
    calls_as_events(session)
    assert observed(session, "tester") == []


def test_odd_payloads_are_no_error(session: Session) -> None:
    for value in (None, 7, "text", [], [1, None], {"content": [None, 3]}, {"tool_calls": [1]}):
        session.state.append("conversation", value)
        session.internal.state.set("tools/calls/1", value)
    event(session, "tool.returned")
    event(session, "tool.called", call=None, name=None)
    event(session, "agent.cycle", changes=[[["memory"], 1], [["last_cycle"], 3]])
    event(session, "task.completed")
    before = observed(session)
    calls_of_openai(session)
    assert len(observed(session)) > len(before)  # what follows them is seen


def test_events_of_others_can_be_skipped(clock: FakeClock) -> None:
    """A supervisor passes an event only to the agent that it concerns, or else to all."""
    store = open_store("memory:", clock=clock)
    coder = store.agent("coder", session="work")
    before = coder.checkpoint()
    for one in (coder, store.agent("reviewer", session="work")):
        calls_of_openai(one)
        with contextlib.suppress(ValueError), one.operation("deploy"):
            raise ValueError("refused")
        event(one, "agent.cycle", cycle=1)
        one.agent.record("agent.refreshed", {"state": "starting"})
    coder.restore(before)
    for agent in ("coder", "reviewer"):
        events = list(coder.events())
        concern = [one for one in events if only_agent(one) in (None, agent)]
        reader = JournalReader(agent)
        seen = [found for one in concern for found in reader.observe(one)]
        assert seen == observed(coder, agent)
        assert len(concern) < len(events)
