"""`mulligan hook`, as an agent runs it: JSON on stdin, exit code 0 whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mulligan.views.sessions import agent_views
from tests.cli.conftest import Cli
from tests.coding_agent import CodingAgent

COMMAND = [sys.executable, "-c", "from mulligan.cli.entry import main; main()", "hook"]


@pytest.fixture
def agent(tmp_path: Path) -> CodingAgent:
    """An agent with a store."""
    made = CodingAgent(tmp_path)
    made.make_store()
    return made


def run(agent: CodingAgent, data: bytes, *args: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *args], input=data, env=agent.variables, capture_output=True, cwd=agent.home
    )


def test_a_hook_records_and_says_nothing(agent: CodingAgent) -> None:
    (agent.project / "a").write_text("1")
    done = run(agent, agent.json("UserPromptSubmit", prompt="Fix it"))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert [c.note for c in agent.session().checkpoints()] == ["Fix it"]


def test_the_process_that_hooks_record_for_is_shown(agent: CodingAgent) -> None:
    run(agent, agent.json("UserPromptSubmit", prompt="hi"))
    (view,) = agent_views(agent.session())
    assert (view["is_alive"], view["process_id"]) == (True, os.getpid())


def test_a_resume_names_the_command_that_continues_the_conversation(tmp_path: Path) -> None:
    agent = CodingAgent(tmp_path, own_process=True)
    agent.make_store()
    agent.transcript.write_text("")
    agent.hook("UserPromptSubmit", prompt="Fix it")
    agent.kill()
    done = subprocess.run(
        [*COMMAND[:-1], "resume"], env=agent.variables, cwd=agent.project, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert b"claude --resume s-1`" in done.stdout


@pytest.mark.parametrize("options", [["--later"], ["--later", "3"], ["more", "-x"]])
def test_options_of_another_version_refuse_nothing(agent: CodingAgent, options: list[str]) -> None:
    """Agents take the exit code 2 of a usage error for a refusal of the prompt."""
    done = run(agent, agent.json("UserPromptSubmit", prompt="one"), "claude", *options)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert [one.note for one in agent.session().checkpoints()] == ["one"]


def test_a_hook_replies_with_a_decision(agent: CodingAgent) -> None:
    rule = '[[effects.rules]]\nname = "Bash(rm *)"\napproval = "deny"\n'
    (agent.make_store() / "config.toml").write_text(rule)
    call = {"tool_name": "Bash", "tool_input": {"command": "rm -rf /"}, "tool_use_id": "t1"}
    done = run(agent, agent.json("PreToolUse", **call))
    assert done.returncode == 0
    assert b'"permissionDecision":"deny"' in done.stdout


@pytest.mark.parametrize("data", [b"", b'{"cut', b"[]", b'{"hook_event_name": "New"}'])
def test_bad_json_is_a_note(agent: CodingAgent, data: bytes) -> None:
    done = run(agent, data)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert len(agent.notes().splitlines()) == 1


def test_a_hook_that_takes_too_long_gives_up_and_the_next_one_records_it(
    agent: CodingAgent,
) -> None:
    hook = subprocess.Popen(
        [*COMMAND, "--budget", "0.01"], stdin=subprocess.PIPE, env=agent.variables
    )
    assert hook.wait() == 0, "its input never ends, so only the budget can end it"
    assert "longer than its 0.01 seconds" in agent.notes()
    assert hook.stdin is not None
    hook.stdin.close()
    run(agent, agent.json("Stop"))
    assert agent.session().checkpoints()


def test_an_agent_that_is_gone_reads_no_reply(agent: CodingAgent) -> None:
    hook = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=agent.variables
    )
    assert hook.stdin is not None
    assert hook.stdout is not None
    hook.stdout.close()
    hook.stdin.write(agent.json("Stop"))
    hook.stdin.close()
    assert hook.wait() == 0


def test_the_help_says_who_calls_it(cli: Cli) -> None:
    assert "its hooks call this" in cli("hook", "--help").out
