"""A hook is killed anywhere: nothing is lost or doubled, and the next one catches up."""

from __future__ import annotations

from pathlib import Path

import pytest

import mulligan
from mulligan.coding.hooks import HookRunner
from mulligan.failpoints import Failpoint
from mulligan.testing.failpoints import kill_at
from tests.children import Tell, run_child
from tests.coding_agent import CodingAgent

POINTS = [
    Failpoint.PACK_FRAME_HALF_WRITTEN,
    Failpoint.PACK_SYNCED,
    Failpoint.JOURNAL_APPENDED,
    Failpoint.JOURNAL_BEFORE_COMMIT,
    Failpoint.JOURNAL_COMMITTED,
]


def killed(agent: CodingAgent, point: Failpoint, data: bytes) -> None:
    """Run a hook in a process of its own that is killed at a failpoint."""

    def body(tell: Tell) -> None:
        with HookRunner(agent.variables, failpoint=kill_at(point)) as runner:
            runner.handle(data)

    assert run_child(body).by_sigkill, f"{point} was not reached"


@pytest.mark.parametrize("point", POINTS)
def test_a_batch_whose_hook_was_killed_is_recorded_once(tmp_path: Path, point: Failpoint) -> None:
    agent = CodingAgent(tmp_path)
    agent.make_store()
    agent.say({"n": 1})
    agent.hook("UserPromptSubmit", prompt="one")
    agent.call("t1")
    (agent.project / "a").write_text("of the batch" * 1000)
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
    agent.say({"n": 2, "long": "x" * 10_000, "message": {"content": [result]}})
    calls = [{"tool_name": "Bash", "tool_use_id": "t1", "tool_response": "ok"}]
    killed(agent, point, agent.json("PostToolBatch", tool_calls=calls))
    agent.say({"n": 3})
    agent.batch("t1")
    agent.hook("Stop")
    session = agent.session()
    assert [entry["n"] for entry in session.state.get("conversation")] == [1, 2, 3]
    assert session.tools.get("t1").status == "returned"
    assert session.files.read(session.checkpoints()[-1], "a") == b"of the batch" * 1000
    with mulligan.open(agent.make_store()) as store:
        assert store.verify().problems == ()
    assert not agent.notes()


@pytest.mark.parametrize("point", [Failpoint.JOURNAL_BEFORE_COMMIT, Failpoint.TOOL_CALLED])
def test_a_call_whose_hook_was_killed_is_known_or_becomes_known(
    tmp_path: Path, point: Failpoint
) -> None:
    agent = CodingAgent(tmp_path)
    agent.make_store()
    agent.hook("UserPromptSubmit", prompt="one")
    call = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "t1"}
    killed(agent, point, agent.json("PreToolUse", **call))
    agent.returned("t1")
    assert agent.session().tools.get("t1").status == "returned"


def test_an_end_whose_hook_was_killed_leaves_a_session_that_can_be_resumed(tmp_path: Path) -> None:
    agent = CodingAgent(tmp_path, own_process=True)
    agent.make_store()
    agent.hook("UserPromptSubmit", prompt="one")
    killed(agent, Failpoint.JOURNAL_COMMITTED, agent.json("SessionEnd", reason="other"))
    agent.kill()
    again = CodingAgent(tmp_path, own_process=True)
    again.hook("SessionStart", source="resume")
    again.hook("UserPromptSubmit", prompt="two")
    assert [c.note for c in again.session().checkpoints()] == ["one", "two"]
    assert not again.notes()
    agent.close()
    again.close()
