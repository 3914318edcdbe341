"""The real Codex, Gemini CLI and opencode run real tools, and all of it is on the timeline."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.agents.model_server import text
from tests.agents.other_agents import Codex, OtherAgent

GUIDE = Path(__file__).parents[2] / "docs" / "guide-codex.md"


def test_prompts_calls_and_files_are_recorded(agent: OtherAgent) -> None:
    calls = [agent.shell_call("echo one > one.txt"), agent.shell_call("echo two > two.txt")]
    more = [agent.shell_call("cat one.txt")]
    assert "all done" in agent.run("Make files", calls, more, [text("all done")])
    session = agent.session()
    first, *_, last = session.checkpoints()
    assert first.kind == "prompt"
    assert "Make files" in (first.note or "")
    assert session.files.read(last, "one.txt") == b"one\n"
    assert session.files.read(last, "two.txt") == b"two\n"
    assert [call.status for call in session.tools.list()] == ["returned"] * 3
    assert "all done" in json.dumps(session.state.get("conversation"))
    assert session.state.get(("agents", agent.name, "state")) == "done"
    assert agent.notes() == ""
    agent._run([sys.executable, "-m", "mulligan", "restore", "-s", session.name, first.id, "--yes"])
    assert not (agent.project / "one.txt").exists()


def test_a_rule_denies_a_call(agent: OtherAgent) -> None:
    store = agent.session().internal.engine.directory if agent.run("hello") else None
    assert store is not None
    rules = '[[effects.rules]]\nname = "*(rm *)"\napproval = "ask"\n'
    (store / "config.toml").write_text(rules)
    (agent.project / "precious").write_text("kept")
    agent.run("Remove it", [agent.shell_call("rm precious")], [text("was not allowed")])
    assert (agent.project / "precious").read_text() == "kept"
    assert agent.notes() == ""


@pytest.mark.parametrize("agent", [Codex], indirect=True)
def test_codex_records_in_a_project_that_is_trusted_as_the_guide_says(agent: OtherAgent) -> None:
    config = agent.home / ".codex" / "config.toml"
    settings = config.read_text()
    config.write_text(settings[: settings.index("[projects.")])
    agent.run("Before trust", [text("all done")])  # with the trust in hooks bypassed
    assert not list(agent.store().sessions(prefix="codex-"))
    [block] = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.S)
    with config.open("a") as file:
        file.write(re.sub(r'"/[^"]*"', f'"{agent.project}"', block))
    agent.run("With trust", [text("all done")])
    assert "With trust" in (agent.session().checkpoints()[0].note or "")
