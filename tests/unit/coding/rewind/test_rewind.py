"""Rewinding an agent: files, conversation or both, with a way back."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from mulligan import Session
from mulligan.coding.agent_session import agent_session
from mulligan.coding.rewind.find_session import find_agent_session
from mulligan.coding.rewind.run import (
    RewindOptions,
    RewindPlan,
    RewindResult,
    What,
    plan_rewind,
    rewind,
    rewound_from,
    undo_rewind,
)
from mulligan.coding.rewind.target import Conversation
from mulligan.coding.transcripts import transcript
from mulligan.coding.transcripts.claude_transcript import is_main
from mulligan.coding.transcripts.transcript_format import INTERRUPTED, encode
from mulligan.errors import CannotRewind, LeftBehind, RestoreBusy
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.testing.failpoints import fail_at, kill_at
from mulligan.testing.stores import open_store
from mulligan.upkeep import delete_checkpoints
from mulligan.workspace.locks import lock_directory
from tests.children import Tell, run_child
from tests.unit.coding.claude_entries import NEW, OLD, new_ids
from tests.unit.coding.recorded import Recorded

COPY = "33333333-3333-4333-8333-333333333333"
"""The id of a session that the agent itself made of a copy."""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Recorded]:
    made = Recorded(tmp_path)
    made.turn("first", "a.txt", "one")
    made.turn("second", "b.txt", "two")
    made.turn("third", "a.txt", "three")
    yield made
    made.session.close()
    made.store.close()


def plan(
    agent: Recorded, to: str, what: What = "both", fork: Path | None = None, **session: Session
) -> RewindPlan:
    ids = new_ids()
    known = iter([NEW])
    options = RewindOptions(what, agent.work, agent.folder, fork)
    found = Conversation(session.get("session", agent.session), agent.store)
    return plan_rewind(found, to, options, lambda: next(known, None) or ids())


def go(agent: Recorded, to: str, what: What = "both", fork: Path | None = None) -> RewindResult:
    return rewind(agent.session, plan(agent, to, what, fork), agent.folder)


def files(work: Path) -> dict[str, str]:
    return {one.name: one.read_text() for one in work.iterdir() if one.name != ".mulligan"}


def written(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def texts(entries: list[Any]) -> list[str]:
    found = [one["message"]["content"] for one in entries if is_main(one)]
    return [one if isinstance(one, str) else one[0].get("text", one[0]["type"]) for one in found]


def test_prompts_have_their_checkpoints_and_what_they_changed(agent: Recorded):
    found = Conversation(agent.session).prompts_with_files()
    assert [(one.number, one.prompt.text) for one in found] == [
        (1, "first"),
        (2, "second"),
        (3, "third"),
    ]
    changes = [[(change.path, change.change) for change in one.files or ()] for one in found]
    assert changes == [[("a.txt", "added")], [("b.txt", "added")], [("a.txt", "changed")]]
    assert all(one.checkpoint and one.checkpoint.kind == "prompt" for one in found)


def test_files_and_conversation_go_back_to_before_a_prompt(agent: Recorded):
    done = go(agent, "2")
    assert files(agent.work) == {"a.txt": "one"}
    path = agent.transcript(agent.work, NEW)
    assert texts(written(path)) == ["first", "tool_use", "tool_result", "done: first"]
    assert done.session == f"claude-{NEW}"
    assert done.plan.target.prompt is not None
    assert done.plan.target.prompt.prompt.text == "second"


def test_the_transcript_belongs_to_its_owner_and_leaves_no_draft(agent: Recorded):
    go(agent, "2")
    path = agent.transcript(agent.work, NEW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(one.name for one in path.parent.iterdir()) == [f"{OLD}.jsonl", f"{NEW}.jsonl"]


def test_the_session_that_is_left_is_as_it_was(agent: Recorded):
    before = agent.path.read_bytes()
    said = agent.session.state.get("conversation")
    go(agent, "1")
    assert agent.path.read_bytes() == before
    assert agent.session.state.get("conversation") == said


def test_the_new_session_is_a_fork_in_which_the_next_hook_continues(agent: Recorded):
    go(agent, "2")
    made = agent.store.session(f"claude-{NEW}", create=False)
    assert made.parent is not None
    assert made.parent.session == agent.session.name
    known = agent_session(made)
    assert known is not None
    assert (known.id, known.cwd, known.prompts) == (NEW, str(agent.work), 1)
    path = agent.transcript(agent.work, NEW)
    assert known.transcript == str(path)
    assert made.state.get("conversation") == written(path)
    assert made.state.get("agents/claude/state") == "waiting"
    # The next hook finds nothing new, and a line that the agent appends is new.
    assert transcript.read_new(path, known.progress).entries == []
    with path.open("ab") as file:
        file.write(b'{"type":"user"}\n')
    assert transcript.read_new(path, known.progress).entries == [{"type": "user"}]


def test_files_alone_make_no_transcript_and_no_session(agent: Recorded):
    done = go(agent, "2", "files")
    assert files(agent.work) == {"a.txt": "one"}
    assert done.session is None
    assert [one.name for one in agent.store.sessions()] == [agent.session.name]
    assert len(list(agent.path.parent.iterdir())) == 1


def test_the_conversation_alone_leaves_the_files(agent: Recorded):
    done = go(agent, "2", "chat")
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}
    assert done.restored is None
    assert texts(written(agent.transcript(agent.work, NEW)))[-1] == "done: first"


def test_a_fork_has_its_own_directory_and_transcript_folder(agent: Recorded, tmp_path: Path):
    copy = tmp_path / "copy"
    done = go(agent, "3", fork=copy)
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}
    assert files(copy) == {"a.txt": "one", "b.txt": "two"}
    path = agent.transcript(copy, NEW)
    assert path.parent != agent.path.parent
    entries = written(path)
    assert {one["cwd"] for one in entries if "cwd" in one} == {str(copy)}
    assert str(copy) in texts(entries)[-1]
    assert done.plan.start == copy
    known = agent_session(agent.store.session(f"claude-{NEW}"))
    assert known is not None
    assert known.cwd == str(copy)


@pytest.mark.parametrize("below", ["", "packages/app"])
def test_a_project_that_was_moved_continues_where_it_is_now(
    agent: Recorded, tmp_path: Path, below: str
):
    moved = tmp_path / "elsewhere"
    agent.start_in(agent.work / below)
    agent.hook("Stop", "tools")
    agent.session.close()
    agent.work.rename(moved)
    session = agent.store.session(agent.session.name, workspace=moved)
    options = RewindOptions("chat", moved, agent.folder)
    found = plan_rewind(Conversation(session), "2", options, lambda: NEW)
    assert found.start == moved / below
    assert found.transcript == agent.transcript(moved / below, NEW)


def test_back_to_before_the_first_prompt_there_is_nothing_to_resume(agent: Recorded):
    done = go(agent, "1")
    assert files(agent.work) == {}
    assert done.plan.entries == []
    assert not agent.transcript(agent.work, NEW).exists()
    known = agent_session(agent.store.session(f"claude-{NEW}"))
    assert known is not None
    assert (known.transcript, known.prompts) == (None, 0)


def test_back_to_a_checkpoint_inside_of_a_turn(agent: Recorded):
    batch = [one for one in agent.session.checkpoints() if one.data["event"] == "PostToolBatch"][1]
    go(agent, batch.id)
    assert files(agent.work) == {"a.txt": "one", "b.txt": "two"}
    said = texts(written(agent.transcript(agent.work, NEW)))
    assert said[-3:] == ["second", "tool_use", "tool_result"]


def test_results_that_the_agent_wrote_late_belong_to_their_batch(agent: Recorded):
    agent.prompt("fourth")
    agent.said.call("late", "late-answer")
    agent.write("c.txt", "four")
    agent.said.result("late")
    batch = agent.hook("PostToolBatch", "tools", lag=1, calls=["late"])
    agent.said.say("done: fourth")
    agent.hook("Stop", "tools")
    made = plan(agent, batch.id)
    assert made.closed == 0
    assert texts(made.entries or [])[-1] == "tool_result"


def test_what_was_said_late_belongs_before_the_next_prompt(agent: Recorded):
    agent.said.say("a last word")
    before = agent.hook("UserPromptSubmit", "prompt", is_prompt=True, lag=1)
    agent.said.prompt("fourth", promptId="p3")
    agent.hook("Stop", "tools")
    for to in ("4", before.id):
        assert texts(plan(agent, to).entries or [])[-1] == "a last word"


def test_a_call_in_progress_is_closed(agent: Recorded):
    agent.prompt("fourth")
    agent.said.call("open", "open-answer")
    point = agent.hook("PreCompact", "pre_operation")
    done = go(agent, point.id)
    assert done.plan.closed == 1
    last = written(agent.transcript(agent.work, NEW))[-2]
    assert last["toolUseResult"] == INTERRUPTED


def test_what_a_crash_left_has_all_that_was_said_before_it(agent: Recorded):
    agent.prompt("killed")
    agent.said.call("running")
    agent.path.write_bytes(encode(agent.said.entries))
    left = agent.session.checkpoint("recovery")
    agent.session.state.set("context/goals", "recovered")
    for later in ("nothing", "a prompt"):
        found = plan(agent, left.id)
        assert texts(found.entries or [])[-3:] == ["killed", "tool_use", "tool_result"], later
        assert (found.closed, found.target.kept) == (1, 4)
        agent.turn("after the crash", "c.txt", "four")


def test_a_deleted_transcript_comes_back_from_the_store(agent: Recorded):
    agent.path.unlink()
    go(agent, "@latest")
    said = texts(written(agent.transcript(agent.work, NEW)))
    assert (said[0], said[-1]) == ("first", "done: third")
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}


def test_undo_brings_the_files_back_and_removes_an_unused_transcript(agent: Recorded):
    go(agent, "2")
    made = agent.store.session(f"claude-{NEW}")
    undo_rewind(agent.session, made)
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}
    assert not agent.transcript(agent.work, NEW).exists()
    known = rewound_from(made)
    assert known is not None
    assert known.undone
    with pytest.raises(CannotRewind, match="was undone"):
        undo_rewind(agent.session, made)


def test_undo_keeps_a_branch_that_was_continued(agent: Recorded):
    go(agent, "2")
    path = agent.transcript(agent.work, NEW)
    with path.open("ab") as file:
        file.write(b'{"type":"user"}\n')
    agent.write("new.txt", "from the branch")
    undo_rewind(agent.session, agent.store.session(f"claude-{NEW}"))
    assert path.exists()
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}
    agent.session.redo()
    assert files(agent.work) == {"a.txt": "one", "new.txt": "from the branch"}


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Recorded]:
    """An agent whose rewind to before the second prompt is killed at its first file."""
    agent = Recorded(tmp_path)
    agent.turn("first", "a.txt", "one")
    agent.turn("second", "b.txt", "two")
    agent.turn("third", "a.txt", "three")
    close(agent)

    def body(_: Tell) -> None:
        reopen(agent, tmp_path, kill_at(Failpoint.RESTORE_RENAMED))
        go(agent, "2")

    assert run_child(body).by_sigkill
    reopen(agent, tmp_path, recover=False)
    assert agent.session.files.pending is not None
    yield agent
    close(agent)


def reopen(
    agent: Recorded, place: Path, failpoint: FailpointHook = ignore, *, recover: bool = True
) -> None:
    agent.store = open_store(place / "store", failpoint=failpoint)
    agent.session = agent.store.session(
        f"claude-{OLD}", workspace=agent.work, actor="claude", recover=recover
    )


def close(agent: Recorded) -> None:
    agent.session.close()
    agent.store.close()


@pytest.mark.parametrize("ended", ["not", "finished", "abandoned"])
def test_undo_of_a_rewind_that_was_killed(killed: Recorded, ended: str):
    if ended == "finished":
        killed.session.files.recover()
    elif ended == "abandoned":
        killed.session.files.abandon()
    made = killed.store.session(f"claude-{NEW}", create=False)
    assert undo_rewind(killed.session, made) is not None
    assert files(killed.work) == {"a.txt": "three", "b.txt": "two"}
    assert killed.session.files.pending is None


def test_a_rewind_that_is_killed_and_repeated_is_undone_as_one(killed: Recorded):
    known = killed.session.files.pending
    assert known is not None
    ids = new_ids()
    options = RewindOptions("both", killed.work, killed.folder)
    made = plan_rewind(Conversation(killed.session), "2", options, lambda: f"again-{ids()}")
    done = rewind(killed.session, made, killed.folder)
    assert files(killed.work) == {"a.txt": "one"}
    assert done.restored is not None
    assert done.restored.safety.seq == known.origin.safety
    undo_rewind(killed.session, killed.store.session(str(done.session), create=False))
    assert files(killed.work) == {"a.txt": "three", "b.txt": "two"}
    first = killed.store.session(f"claude-{NEW}", create=False)
    assert undo_rewind(killed.session, first) is None, "it was undone with the second"
    assert files(killed.work) == {"a.txt": "three", "b.txt": "two"}


def test_an_undo_that_is_killed_is_finished_by_the_next(agent: Recorded, tmp_path: Path):
    go(agent, "2")
    close(agent)

    def body(_: Tell) -> None:
        reopen(agent, tmp_path, kill_at(Failpoint.RESTORE_RENAMED))
        undo_rewind(agent.session, agent.store.session(f"claude-{NEW}", create=False))

    assert run_child(body).by_sigkill
    reopen(agent, tmp_path, recover=False)
    made = agent.store.session(f"claude-{NEW}", create=False)
    assert undo_rewind(agent.session, made) is not None
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}


def test_undo_leaves_an_interrupted_restore_that_is_not_of_the_rewind(
    agent: Recorded, tmp_path: Path
):
    go(agent, "2")
    close(agent)

    def body(_: Tell) -> None:
        reopen(agent, tmp_path, kill_at(Failpoint.RESTORE_RENAMED))
        agent.session.restore("@latest~1", ("workspace",))

    assert run_child(body).by_sigkill
    reopen(agent, tmp_path, recover=False)
    made = agent.store.session(f"claude-{NEW}", create=False)
    with pytest.raises(CannotRewind, match="restored again"):
        undo_rewind(agent.session, made)
    assert agent.session.files.pending is not None


def test_undo_is_refused_after_another_restore(agent: Recorded):
    go(agent, "2")
    agent.session.restore("@latest~1", ("workspace",))
    with pytest.raises(CannotRewind, match="restored again"):
        undo_rewind(agent.session, agent.store.session(f"claude-{NEW}"))


def test_undo_after_restores_that_were_undone(agent: Recorded):
    go(agent, "2")
    made = agent.store.session(f"claude-{NEW}")
    agent.session.restore("@latest~1", ("workspace",))
    agent.session.undo()
    agent.session.undo()
    agent.session.redo()
    undo_rewind(agent.session, made)
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}


def test_undo_is_refused_if_it_would_be_that_of_a_later_restore(agent: Recorded):
    go(agent, "2")
    agent.session.undo()
    agent.session.restore("@latest~1", ("workspace",))
    with pytest.raises(CannotRewind, match="restored again"):
        undo_rewind(agent.session, agent.store.session(f"claude-{NEW}"))


def test_a_session_of_no_rewind_cannot_be_undone(agent: Recorded):
    with pytest.raises(CannotRewind, match="not made by a rewind"):
        undo_rewind(agent.session, agent.session)


def test_a_rewound_session_can_be_rewound_again(agent: Recorded):
    go(agent, "3")
    made = agent.store.session(f"claude-{NEW}", workspace=agent.work)
    found = Conversation(made)
    assert [one.prompt.text for one in found.prompts] == ["first", "second"]
    again = plan(agent, "2", session=made)
    assert texts(again.entries or [])[-1] == "done: first"
    assert again.files is not None
    assert [change.path for change in again.files.files if change.kind == "file"] == ["b.txt"]


@pytest.mark.parametrize("to", ["0", "4", "99"])
def test_a_prompt_that_is_not_there(agent: Recorded, to: str):
    with pytest.raises(CannotRewind, match=f"no prompt {to}; there are 3"):
        plan(agent, to)


def test_a_session_without_a_conversation(agent: Recorded):
    with pytest.raises(CannotRewind, match="no conversation"):
        Conversation(agent.store.session("main"))


def test_a_prompt_from_before_the_hooks_has_a_conversation_only(agent: Recorded):
    agent.said.prompt("unseen", promptId="unknown")
    agent.hook("Stop", "tools")
    with pytest.raises(CannotRewind, match="No checkpoint has the files"):
        plan(agent, "4")
    assert texts(plan(agent, "4", "chat").entries or [])[-1] == "done: third"


def test_prompts_that_a_copy_gave_one_id_do_not_share_a_checkpoint(agent: Recorded):
    for entry in agent.said.entries:
        entry["promptId"] = "p2"
    agent.hook("Stop", "tools")
    found = Conversation(agent.session).prompts
    assert [one.checkpoint is not None for one in found] == [False, False, True]


def test_prompts_of_a_copy_have_the_checkpoints_of_the_conversation_it_was_made_from(
    agent: Recorded, tmp_path: Path
):
    """Claude Code copies the entries with their ids, and gives their prompts its next one."""
    now = agent.session.checkpoints()[-1].time.isoformat()
    agent.said.entries = [{**one, "timestamp": now} for one in agent.said.entries]
    agent.hook("Stop", "tools")
    copy = Recorded(tmp_path, agent.store, id=COPY)
    copy.said.entries = [{**one, "promptId": "p0"} for one in agent.said.entries]
    copy.said.last = agent.said.last
    copy.hook("UserPromptSubmit", "prompt", is_prompt=True)
    copy.said.prompt("other", promptId="p0", uuid="uuid-other")
    copy.write("c.txt", "four")
    copy.hook("Stop", "tools")
    assert [one.checkpoint for one in Conversation(copy.session).prompts][:3] == [None] * 3
    found = Conversation(copy.session, agent.store).prompts_with_files()
    changed = [[change.path for change in one.files or ()] for one in found]
    assert changed == [["a.txt"], ["b.txt"], ["a.txt"], ["c.txt"]]
    done = rewind(copy.session, plan(copy, "3", session=copy.session), copy.folder)
    assert files(copy.work) == {"a.txt": "one", "b.txt": "two"}
    assert texts(written(copy.transcript(copy.work, NEW)))[-1] == "done: second"
    undo_rewind(copy.session, agent.store.session(str(done.session)))
    assert files(copy.work) == {"a.txt": "three", "b.txt": "two", "c.txt": "four"}


def now(agent: Recorded) -> str:
    """Return a time for an entry that is written after the last checkpoint."""
    return (agent.session.checkpoints()[-1].time + timedelta(microseconds=1)).isoformat()


def test_what_is_typed_during_a_turn_does_not_move_its_beginning(agent: Recorded):
    """Its hook comes at once, with the id of the prompt of that turn."""
    agent.prompt("fourth")
    agent.write("c.txt", "four")
    agent.hook("UserPromptSubmit", "prompt", note="also do that")
    agent.hook("Stop", "tools")
    go(agent, "4")
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}


def test_prompts_that_waited_for_the_end_of_a_turn(agent: Recorded):
    """They get ids of their own when they start, and no hook then."""
    began = now(agent)
    agent.prompt("fourth")
    agent.said.entries[-1]["timestamp"] = began
    for said in ("continue", "other"):  # the same twice is one event
        agent.hook("UserPromptSubmit", "prompt", note=said)
    agent.write("c.txt", "four")
    agent.hook("Stop", "tools")
    for number, said in enumerate(("continue", "continue", "other", "unheard")):
        asked = {"promptId": f"queued{number}", "promptSource": "queued"}
        agent.said.prompt(said, timestamp=now(agent), **asked)
    agent.hook("UserPromptSubmit", "prompt", note="typed during their turn", prompt_id="queued2")
    agent.write("c.txt", "five")
    agent.hook("Stop", "tools")
    known = [one.checkpoint is not None for one in Conversation(agent.session).prompts]
    assert known == [True] * 7 + [False]
    go(agent, "7")
    assert files(agent.work)["c.txt"] == "four"


def test_the_end_of_a_turn_that_was_removed_is_not_guessed(agent: Recorded):
    began = now(agent)
    agent.prompt("fourth")
    agent.said.entries[-1]["timestamp"] = began
    agent.hook("UserPromptSubmit", "prompt", note="continue")
    agent.write("c.txt", "four")
    ended = agent.hook("Stop", "tools")
    agent.said.prompt("continue", timestamp=now(agent), promptId="queued", promptSource="queued")
    agent.hook("PostToolBatch", "tools")
    assert Conversation(agent.session).prompts[-1].checkpoint == ended
    delete_checkpoints(agent.store, agent.session, [ended])
    assert Conversation(agent.session).prompts[-1].checkpoint is None


def test_a_turn_that_was_stopped_is_gone_back_to_like_any_other(agent: Recorded):
    agent.prompt("fourth")
    agent.write("c.txt", "half")
    agent.said.prompt("[Request interrupted by user for tool use]", promptId="p3")
    agent.turn("fifth", "c.txt", "five")
    assert [one.prompt.text for one in Conversation(agent.session).prompts][3:] == [
        "fourth",
        "fifth",
    ]
    go(agent, "4")
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}


def test_a_command_that_asked_something_is_a_prompt(agent: Recorded):
    said = "<command-name>/fix</command-name><command-args>it</command-args>"
    agent.turn(said, "c.txt", "four")
    agent.said.prompt("<command-name>/cost</command-name>", promptId="shown")
    agent.hook("Stop", "tools")
    found = Conversation(agent.session).prompts
    assert [one.prompt.text for one in found][3:] == ["/fix it"]
    done = go(agent, "4")
    assert texts(done.plan.entries or [])[-1] == "done: third"
    known = agent_session(agent.store.session(f"claude-{NEW}"))
    assert known is not None
    assert known.prompts == 3


def test_a_text_that_was_cut_in_half_of_a_character_stays(agent: Recorded):
    agent.prompt("fourth")
    agent.said.say("half: \ud83d")
    agent.hook("Stop", "tools")
    agent.prompt("fifth")
    agent.hook("Stop", "tools")
    go(agent, "5")
    path = agent.transcript(agent.work, NEW)
    assert texts(written(path))[-1] == "half: \ud83d"
    known = agent_session(agent.store.session(f"claude-{NEW}"))
    assert known is not None
    assert transcript.read_new(path, known.progress).entries == []


def test_of_another_agent_only_files_can_be_taken_back(agent: Recorded):
    agent.session.state.set("agent_session/agent", "another")
    found = Conversation(agent.session)
    assert [one.number for one in found.prompts] == [1, 2, 3]
    with pytest.raises(CannotRewind, match="another"):
        plan(agent, "2")
    go(agent, "2", "files")
    assert files(agent.work) == {"a.txt": "one"}


def send(agent: Recorded, name: str, **how: Any) -> None:
    with agent.session.effect(name, intent={"to": "ann"}, **how) as effect:
        effect.result = "sent"


def test_effects_after_the_point_are_named(agent: Recorded):
    send(agent, "mail.send")
    assert [one.name for one in plan(agent, "2").effects.left_behind] == ["mail.send"]
    assert not plan(agent, f"#{agent.session.head.seq}").effects


def test_effects_that_cannot_be_undone_have_to_be_accepted(agent: Recorded):
    send(agent, "mail.send")
    before = files(agent.work)
    with pytest.raises(LeftBehind, match=r"mail\.send"):
        go(agent, "2")
    assert files(agent.work) == before
    assert not agent.transcript(agent.work, NEW).exists()
    assert [one.name for one in agent.store.sessions()] == [f"claude-{OLD}"]
    rewind(agent.session, plan(agent, "2"), agent.folder, accept_left_behind=True)
    assert files(agent.work) == {"a.txt": "one"}


@pytest.mark.parametrize("what", ["files", "chat", "fork"])
def test_effects_stay_without_a_question_if_not_all_goes_back(
    agent: Recorded, what: str, tmp_path: Path
):
    undone: list[Any] = []
    send(agent, "mail.send", undo=undone.append)
    if what == "fork":
        go(agent, "2", fork=tmp_path / "fork")
    else:
        go(agent, "2", cast(What, what))
    assert undone == []


def test_effects_with_an_undo_are_undone(agent: Recorded):
    undone: list[Any] = []
    send(agent, "mail.send", undo=undone.append)
    assert [one.name for one in plan(agent, "2").effects.compensated] == ["mail.send"]
    go(agent, "2")
    assert [one.name for one in undone] == ["mail.send"]
    assert [one.status for one in agent.session.effects.list()] == ["compensated"]


def test_subagents_come_along(agent: Recorded):
    entry = {**agent.said.entries[0], "agentId": "a1", "isSidechain": True}
    agent.session.state.set("subagents/a1", [entry])
    agent.session.state.set("subagents/..%2F", [entry])
    agent.session.checkpoint()
    go(agent, "@latest")
    path = agent.folder.subagent(agent.transcript(agent.work, NEW), "a1")
    assert [one["sessionId"] for one in written(path)] == [NEW]
    assert len(list(path.parent.iterdir())) == 1
    known = agent_session(agent.store.session(f"claude-{NEW}"))
    assert known is not None
    assert known.subagents["a1"].path == str(path)
    undo_rewind(agent.session, agent.store.session(f"claude-{NEW}", create=False))
    assert [one.name for one in agent.path.parent.iterdir()] == [f"{OLD}.jsonl"]


def test_undo_keeps_files_of_the_agent_beside_the_transcript(agent: Recorded):
    go(agent, "2")
    beside = agent.transcript(agent.work, NEW).with_suffix("")
    (beside / "subagents").mkdir(parents=True)
    (beside / "own").mkdir()
    (beside / "own/file").write_text("of the agent")
    undo_rewind(agent.session, agent.store.session(f"claude-{NEW}", create=False))
    assert [str(one.relative_to(beside)) for one in beside.rglob("*")] == ["own", "own/file"]


def with_a_subagent(agent: Recorded) -> str:
    """Take a checkpoint at which a subagent has said something; return its id."""
    entry = {**agent.said.entries[0], "agentId": "a1", "isSidechain": True}
    agent.session.state.set("subagents/a1", [entry])
    point = agent.session.checkpoint().id
    agent.write("a.txt", "four")
    return point


@contextmanager
def restoring(agent: Recorded) -> Iterator[None]:
    """Have another thread hold what a restore of the directory holds."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock_directory(agent.session.internal.engine, agent.work):
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def left(agent: Recorded) -> tuple[list[str], list[str], dict[str, str]]:
    """Return what a rewind adds to and changes: sessions, the agent's files, those of the work."""
    config = [str(one) for one in agent.folder.config.rglob("*")]
    return [one.name for one in agent.store.sessions()], sorted(config), files(agent.work)


