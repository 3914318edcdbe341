"""Every event of a coding agent leaves its session as it should."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mulligan
from mulligan.coding.agent_session import agent_session
from mulligan.coding.transcripts import transcript
from mulligan.coding.transcripts.transcript import NewEntries, Progress
from mulligan.recovery.detect import interrupted
from mulligan.recovery.plan import plan_resume
from mulligan.recovery.resume import resume
from mulligan.store import engine_of
from mulligan.upkeep.retention.policy import Policy
from mulligan.upkeep.retention.prune import Pruner
from tests.coding_agent import CodingAgent


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[CodingAgent]:
    """An agent with a store, and a process of its own."""
    made = CodingAgent(tmp_path, own_process=True)
    made.make_store()
    yield made
    made.close()


def test_a_prompt_has_a_checkpoint_of_the_files_before_it(agent: CodingAgent) -> None:
    (agent.project / "a").write_text("1")
    agent.hook("UserPromptSubmit", prompt="Please  fix\nthe bug", prompt_id="p1")
    (agent.project / "a").write_text("2")
    agent.batch("t1")
    session = agent.session()
    prompt, batch = session.checkpoints()
    assert (prompt.kind, prompt.note) == ("prompt", "Please fix the bug")
    assert prompt.data == {"event": "UserPromptSubmit", "prompt": 0, "prompt_id": "p1"}
    assert batch.data == {
        "event": "PostToolBatch",
        "prompt": 0,
        "prompt_id": "p1",
        "calls": ["t1"],
    }
    assert session.files.read(prompt, "a") == b"1"
    assert session.files.read(batch, "a") == b"2"
    assert not agent.notes()


def test_the_note_of_a_batch_names_files_by_their_path_in_the_project(agent: CodingAgent) -> None:
    (agent.project / "a").write_text("1")
    calls = [
        {"tool_name": "Write", "tool_input": {"file_path": f"{agent.project}/src/a.py"}},
        {"tool_name": "Read", "tool_input": {"file_path": "/etc/hosts"}},
    ]
    agent.hook("PostToolBatch", tool_calls=calls)
    assert agent.session().checkpoints()[-1].note == "Write src/a.py, Read /etc/hosts"


def test_new_transcript_lines_are_in_the_checkpoint_of_their_batch(agent: CodingAgent) -> None:
    agent.hook("UserPromptSubmit", prompt="one")
    agent.say({"n": 1}, {"n": 2})
    (agent.project / "a").write_text("1")
    agent.batch("t1")
    agent.say({"n": 3})
    agent.hook("UserPromptSubmit", prompt="two")
    session = agent.session()
    assert session.state.get("conversation") == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert len(session.state.at(session.checkpoints()[1]).get("conversation")) == 2
    assert session.checkpoints()[-1].data["prompt"] == 1


def test_a_rewritten_transcript_replaces_the_conversation(agent: CodingAgent) -> None:
    agent.say({"n": 1}, {"n": 2}, {"n": 3})
    agent.hook("Stop")
    agent.transcript.unlink()
    agent.say({"n": 1}, {"n": 9})
    agent.hook("Stop")
    assert agent.session().state.get("conversation") == [{"n": 1}, {"n": 9}]


def test_a_restore_goes_on_from_the_transcript_of_its_point(agent: CodingAgent) -> None:
    agent.say({"n": 1})
    agent.hook("UserPromptSubmit", prompt="one")
    agent.say({"n": 2})
    agent.hook("Stop")
    session = agent.session()
    session.restore(session.checkpoints()[0], ["conversation", "agent_session"])
    assert session.state.get("conversation") == [{"n": 1}]
    agent.hook("Stop")
    assert session.state.get("conversation") == [{"n": 1}, {"n": 2}]


def test_a_conversation_that_was_restored_alone_is_read_again(agent: CodingAgent) -> None:
    agent.say({"n": 1})
    agent.hook("UserPromptSubmit", prompt="one")
    agent.say({"n": 2})
    agent.hook("Stop")
    session = agent.session()
    session.restore(session.checkpoints()[0], ["conversation"])
    agent.say({"n": 3})
    agent.hook("Stop")
    assert session.state.get("conversation") == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_turn_that_changes_no_file_takes_no_checkpoint(agent: CodingAgent) -> None:
    (agent.project / "a").write_text("1")
    agent.hook("UserPromptSubmit", prompt="What is in it?")
    before = agent.session().head.seq
    agent.say({"n": 1})
    agent.batch("t1")
    agent.hook("Stop")
    session = agent.session()
    assert len(session.checkpoints()) == 1
    assert session.state.get("conversation") == [{"n": 1}]
    assert session.head.seq > before
    (agent.project / "a").write_text("2")
    agent.batch("t2")
    assert len(session.checkpoints()) == 2


def test_a_call_is_durable_before_it_runs_and_in_doubt_after_a_crash(agent: CodingAgent) -> None:
    agent.hook("UserPromptSubmit", prompt="one")
    agent.call("t1")
    session = agent.session()
    assert session.tools.get("t1").status == "called"
    assert not interrupted(mulligan.open(agent.make_store()))
    agent.kill()
    assert session.tools.get("t1").status == "in_doubt"
    found = interrupted(mulligan.open(agent.make_store()))
    assert [(one.session, [d.call for d in one.in_doubt]) for one in found] == [
        ("claude-s-1", ["t1"])
    ]


def test_a_call_ends_with_its_result_or_its_error(agent: CodingAgent) -> None:
    agent.call("t1")
    agent.returned("t1", tool_response={"stdout": "hi"})
    agent.call("t2")
    agent.hook("PostToolUseFailure", tool_name="Bash", tool_use_id="t2", error="Exit code 1")
    first, second = agent.session().tools.list()
    assert (first.status, first.result) == ("returned", {"stdout": "hi"})
    assert (second.status, second.error) == ("failed", "Exit code 1")


def calls_of(*ids: str) -> list[dict[str, str]]:
    return [{"tool_name": "Bash", "tool_use_id": id} for id in ids]


def test_a_missed_result_is_taken_from_the_batch_or_the_transcript(agent: CodingAgent) -> None:
    agent.call("t1")
    agent.call("t2")
    agent.hook("PostToolBatch", tool_calls=calls_of("t1"), transcript_path=None)
    result = {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True}
    unknown = {"type": "tool_result", "tool_use_id": "t3", "content": "of long ago"}
    agent.say({"message": {"content": [result, unknown]}})
    agent.hook("Stop")
    found = {call.id: call.status for call in agent.session().tools.list()}
    assert found == {"t1": "returned", "t2": "failed"}


def test_a_call_that_was_refused_is_not_recorded_as_done(agent: CodingAgent) -> None:
    agent.call("t1")
    agent.call("t2")
    refused = {"type": "tool_result", "tool_use_id": "t2", "content": "No.", "is_error": True}
    agent.say({"message": {"content": [refused]}})
    agent.batch("t1", "t2")
    second = agent.session().tools.get("t2")
    assert (second.name, second.status, second.error) == ("Bash", "failed", "No.")


def test_a_call_that_the_transcript_tells_of_late_is_ended_by_the_next_hook(
    agent: CodingAgent,
) -> None:
    agent.call("t1")
    agent.call("t2")
    agent.returned("t2")
    assert not agent.transcript.exists(), "the first entries are written late, too"
    agent.batch("t1", "t2", "t3")
    found = {call.id: call.status for call in agent.session().tools.list()}
    assert found == {"t1": "called", "t2": "returned", "t3": "called"}
    for id, is_error in (("t1", True), ("t3", False)):
        result = {"type": "tool_result", "tool_use_id": id, "content": "x", "is_error": is_error}
        agent.say({"message": {"content": [result]}})
    agent.hook("Stop")
    found = {call.id: call.status for call in agent.session().tools.list()}
    assert found == {"t1": "failed", "t2": "returned", "t3": "returned"}


def test_a_result_whose_call_was_missed_is_recorded(agent: CodingAgent) -> None:
    agent.returned("t1")
    agent.returned("t1")
    assert [call.status for call in agent.session().tools.list()] == ["returned"]


def test_calls_without_ids_are_matched_by_what_they_are(agent: CodingAgent) -> None:
    for command in ("one", "two"):
        agent.hook("PreToolUse", tool_name="shell", tool_input={"command": command})
    agent.hook("PostToolUse", tool_name="shell", tool_input={"command": "two"}, tool_response="2")
    found = [(call.args["command"], call.status) for call in agent.session().tools.list()]
    assert found == [("one", "called"), ("two", "returned")]


def test_subagents_have_their_transcripts_and_change_no_prompt(agent: CodingAgent) -> None:
    agent.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
    agent.hook("SubagentStart", agent_id="a1", agent_type="Explore")
    agent.say({"s": 1}, subagent="a1")
    agent.batch("t1", agent_id="a1")
    agent.say({"s": 2}, subagent="a1")
    agent.hook("SubagentStop", agent_id="a1", agent_type="Explore")
    note = "<task-notification>\n<task-id>a1</task-id>"
    agent.hook("UserPromptSubmit", prompt=note, prompt_id="p2")
    session = agent.session()
    assert session.state.get("subagents/a1") == [{"s": 1}, {"s": 2}]
    assert session.checkpoints()[-1].data["prompt"] == 0
    assert session.checkpoints()[-1].note == "a task in the background ended"
    known = agent_session(session)
    assert known is not None
    assert known.prompts == 1
    assert known.subagents["a1"].entries == 2


def test_transcripts_of_subagents_are_read_if_they_have_changed(
    agent: CodingAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, read_new = [], transcript.read_new

    def reading(path: str, since: Progress) -> NewEntries:
        read.append(Path(path).stem)
        return read_new(path, since)

    monkeypatch.setattr(transcript, "read_new", reading)
    for id in ("a1", "a2", "a3"):
        agent.say({"s": id}, subagent=id)
    agent.batch("t1")
    agent.say({"s": "more"}, subagent="a2")
    read.clear()
    agent.batch("t2")
    assert read == ["s-1", "agent-a2"]
    assert agent.session().state.get("subagents/a2") == [{"s": "a2"}, {"s": "more"}]
    assert not agent.notes()


def test_a_transcript_of_a_subagent_that_was_not_read_to_its_end_is_read_on(
    agent: CodingAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript, "MAX_BYTES", 12)
    for number in range(3):
        agent.say({"s": number}, subagent="a1")
    for call in ("t1", "t2", "t3"):
        agent.batch(call)
    assert agent.session().state.get("subagents/a1") == [{"s": 0}, {"s": 1}, {"s": 2}]


def test_a_transcript_of_a_subagent_that_could_not_be_opened_is_tried_again(
    agent: CodingAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.say({"s": 1}, subagent="a1")
    with monkeypatch.context() as busy:
        nothing = NewEntries([], Progress())  # as with too many open files
        busy.setattr(transcript, "read_new", lambda path, since: nothing)
        agent.batch("t1")
    agent.batch("t2")
    assert agent.session().state.get("subagents/a1") == [{"s": 1}]


def test_a_compaction_has_a_checkpoint_before_it(agent: CodingAgent) -> None:
    agent.say({"n": 1})
    agent.hook("PreCompact", trigger="auto")
    (taken,) = agent.session().checkpoints()
    assert (taken.kind, taken.note) == ("pre_operation", "before compaction (auto)")


def test_a_compaction_in_the_middle_of_a_turn_leaves_the_agent_at_work(agent: CodingAgent) -> None:
    agent.hook("SessionStart", source="startup")
    agent.hook("UserPromptSubmit", prompt="one")
    agent.hook("PreCompact", trigger="auto")
    agent.hook("SessionStart", source="compact")
    assert agent.session().state.get("agents/claude/state") == "working"
    agent.hook("Stop")
    agent.hook("PreCompact", trigger="manual")
    agent.hook("SessionStart", source="compact")
    assert agent.session().state.get("agents/claude/state") == "waiting"


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ("PostToolBatch", "tools"),
        ("SubagentStop", "tools"),
        ("Stop", "tools"),
        ("StopFailure", "tools"),
        ("SessionEnd", "routine"),
    ],
)
def test_the_kind_of_a_checkpoint_says_how_long_it_stays(
    agent: CodingAgent, event: str, kind: str
) -> None:
    agent.hook("UserPromptSubmit", prompt="one")
    (agent.project / "a").write_text("1")
    agent.hook(event, agent_id="a1" if event == "SubagentStop" else None)
    assert [one.kind for one in agent.session().checkpoints()] == ["prompt", kind]


def test_a_file_that_one_batch_made_and_a_later_one_deleted_survives_a_prune(
    agent: CodingAgent,
) -> None:
    agent.hook("UserPromptSubmit", prompt="one")
    (agent.project / "a").write_text("made")
    agent.batch("t1")
    (agent.project / "a").unlink()
    for number in range(5):
        (agent.project / "b").write_text(str(number))
        agent.batch(f"t{number + 2}")
    with mulligan.open(agent.make_store()) as store:
        assert Pruner(engine_of(store), Policy()).run().removed == 0
    session = agent.session()
    assert session.files.read(session.checkpoints()[1], "a") == b"made"


def test_a_session_says_how_it_began_why_a_turn_failed_and_why_it_ended(agent: CodingAgent) -> None:
    for source in ("startup", "resume", "clear", "compact", "fork"):
        agent.hook("SessionStart", source=source)
        assert agent.session().state.get("agents/claude/session_start") == source
    agent.hook("UserPromptSubmit", prompt="one")
    agent.say({"n": 1})
    (agent.project / "a").write_text("1")
    agent.hook("StopFailure", error="rate_limit")
    agent.hook("SessionEnd", reason="clear")
    session = agent.session()
    assert session.state.get("agents/claude/turn_failure") == "rate_limit"
    assert session.state.get("agents/claude/session_end") == "clear"
    failed = session.checkpoints()[-1]
    assert (failed.data["event"], failed.note) == ("StopFailure", "turn failed (rate_limit)")
    assert session.state.at(failed).get("agents/claude/state") == "waiting"
    assert session.state.at(failed).get("conversation") == [{"n": 1}]
    assert not agent.notes()


def test_an_agent_that_ended_in_order_was_not_interrupted(agent: CodingAgent) -> None:
    agent.hook("SessionStart", source="startup")
    agent.hook("UserPromptSubmit", prompt="one")
    agent.hook("Stop")
    agent.hook("SessionEnd", reason="other")
    agent.kill()
    assert not interrupted(mulligan.open(agent.make_store()))
    assert not agent.notes()


def test_a_session_that_is_resumed_goes_on_in_the_same_timeline(tmp_path: Path) -> None:
    first = CodingAgent(tmp_path, own_process=True)
    first.make_store()
    first.hook("UserPromptSubmit", prompt="one")
    first.call("t1")
    first.kill()
    second = CodingAgent(tmp_path, own_process=True)
    second.hook("SessionStart", source="resume")
    second.hook("UserPromptSubmit", prompt="two")
    session = second.session()
    assert [c.data["prompt"] for c in session.checkpoints()] == [0, 1]
    assert session.tools.get("t1").status == "in_doubt"
    assert not second.notes()
    first.close()
    second.close()


def test_an_agent_that_goes_on_after_a_recovery_is_interrupted_no_longer(tmp_path: Path) -> None:
    first = CodingAgent(tmp_path, own_process=True)
    first.make_store()
    first.hook("UserPromptSubmit", prompt="one")
    first.kill()
    with mulligan.open(first.make_store()) as store, store.session("claude-s-1") as session:
        resume(store, session, plan_resume(session))
        assert session.state.get("agents/claude/last_action") == "interrupted"
    second = CodingAgent(tmp_path, own_process=True)
    second.hook("UserPromptSubmit", prompt="two")
    assert second.session().state.get("agents/claude/last_action", None) is None
    first.close()
    second.close()


def test_one_session_open_in_two_agents_is_recorded_for_both(tmp_path: Path) -> None:
    agents = [CodingAgent(tmp_path, own_process=True) for _ in range(2)]
    agents[0].make_store()
    for number, agent in enumerate(agents):
        agent.hook("UserPromptSubmit", prompt=f"of {number}")
    assert [c.note for c in agents[0].session().checkpoints()] == ["of 0", "of 1"]
    assert not agents[0].notes()
    for agent in agents:
        agent.close()


def test_two_sessions_in_one_directory_have_a_timeline_each(tmp_path: Path) -> None:
    one, two = CodingAgent(tmp_path, "one"), CodingAgent(tmp_path, "two")
    one.make_store()
    one.hook("UserPromptSubmit", prompt="first")
    two.hook("UserPromptSubmit", prompt="second")
    (one.project / "a").write_text("1")
    one.batch("t1")
    assert len(one.session().checkpoints()) == 2
    assert [c.note for c in two.session().checkpoints()] == ["second"]


def test_hooks_at_the_same_time_record_every_line_once(agent: CodingAgent) -> None:
    agent.say(*({"n": n} for n in range(50)))
    with ThreadPoolExecutor(4) as pool:
        for number in range(12):
            agent.say({"n": 50 + number})
            pool.submit(agent.batch, f"t{number}")
    agent.hook("Stop")
    assert agent.session().state.get("conversation") == [{"n": n} for n in range(62)]
    assert not agent.notes()


def test_an_agent_whose_process_is_unknown_is_recorded_without_a_lease(agent: CodingAgent) -> None:
    del agent.variables["CLAUDE_PID"]
    agent.hook("UserPromptSubmit", prompt="one")
    agent.call("t1")
    agent.returned("t1")
    session = agent.session()
    assert session.tools.get("t1").status == "returned"
    assert session.internal.lease_of("claude") is None


def test_large_results_beside_the_transcript_are_kept_once(agent: CodingAgent) -> None:
    agent.hook("UserPromptSubmit", prompt="one")
    beside = agent.transcript.with_suffix("") / "tool-results"
    beside.mkdir(parents=True)
    (beside / "b1.txt").write_bytes(b"very long \xff")
    (beside / "link.txt").symlink_to("b1.txt")
    (beside / ".hidden").write_bytes(b"x")
    os.mkfifo(beside / "fifo.txt")
    agent.hook("Stop")
    assert agent.session().state.get("tool_results") == {"b1.txt": b"very long \xff"}
    head = agent.session().head.seq
    agent.hook("Stop")
    events = agent.session().events(since=head)
    assert [one for one in events if "tool_results" in str(one.payload)] == []
    (beside / "b1.txt").write_bytes(b"very long, and longer")
    agent.hook("Stop")
    assert agent.session().state.get("tool_results/b1.txt") == b"very long, and longer"
    assert not agent.notes()
