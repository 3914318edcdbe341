"""Hooks that call the MCP server in the real Claude Code, with the server, without it, and both."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mulligan import procfs
from mulligan.resident.install import install_client
from mulligan.resident.version import version
from tests.agents.conftest import ClaudeCode, Terminal
from tests.agents.limits import PATIENCE
from tests.agents.model_server import ModelServer, text, tool
from tests.agents.test_claude_code import Until, shell, taken

MULLIGAN = str(Path(sys.executable).with_name("mulligan"))

ALONE = {"SessionStart", "SubagentStart", "SessionEnd"}
"""The events at which hooks call no server."""

Commands = Callable[[], list[str]]


@pytest.fixture
def commands(claude: ClaudeCode) -> Commands:
    """Install hooks beside the server; return which events commands recorded, in order."""
    claude.add_server()
    claude.install()
    log, script = claude.home / "recorded-by-commands", claude.home / "record"
    script.write_text(
        "#!/bin/sh\n"
        'data=$(cat); printf "%s\\n" "$data" >> ' + shlex.quote(str(log)) + "\n"
        f'printf "%s" "$data" | {shlex.quote(MULLIGAN)} hook "$@"\n'
    )
    script.chmod(0o700)
    # In the place of the command that clients become without a helper, which it never starts.
    install_client(claude.home / ".local/state/mulligan", version(), [str(script)])

    def recorded() -> list[str]:
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line)["hook_event_name"] for line in lines]

    return recorded


def servers(agent: int) -> list[int]:
    """Return the MCP servers of ours that a process has started."""
    found = ((pid, procfs.stat(pid)) for pid in procfs.pids())
    own = [pid for pid, stat in found if stat is not None and stat.parent == agent]
    return [pid for pid in own if procfs.command(pid).endswith("mulligan mcp")]


def deny_touch(claude: ClaudeCode, approval: str = "deny") -> None:
    with claude.store() as store:
        config = Path(str(store.path)) / "config.toml"
    config.write_text(f'[[effects.rules]]\nname = "Bash(touch *)"\napproval = "{approval}"\n')


def test_commands_do_nothing_while_the_server_is_there(
    claude: ClaudeCode, model: ModelServer, commands: Commands
) -> None:
    inner = model.prompt("inner", [shell("echo s > s.txt")], [text("inner done")])
    task = tool("Task", description="sub", subagent_type="general-purpose", prompt=inner)
    turns = [[shell("echo 1 > one"), shell("echo 2 > two")], [task], [shell("false")]]
    claude.run(model.prompt("outer", *turns, [text("done")]))
    (id,) = claude.ids()
    claude.run("/compact", "--resume", id)
    # While the server is about to connect, an agent waits with the call of it, not with commands.
    assert set(commands()) <= {*ALONE, "UserPromptSubmit", "PreCompact"}
    session = claude.session()
    kinds = [c.kind for c in session.checkpoints()]
    ended = [c for c in session.checkpoints() if c.note == "a task in the background ended"]
    prompts = session.state.get("agent_session/prompts")
    assert (kinds.count("prompt") - len(ended), prompts) == (1, 1)
    assert kinds.count("pre_operation") == 1
    statuses = sorted(call.status for call in session.tools.list())
    assert statuses == ["failed"] + ["returned"] * 4
    assert claude.notes() == ""


def test_a_prompt_that_waits_for_the_server_is_recorded_once(
    claude: ClaudeCode, model: ModelServer, commands: Commands
) -> None:
    """The agent calls the server once that is there; the command has recorded it by then."""
    config = claude.home / ".claude.json"
    known = json.loads(config.read_text())
    log = shlex.quote(str(claude.home / "recorded-by-commands"))
    late = f"while ! grep -q UserPromptSubmit {log}; do sleep 0.1; done; {MULLIGAN} mcp; true"
    server = {"type": "stdio", "command": "sh", "args": ["-c", late], "env": {}}
    known["projects"][str(claude.project)]["mcpServers"]["mulligan"] = server
    config.write_text(json.dumps(known))
    claude.run(model.prompt("late", [shell("echo 1 > one")], [text("done")]))
    assert commands() == ["SessionStart", "UserPromptSubmit", "SessionEnd"]
    session = claude.session()
    assert taken(session) == [("prompt", 0), ("tools", 0)]
    assert session.state.get("agent_session/prompts") == 1
    assert [call.status for call in session.tools.list()] == ["returned"]
    assert {c.actor for c in session.checkpoints()} == {"claude"}, "the shell is not the agent"
    assert claude.notes() == ""


@pytest.mark.parametrize("way", ["gone", "turned off", "moved", "not accepted"])
def test_all_is_recorded_without_the_server(
    claude: ClaudeCode, model: ModelServer, commands: Commands, way: str
) -> None:
    config = claude.home / ".claude.json"
    known = json.loads(config.read_text())
    project = known["projects"][str(claude.project)]
    if way == "turned off":
        project["disabledMcpServers"] = ["mulligan"]
    else:
        server = project["mcpServers"].pop("mulligan")
        if way == "moved":
            project["mcpServers"]["mulligan"] = {**server, "command": "/nowhere/mulligan"}
        elif way == "not accepted":
            shared = {"mcpServers": {"mulligan": server}}
            (claude.project / ".mcp.json").write_text(json.dumps(shared))
            settings = claude.project / ".claude/settings.local.json"
            off = {"disabledMcpjsonServers": ["mulligan"]}
            settings.write_text(json.dumps(json.loads(settings.read_text()) | off))
    config.write_text(json.dumps(known))
    deny_touch(claude)
    turns = [[shell("echo 1 > one"), shell("touch never")], [shell("echo 2 > two")]]
    assert "all done" in claude.run(model.prompt("alone", *turns, [text("all done")]))
    session = claude.session()
    assert taken(session) == [("prompt", 0), ("tools", 0), ("tools", 0)]
    statuses = [call.status for call in session.tools.list()]
    assert statuses == ["returned", "failed", "returned"]
    assert not (claude.project / "never").exists()
    assert {"UserPromptSubmit", "PreToolUse", "PostToolBatch", "Stop"} <= set(commands())
    done = claude.mulligan("doctor")
    assert (done.returncode, "without it, slower" in done.stdout) == (105, True), done
    assert claude.notes() == ""


def test_all_is_recorded_when_the_server_is_killed_in_the_middle(
    claude: ClaudeCode, model: ModelServer, commands: Commands, until: Until
) -> None:
    deny_touch(claude)
    fifo = claude.project.parent / "fifo"
    os.mkfifo(fifo)
    turns: list[list[dict[str, Any]]] = [
        [shell("echo 1 > one")],
        [shell(f"echo 2 > two; read line < {fifo}")],
        [shell("echo 3 > three"), shell("touch never")],
        [text("all done")],
    ]
    started = claude.start(model.prompt("killed", *turns))
    until((claude.project / "two").exists)
    (server,) = servers(started.pid)
    before = commands()
    assert set(before) <= {*ALONE, "UserPromptSubmit"}
    os.kill(server, signal.SIGKILL)
    until(lambda: server not in servers(started.pid))
    fifo.write_text("go on\n")
    out, err = started.communicate(timeout=PATIENCE)
    assert "all done" in out, err
    session = claude.session()
    assert taken(session) == [("prompt", 0)] + [("tools", 0)] * 3
    found = [
        session.files.read(c, name)
        for c, name in zip(session.checkpoints()[1:], ("one", "two", "three"), strict=True)
    ]
    assert found == [b"1\n", b"2\n", b"3\n"]
    statuses = [call.status for call in session.tools.list()]
    assert statuses == ["returned", "returned", "returned", "failed"]
    assert not (claude.project / "never").exists()
    assert claude.notes() == ""


def test_a_denial_through_the_server_comes_once(
    claude: ClaudeCode, model: ModelServer, commands: Commands
) -> None:
    deny_touch(claude)
    turns = [[shell("echo 1 > one")], [shell("touch never")], [text("understood")]]
    claude.run(model.prompt("denied", *turns))
    assert not (claude.project / "never").exists()
    assert claude.session().tools.get("toolu_denied_1_0").status == "failed"
    assert "PreToolUse" not in commands()
    told = json.dumps(model.requests[-1]["messages"])
    assert told.count("says so (approval") == 1
    assert claude.notes() == ""


def test_a_question_through_the_server_is_asked_once(
    claude: ClaudeCode, model: ModelServer, commands: Commands, until: Until
) -> None:
    deny_touch(claude, "ask")
    prompt = model.prompt("asked", [shell("touch allowed")], [text("done")])
    with Terminal(claude) as terminal:
        until(lambda: "SessionStart" in commands())
        terminal.type(prompt)
        until(lambda: terminal.shows(prompt))
        terminal.type("\r")
        until(lambda: terminal.shows("requires confirmation"))
        assert not (claude.project / "allowed").exists()

        def is_allowed() -> bool:
            terminal.type("1")  # again, until the program takes it
            return (claude.project / "allowed").exists()

        until(is_allowed)
        until(lambda: claude.session().tools.list()[0].status == "returned")
    assert "PreToolUse" not in commands()
    assert claude.notes() == ""


def test_two_sessions_of_which_one_has_no_server(
    claude: ClaudeCode, model: ModelServer, commands: Commands
) -> None:
    fifos = [claude.project.parent / f"fifo{number}" for number in range(2)]
    none = claude.home / "none.json"
    none.write_text('{"mcpServers": {}}')
    running = []
    without = ["--strict-mcp-config", "--mcp-config", str(none)]
    for fifo, more in zip(fifos, ([], without), strict=True):
        os.mkfifo(fifo)
        calls = [shell(f"read line < {fifo}")]
        prompt = model.prompt(fifo.name, calls, [text("done")], say=fifo.name)
        running.append(claude.start(prompt, *more))
    for fifo in fifos:  # both are in a call now
        fifo.write_text("go on\n")
    for one in running:
        out, err = one.communicate(timeout=PATIENCE)
        assert "done" in out, err
    for number in range(2):
        session = claude.session(number)
        assert taken(session)[0] == ("prompt", 0)
        assert session.state.get("agent_session/prompts") == 1
        assert [call.status for call in session.tools.list()] == ["returned"]
    assert commands().count("PreToolUse") == 1, "of the one without a server"
    assert claude.notes() == ""
