"""Real agents without hooks: `run --watch`, and `up` with `watch`, take checkpoints at prompts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.agents.limits import PATIENCE
from tests.agents.model_server import ModelServer, text
from tests.agents.other_agents import OtherAgent

Until = Callable[[Callable[[], Any]], Any]
Wrap = Callable[[OtherAgent, list[str]], list[str]]


def with_run(agent: OtherAgent, command: list[str]) -> list[str]:
    """Return how a command is run and watched."""
    return ["run", "--watch", "--", *command]


def with_up(agent: OtherAgent, command: list[str]) -> list[str]:
    """Return how the same is done by a team of one agent."""
    file = agent.home / "team.toml"
    variables = "".join(f"{key} = {json.dumps(value)}\n" for key, value in agent.variables.items())
    lines = [
        f"workspace = {json.dumps(str(agent.project))}",
        "watch = true",
        "[agents.one]",
        f"command = {json.dumps(command)}",
        f"directory = {json.dumps(str(agent.project))}",
        'restart = "never"',
        "[agents.one.env]",
    ]
    file.write_text("\n".join(lines) + "\n" + variables)
    return ["up", str(file)]


def run_watched(
    agent: OtherAgent, until: Until, name: str, resume: Sequence[str] = (), wrap: Wrap = with_run
) -> None:
    """Run the agent with a prompt; its tool waits until the prompt has a checkpoint."""
    fifo = agent.home / f"fifo-{name}"
    os.mkfifo(fifo)
    call = agent.shell_call(f"read line < {fifo}; echo {name} > {name}")
    prompt = agent.prompt(f"say {name}", [call], [text("done")])
    words = [
        sys.executable,
        "-m",
        "mulligan",
        *wrap(agent, agent.command(prompt, resume)),
    ]
    before = len(prompts(agent))
    started = subprocess.Popen(
        words,
        cwd=agent.project,
        env=agent.variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    until(lambda: len(prompts(agent)) > before or started.poll() is not None)
    assert started.poll() is None, started.communicate()[0]
    fifo.write_text("go on\n")
    out, _ = started.communicate(timeout=PATIENCE)
    assert started.returncode == 0, out


def prompts(agent: OtherAgent) -> list[str]:
    """Return what the prompts say that have a checkpoint."""
    with agent.store() as store:
        sessions = store.sessions(prefix=f"{agent.name}-")
        return [str(one.note) for each in sessions for one in each.checkpoints(kind="prompt")]


@pytest.mark.parametrize("wrap", [with_run, with_up])
def test_prompts_have_checkpoints_and_can_be_gone_back_to(
    agent: OtherAgent, model: ModelServer, until: Until, wrap: Wrap
) -> None:
    agent.mulligan("uninstall", agent.name)
    run_watched(agent, until, "one", wrap=wrap)
    id = agent.mulligan("rewind")["agent_session"]
    run_watched(agent, until, "two", agent.resume_command(id).split()[1:], wrap)
    assert agent.files() == {"one": "one", "two": "two"}
    session = agent.session()
    said = session.state.get("conversation")
    known = session.state.get("agent_session")
    with open(known["transcript"]) as file:
        assert said == [json.loads(line) for line in file]
    found = agent.mulligan("rewind", "--to", "2")
    assert agent.files() == {"one": "one"}
    agent.resume(found["command"], "say other", [text("done")])
    assert model.seen() == ["one", "other"]