def test_a_rewind_beside_a_restore_changes_nothing(agent: Recorded):
    undone: list[Any] = []
    wanted = plan(agent, with_a_subagent(agent))
    send(agent, "mail.send", undo=undone.append)
    before = left(agent)
    with restoring(agent), pytest.raises(RestoreBusy):
        rewind(agent.session, wanted, agent.folder)
    assert (left(agent), undone) == (before, [])
    assert rewind(agent.session, wanted, agent.folder).session == f"claude-{NEW}"


def test_a_rewind_that_another_restore_overtakes_is_taken_back(tmp_path: Path):
    """The other one begins when the transcript is published already."""
    made = Recorded(tmp_path)
    made.turn("first", "a.txt", "one")
    point = with_a_subagent(made)
    made.session.close()
    made.store.close()
    with ExitStack() as stack:

        def overtaken(at: Failpoint) -> None:
            if at is Failpoint.REWIND_PUBLISHED and made.transcript(made.work, NEW).exists():
                stack.enter_context(restoring(made))

        made.store = stack.enter_context(open_store(tmp_path / "store", failpoint=overtaken))
        made.session = made.store.session(f"claude-{OLD}", workspace=made.work)
        wanted, before = plan(made, point), left(made)
        with pytest.raises(RestoreBusy):
            rewind(made.session, wanted, made.folder)
        assert left(made) == before
        assert made.store.verify().problems == ()


