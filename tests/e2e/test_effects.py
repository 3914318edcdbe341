"""Effects of supervised agents: a restart and a takeover meet what was done before."""

from __future__ import annotations

import sys
from pathlib import Path

import mulligan
from mulligan.supervisor.run import RunOptions, run_team
from mulligan.supervisor.workflow import load

AGENT = """
import os, signal, sys
import mulligan

session = mulligan.attach()
world = {world!r}

def seen(intent):
    with open(world) as file:
        return {{"seen": True}} if intent["to"] in file.read() else False

task = session.tasks.claim()
if task is not None:
    with session.effect("mail.send", {{"to": "ann"}}, check=seen) as effect:
        if not effect.settled:
            with open(world, "a") as file:
                file.write("ann\\n")
            os.kill(os.getpid(), signal.SIGKILL)      # after the act, before its outcome
    session.step("note", lambda: effect.result)
    session.tasks.complete(task.id)
session.agent.update(state="done")
session.close()
"""

WORKFLOW = """
session = "main"
[agents.sender]
command = {command}
backoff = {{ initial = "1ms" }}
"""


def test_an_agent_that_was_killed_in_its_act_does_not_repeat_it(tmp_path: Path) -> None:
    world = tmp_path / "world"
    world.touch()
    (tmp_path / "agent.py").write_text(AGENT.format(world=str(world)))
    command = f"[{sys.executable!r}, {str(tmp_path / 'agent.py')!r}]"
    (tmp_path / "team.toml").write_text(WORKFLOW.format(command=command))
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("main")
        session.tasks.add("Tell Ann", id="tell")
        variables = {"PATH": "/usr/bin:/bin"}
        options = RunOptions(variables=variables, with_files=False)
        outcome = run_team(store, "main", load(tmp_path / "team.toml"), options)
        assert outcome.status == "done"
        assert world.read_text() == "ann\n"
        [effect] = session.effects
        assert (effect.status, effect.agent, effect.task) == ("done", "sender", "tell")
        assert effect.result == {"seen": True}
        assert session.tasks.get("tell").attempts == 2
        settled = next(event for event in session.events() if event.kind == "effect.settled")
        assert settled.payload["by"] == "check"
