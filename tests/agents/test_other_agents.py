"""The real Codex, Gemini CLI and opencode run real tools, and all of it is on the timeline."""

from __future__ import annotations

import json
import sys

from tests.agents.other_agents import OtherAgent


def test_prompts_calls_and_files_are_recorded(agent: OtherAgent) -> None:
    calls = [agent.shell_call("echo one > one.txt"), agent.shell_call("echo two > two.txt")]
    more = [agent.shell_call("cat one.txt")]
    assert "all done" in agent.run("Make files", calls, more, [{"text": "all done"}])
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
    agent.run("Remove it", [agent.shell_call("rm precious")], [{"text": "was not allowed"}])
    assert (agent.project / "precious").read_text() == "kept"
    assert agent.notes() == ""