def test_copies_of_files_that_the_agent_keeps_come_along(agent: Recorded):
    tracked = {"a.txt": {"backupFileName": "0a@v1"}, "b.txt": {"backupFileName": "gone@v1"}}
    snapshot = {"trackedFileBackups": tracked}
    agent.said.note("file-history-snapshot", messageId="uuid-0", snapshot=snapshot)
    point = agent.hook("Stop", "tools")
    kept = agent.folder.config / "file-history" / OLD
    kept.mkdir(parents=True)
    (kept / "0a@v1").write_text("one")
    go(agent, point.id)
    copied = agent.folder.config / "file-history" / NEW
    assert [one.name for one in copied.iterdir()] == ["0a@v1"]


@pytest.mark.parametrize(
    "point",
    [
        Failpoint.REWIND_FORKED,
        Failpoint.REWIND_RECORDED,
        Failpoint.REWIND_PUBLISHED,
        Failpoint.RESTORE_MARKED,
    ],
)
def test_a_rewind_that_fails_leaves_no_transcript_and_the_conversation_in_place(
    tmp_path: Path, point: Failpoint
):
    made = Recorded(tmp_path)
    made.turn("first", "a.txt", "one")
    made.turn("second", "b.txt", "two")
    made.session.close()
    made.store.close()
    with open_store(tmp_path / "store", failpoint=fail_at(point, OSError("refused"))) as store:
        session = store.session(f"claude-{OLD}", workspace=made.work)
        options = RewindOptions("both", made.work, made.folder)
        wanted = plan_rewind(Conversation(session), "2", options, lambda: NEW)
        with pytest.raises((OSError, CannotRewind), match="refused"):
            rewind(session, wanted, made.folder)
        assert len(store.sessions()) == 2, "an unused session is left"
        for named in (None, OLD, OLD[:8]):
            assert find_agent_session(store, named, made.work).name == session.name
        session.close()
    assert [one.name for one in made.path.parent.iterdir()] == [f"{OLD}.jsonl"]


