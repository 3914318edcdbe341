"""Codex, Gemini CLI and opencode resume what `mulligan rewind` made, beside its files."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from mulligan.coding.transcripts.transcript_format import INTERRUPTED
from tests.agents.limits import PATIENCE
from tests.agents.model_server import ModelServer, Turn, text
from tests.agents.other_agents import Codex, Gemini, OtherAgent
from tests.children import end_processes_in

Until = Callable[[Callable[[], Any]], Any]

WITHOUT_OPENCODE = pytest.mark.parametrize("agent", [Codex, Gemini], indirect=True)
"""It takes long to start; what is different in it has tests of its own."""


def turns(agent: OtherAgent, name: str) -> tuple[Turn, Turn]:
    """Return the turns of a prompt that has a shell write a file."""
    call = agent.shell_call(f"echo {name} > {name}; echo {name} > newest")
    return [call], [text(f"done {name}")]


def start(agent: OtherAgent, *names: str) -> str:
    """Give prompts, one after another, to one session; return how it is continued."""
    agent.run(f"say {names[0]}", *turns(agent, names[0]))
    command = agent.resume_command(str(agent.mulligan("rewind")["agent_session"]))
    for name in names[1:]:
        go_on(agent, command, name)
    return command


def go_on(agent: OtherAgent, command: str, name: str) -> str:
    return agent.resume(command, f"say {name}", *turns(agent, name))


def rewind(agent: OtherAgent, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = agent.mulligan("rewind", *args)
    return found


def test_both_branches_go_on(agent: OtherAgent, model: ModelServer) -> None:
    old = start(agent, "one", "two")
    listed = rewind(agent)["prompts"]
    assert [one["text"].strip('"').split()[1] for one in listed] == ["one", "two"]
    assert all(one["checkpoint_id"] for one in listed)
    found = rewind(agent, "--to", "2")
    assert agent.files() == {"one": "one", "newest": "one"}
    assert "done other" in go_on(agent, found["command"], "other")
    assert model.seen() == ["one", "other"]
    assert agent.files() == {"one": "one", "other": "other", "newest": "other"}
    undone = rewind(agent, "--undo")
    assert undone["command"] == old
    assert agent.files()["newest"] == "two"
    go_on(agent, old, "three")
    assert model.seen() == ["one", "two", "three"]
    names = {one.name for one in agent.store().sessions(prefix=f"{agent.name}-")}
    assert names == {found["session"], found["new_session"]}, "a branch has a session of its own"
    assert agent.notes() == ""


def test_a_fork_beside_the_present(agent: OtherAgent, model: ModelServer) -> None:
    old = start(agent, "one")
    copy = agent.home / "copy of it"
    agent.trust(copy)
    now = f"#{agent.session().head.seq}"
    found = rewind(agent, "--to", now, "--fork", str(copy))
    go_on(agent, found["command"], "right")
    assert model.seen() == ["one", "right"]
    assert f"This conversation continues in {copy}" in model.last_request()
    go_on(agent, old, "left")
    assert model.seen() == ["one", "left"]
    assert set(agent.files()) == {"one", "left", "newest"}
    assert agent.files(copy) == {"one": "one", "right": "right", "newest": "right"}
    store = agent.store()
    branch = store.session(found["new_session"], create=False)
    assert branch.files.read("@latest", "right") == b"right\n"
    assert agent.notes() == ""


@WITHOUT_OPENCODE
def test_before_the_first_prompt(agent: OtherAgent, model: ModelServer) -> None:
    start(agent, "one")
    found = rewind(agent, "--to", "1")
    assert agent.files() == {}
    go_on(agent, found["command"], "other")
    assert model.seen() == ["other"]
    branch = agent.store().session(found["new_session"], create=False)
    assert branch.files.read("@latest", "other") == b"other\n"
    assert agent.notes() == ""


@WITHOUT_OPENCODE
def test_between_two_calls_of_a_turn(agent: OtherAgent, model: ModelServer) -> None:
    first, second = agent.shell_call("echo 1 > a"), agent.shell_call("echo 2 > a")
    agent.run("say turn", [first], [second], [text("done")])
    taken = agent.session().checkpoints(kind="tools")
    found = rewind(agent, "--to", taken[0].id)
    assert agent.files() == {"a": "1"}
    assert found["closed_calls"] == 0
    go_on(agent, found["command"], "other")
    said = model.last_request()
    assert model.seen() == ["turn", "other"]
    assert "echo 1 > a" in said
    assert "echo 2 > a" not in said
    assert INTERRUPTED not in said
    assert agent.notes() == ""


@WITHOUT_OPENCODE
def test_after_a_kill_in_a_tool(agent: OtherAgent, model: ModelServer, until: Until) -> None:
    command = start(agent, "one")
    fifo = agent.home / "fifo"
    os.mkfifo(fifo)
    call = agent.shell_call(f"echo half > half; read line < {fifo}")
    started = agent.start_resumed(command, "say killed", [call])
    until((agent.project / "half").exists)
    end_processes_in(agent.project)
    started.wait(PATIENCE)
    head = agent.session().head.seq
    now = rewind(agent, "--to", f"#{head}", "--chat")
    go_on(agent, now["command"], "closed")
    assert model.seen() == ["one", "killed", "closed"]
    assert (INTERRUPTED in model.last_request()) == bool(now["closed_calls"])
    found = rewind(agent, now["agent_session"], "--to", "2")
    assert set(agent.files()) == {"one", "newest"}
    go_on(agent, found["command"], "other")
    assert model.seen() == ["one", "other"]
