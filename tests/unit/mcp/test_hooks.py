"""The tool that hooks of Claude Code call records what a command would."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan.coding.mcp_input import ARGUMENTS
from mulligan.errors import UnsafeHelper
from mulligan.mcp.hooks import ClaudeHook, HookReply
from mulligan.mcp.project import Settings
from tests.coding_agent import CodingAgent
from tests.unit.mcp.conftest import Connection, Handler


@pytest.fixture
def agent(tmp_path: Path) -> CodingAgent:
    """An agent with a store."""
    made = CodingAgent(tmp_path)
    made.make_store()
    return made


@pytest.fixture
def client(agent: CodingAgent, tmp_path: Path) -> Any:
    """The server that the agent started, which is a child of its process."""
    variables = {k: v for k, v in agent.variables.items() if k != "CLAUDE_PID"}
    hook = ClaudeHook(variables, int(agent.variables["CLAUDE_PID"]))
    connection = Connection(Settings(agent.project, tmp_path / "state" / "mulligan"), hook)
    yield connection
    if connection.is_open:
        connection.end()


def hook(client: Connection, agent: CodingAgent, event: str, **fields: str) -> Any:
    known = {
        "hook_event_name": event,
        "session_id": agent.id,
        "transcript_path": str(agent.transcript),
        "cwd": str(agent.project),
    }
    given = {name: (known | fields).get(name, "") for name in ARGUMENTS}
    return client.ask("tools/call", name="hook", arguments=given)["result"]


def test_a_prompt_is_a_checkpoint_of_the_conversation_and_its_session_the_default_one(
    client: Connection, agent: CodingAgent
) -> None:
    (agent.project / "a").write_text("1")
    result = hook(client, agent, "UserPromptSubmit", prompt="Fix it")
    assert result["content"] == [{"type": "text", "text": ""}]
    (entry,) = client.call("log")["entries"]
    assert (entry["note"], entry["files"]) == ("Fix it", 1)
    assert client.call("log")["session"] == agent.session().name


def test_a_call_is_durable_before_it_runs_and_a_batch_takes_a_checkpoint(
    client: Connection, agent: CodingAgent
) -> None:
    hook(client, agent, "UserPromptSubmit", prompt="Fix it")
    call = {"tool_name": "Bash", "tool_use_id": "t1", "tool_input": '{"command": "ls"}'}
    hook(client, agent, "PreToolUse", **call)
    (known,) = agent.session().tools.list()
    assert (known.id, known.args, known.status) == ("t1", {"command": "ls"}, "called")
    (agent.project / "new").write_text("x")
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
    agent.say({"message": {"content": [result]}})
    calls = '[{"tool_name": "Bash", "tool_input": {}, "tool_use_id": "t1", "tool_response": "ok"}]'
    hook(client, agent, "PostToolBatch", tool_calls=calls)
    (known,) = agent.session().tools.list()
    assert (known.status, known.result) == ("returned", "ok")
    assert client.call("read_file", path="new")["content"] == "x"


def test_a_decision_reaches_the_agent(client: Connection, agent: CodingAgent) -> None:
    rule = '[[effects.rules]]\nname = "Bash(rm *)"\napproval = "ask"\n'
    (agent.make_store() / "config.toml").write_text(rule)
    call = {"tool_name": "Bash", "tool_use_id": "t1", "tool_input": '{"command": "rm -rf /"}'}
    result = hook(client, agent, "PreToolUse", **call)
    assert '"permissionDecision":"ask"' in result["content"][0]["text"]


def test_what_goes_wrong_is_a_note_and_no_error(client: Connection, agent: CodingAgent) -> None:
    result = hook(client, agent, "NewEvent")
    assert (result["isError"], result["content"][0]["text"]) == (False, "")
    assert "NewEvent" in agent.notes()
    assert client.ask("tools/call", name="hook", arguments=[])["result"]["isError"] is False


def test_files_are_restored_by_a_plan_although_hooks_record_the_calls(
    client: Connection, agent: CodingAgent
) -> None:
    """The hooks of the very call that restores write to the session after the plan was made."""
    (agent.project / "a").write_text("1")
    hook(client, agent, "UserPromptSubmit", prompt="Fix it")
    (agent.project / "a").write_text("2")
    plan = client.call("plan_restore", point="@latest")["plan_id"]
    hook(client, agent, "PostToolBatch", tool_calls="[]")
    call = {"tool_name": "mcp__mulligan__restore", "tool_use_id": "t9", "tool_input": "{}"}
    hook(client, agent, "PreToolUse", **call)
    done = client.call("restore", plan_id=plan)
    assert done["problems"] == []
    assert (agent.project / "a").read_text() == "1"


def test_an_agent_that_runs_in_another_one_is_not_taken_for_that(agent: CodingAgent) -> None:
    """Its server has the variables of its agent, and so that of the outer one."""
    variables = {**agent.variables, "CLAUDE_PID": str(os.getppid())}
    hook = ClaudeHook(variables, os.getpid())
    given = {"hook_event_name": "UserPromptSubmit", "session_id": agent.id}
    hook.handle({**given, "cwd": str(agent.project), "prompt": "Fix it"})
    lease = agent.session().internal.lease_of("claude")
    hook.close()
    assert lease is not None
    assert lease.holder.process == os.getpid()


class Lock:
    """A lock that another server has at first, or that cannot be taken at all."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.released = 0

    def take(self) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def release(self) -> None:
        self.released += 1


