"""An event that is sent again under its id, because its hook got no answer, is recorded once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mulligan.coding.hooks import HookRunner
from tests.coding_agent import CodingAgent


@pytest.fixture
def agent(tmp_path: Path) -> CodingAgent:
    made = CodingAgent(tmp_path)
    made.make_store()
    return made


def send(agent: CodingAgent, id: str | None, event: str, **fields: Any) -> None:
    with HookRunner(agent.variables) as runner:
        runner.handle(agent.json(event, **fields), id=id)


def test_a_prompt_that_comes_again_is_one_prompt(agent: CodingAgent) -> None:
    for id in ("a", "a", "b"):
        send(agent, id, "UserPromptSubmit", prompt="Fix it")
    session = agent.session()
    assert session.state.get("agent_session/prompts") == 2
    assert len(session.checkpoints()) == 2


def test_a_prompt_that_two_hooks_tell_of_is_one_prompt(agent: CodingAgent) -> None:
    """One of the user and one of the project, for example; clients make up an id of their own."""
    for id in (None, "a", "b"):
        send(agent, id, "UserPromptSubmit", prompt="Fix it", prompt_id="p-1")
    send(agent, None, "UserPromptSubmit", prompt="Another that was queued", prompt_id="p-1")
    send(agent, None, "UserPromptSubmit", prompt="Fix it", prompt_id="p-2")
    session = agent.session()
    assert session.state.get("agent_session/prompts") == 3
    assert [one.note for one in session.checkpoints()] == [
        "Fix it",
        "Another that was queued",
        "Fix it",
    ]


def test_a_prompt_that_a_late_helper_sends_again_is_one_prompt(agent: CodingAgent) -> None:
    """Its client gave up, recorded it itself, and the turn went on before the helper woke up."""
    prompt = {"prompt": "Fix it", "prompt_id": "p-1"}
    send(agent, "a", "UserPromptSubmit", **prompt)
    send(agent, "b", "PostToolBatch", tool_calls=[])
    send(agent, "a", "UserPromptSubmit", **prompt)
    assert agent.session().state.get("agent_session/prompts") == 1


def test_a_compaction_that_two_hooks_tell_of_has_one_checkpoint(agent: CodingAgent) -> None:
    compaction = {"trigger": "auto", "prompt_id": "p-1"}
    for id in (None, "a", "b"):
        send(agent, id, "PreCompact", **compaction)
    send(agent, None, "PreCompact", agent_id="a-1", **compaction)
    send(agent, None, "PostToolBatch", tool_calls=[])
    send(agent, None, "PreCompact", **compaction)
    assert [one.kind for one in agent.session().checkpoints()] == ["pre_operation"] * 3


def test_each_compaction_of_a_subagent_has_a_checkpoint(agent: CodingAgent) -> None:
    """A subagent may work for hours in one call of the main agent, which has no batch meanwhile."""
    compaction = {"trigger": "auto", "prompt_id": "p-1", "agent_id": "a-1"}
    for _ in range(3):
        send(agent, None, "PreCompact", **compaction)
        send(agent, None, "PreCompact", **compaction)  # of another hook
        send(agent, None, "PostToolBatch", agent_id="a-2", tool_calls=[])
        send(agent, None, "PreCompact", **compaction)
        send(agent, None, "PostToolBatch", agent_id="a-1", tool_calls=[])
    assert [one.kind for one in agent.session().checkpoints()] == ["pre_operation"] * 3


@pytest.mark.parametrize("event", ["PostToolBatch", "Stop", "StopFailure"])
def test_the_same_text_later_in_a_turn_is_another_prompt(agent: CodingAgent, event: str) -> None:
    """Claude Code gives prompts that are typed during a turn the id of the turn's first one."""
    go_on = {"prompt": "go on", "prompt_id": "p-1"}
    send(agent, None, "UserPromptSubmit", **go_on)
    send(agent, None, "PostToolBatch", agent_id="a-1", tool_calls=[])  # a subagent in between
    send(agent, None, "UserPromptSubmit", **go_on)
    assert agent.session().state.get("agent_session/prompts") == 1
    send(agent, "a", event, tool_calls=[])
    send(agent, None, "UserPromptSubmit", **go_on)
    send(agent, "b", "UserPromptSubmit", **go_on)
    assert agent.session().state.get("agent_session/prompts") == 2


def test_events_without_an_id_are_all_recorded(agent: CodingAgent) -> None:
    for _ in range(2):
        send(agent, None, "UserPromptSubmit", prompt="Fix it")
    assert agent.session().state.get("agent_session/prompts") == 2


def test_a_call_of_an_agent_that_gives_no_ids_is_recorded_once(agent: CodingAgent) -> None:
    for id in ("a", "a", "b"):
        send(agent, id, "PreToolUse", tool_name="shell", tool_input={"command": "ls"})
    assert [call.id for call in agent.session().tools.list()] == ["a", "b"]


def test_only_the_last_ids_are_kept(agent: CodingAgent) -> None:
    for number in range(20):
        send(agent, str(number), "Stop")
    handled = agent.session().state.get("agent_session/handled")
    assert handled == [str(number) for number in range(4, 20)]