def test_a_fork_is_meant_by_its_name_alone(agent: Recorded):
    agent.session.fork("@latest", "other").close()
    for named in (None, OLD, OLD[:8]):
        assert find_agent_session(agent.store, named, agent.work).name == agent.session.name
    assert find_agent_session(agent.store, "other", agent.work).name == "other"


def test_large_results_come_along_and_are_named_in_their_new_place(agent: Recorded):
    old = agent.path.with_suffix("") / "tool-results"
    agent.session.state.set(("tool_results", "b1.txt"), b"very long")
    agent.said.prompt(f"see {old}/b1.txt, {old}/gone.txt and {old}x/b2.txt", promptId="p3")
    agent.hook("Stop", "tools")
    done = go(agent, "@latest", "chat")
    path = agent.transcript(agent.work, NEW)
    now = path.with_suffix("") / "tool-results"
    assert (now / "b1.txt").read_bytes() == b"very long"
    assert stat.S_IMODE((now / "b1.txt").stat().st_mode) == 0o600
    said = texts(written(path))[-1]
    assert said == f"see {now}/b1.txt, {old}/gone.txt and {old}x/b2.txt"
    assert [file.path.name for file in done.plan.side_files] == ["b1.txt"]
    undo_rewind(agent.session, agent.store.session(f"claude-{NEW}", create=False))
    assert not path.exists()
    assert not (now / "b1.txt").exists()