def test_events_are_handled_here_from_the_first_one_to_the_end_of_the_input(
    agent: CodingAgent, tmp_path: Path
) -> None:
    told: list[str] = []
    handler = Handler(lambda arguments: told.append("event") or HookReply(""))
    handler.said = told
    client = Connection(Settings(agent.project, tmp_path / "state" / "mulligan"), handler)
    client.ask("initialize", protocolVersion="2025-06-18", capabilities={})
    client.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    client.ask("tools/list")
    client.ask("ping")
    assert told == [], "its hooks may call another server, or none"
    for _ in range(2):
        client.ask("tools/call", name="hook", arguments={})
    assert told == ["serve", "event"] * 2, "another server may have ended meanwhile"
    client.end()
    assert told[4:] == ["retire", "close"]


def test_the_lock_is_tried_again_until_the_input_ends(agent: CodingAgent) -> None:
    lock = Lock(False, True)
    hook = ClaudeHook(agent.variables, os.getpid(), lock)
    hook.serve()
    hook.serve()
    assert lock.answers == []
    hook.retire()
    hook.serve()
    assert lock.released == 1
    assert not agent.notes()


@pytest.mark.parametrize("error", [OSError("full"), UnsafeHelper("not of this user")])
def test_a_lock_that_cannot_be_taken_is_noted_once(agent: CodingAgent, error: Exception) -> None:
    hook = ClaudeHook(agent.variables, os.getpid(), Lock(error))
    hook.serve()
    hook.serve()
    assert str(error) in agent.notes()
    assert agent.notes().count("\n") == 1


def test_restores_beside_hooks_lose_nothing_and_end(client: Connection, agent: CodingAgent) -> None:
    """Hooks have a thread of their own: captures and restores meet in one process."""
    file = agent.project / "a"
    file.write_text("first")
    hook(client, agent, "UserPromptSubmit", prompt="0")
    first = client.call("log")["entries"][0]["checkpoint_id"]
    for number in range(1, 8):
        file.write_text(str(number) * 50_000)
        plan = client.call("plan_restore", point=first)["plan_id"]
        given = {"hook_event_name": "UserPromptSubmit", "session_id": agent.id}
        given |= {"cwd": str(agent.project), "prompt": str(number)}
        calls = [("hook", given), ("restore", {"plan_id": plan}), ("hook", given)]
        client.send(
            [
                {
                    "id": f"{number}-{k}",
                    "method": "tools/call",
                    "params": {"name": n, "arguments": a},
                }
                for k, (n, a) in enumerate(calls)
            ]
        )
        replies = {reply["id"]: reply["result"] for reply in client.read()}
        restored = replies[f"{number}-1"]
        assert not restored["isError"] or "PlanOutdated" in restored["content"][0]["text"]
        kept = {agent.session().files.read(c, "a") for c in agent.session().checkpoints()}
        assert str(number).encode() * 50_000 in kept, "a safety checkpoint or a hook has it"
    notes = [c.note for c in agent.session().checkpoints() if c.kind == "prompt"]
    assert notes == ["0", *(str(n) for n in range(1, 8) for _ in range(2))]
    with mulligan.open(agent.make_store(), create=False) as store:
        assert store.verify().ok
    assert not agent.notes()
