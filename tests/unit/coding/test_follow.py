"""Transcripts of agents without hooks: prompts become checkpoints, and can be gone back to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan.coding.agent_session import agent_session
from mulligan.coding.follow import EVENT, Followed, TranscriptFollower
from mulligan.coding.hook_input import HookEvent, HookKind
from mulligan.coding.recorder import record
from mulligan.coding.rewind.target import Conversation
from mulligan.coding.transcripts import transcript
from mulligan.coding.transcripts.transcript_format import encode
from mulligan.errors import DiskFull, LeaseHeld
from tests.unit.coding.claude_entries import Transcript
from tests.unit.coding.codex_entries import OLD, Rollout


class Place:
    """A directory with an agent in it that has no hooks."""

    def __init__(self, place: Path) -> None:
        self.work = place / "work"
        self.work.mkdir()
        self.variables = {"HOME": str(place)}
        self.folder = place / ".codex/sessions/2026/11/18"
        self.folder.mkdir(parents=True)
        self.path = self.folder / f"rollout-2026-11-18T10-00-00-{OLD}.jsonl"
        self.store = mulligan.open(place / "store")
        self.said = Rollout(str(self.work))

    def follower(self, *patterns: str) -> TranscriptFollower:
        return TranscriptFollower(self.store, self.work, self.variables, patterns)

    def write(self, path: Path | None = None) -> None:
        (path or self.path).write_bytes(encode(self.said.entries))

    def session(self) -> mulligan.Session:
        return self.store.session(f"codex-{OLD}", create=False)

    def names(self) -> list[str]:
        return [one.name for one in self.store.sessions()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.store.close()


def test_a_prompt_becomes_a_checkpoint_with_its_lines(place: Place):
    follower = place.follower()
    (place.work / "a").write_text("before")
    place.said.prompt("first", "t1")
    place.write()
    (taken,) = follower.look()
    assert (taken.kind, taken.note) == ("prompt", "first")
    assert taken.data == {"event": EVENT, "prompt": 0, "prompt_id": "t1"}
    (place.work / "a").write_text("after")
    place.said.say("done")
    place.write()
    (taken,) = follower.look()
    assert taken.kind == "tools"
    assert follower.look() == []
    session = place.session()
    assert session.state.get("conversation") == place.said.entries
    found = Conversation(session)
    assert [(one.prompt.text, one.checkpoint and one.checkpoint.kind) for one in found.prompts] == [
        ("first", "prompt")
    ]
    assert found.target("1").has_files


def test_what_could_not_be_recorded_is_recorded_by_the_next_look(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    def full(*args: object) -> None:
        raise DiskFull("There is no space left.")

    follower = place.follower()
    place.said.prompt("first", "t1")
    place.write()
    with monkeypatch.context() as patched:
        patched.setattr(TranscriptFollower, "_record", full)
        with pytest.raises(DiskFull):
            follower.look()
    (taken,) = follower.look()
    assert taken.note == "first"
    assert follower.look() == []


def test_a_session_that_cannot_be_written_keeps_no_other_waiting(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    def recording(follower: TranscriptFollower, found: Followed) -> list[mulligan.Checkpoint]:
        seen.append(found)
        if len(seen) == 1:
            raise LeaseHeld("Another process writes this session.")
        return recorded(follower, found)

    seen: list[Followed] = []
    recorded = TranscriptFollower._record
    monkeypatch.setattr(TranscriptFollower, "_record", recording)
    follower = place.follower()
    for id in ("first", "second"):
        said = Rollout(str(place.work))
        said.entries[0]["payload"] |= {"id": id, "session_id": id}
        said.prompt(id, "t1")
        (place.folder / f"rollout-2026-11-18T10-00-00-{id}.jsonl").write_bytes(encode(said.entries))
    with pytest.raises(LeaseHeld):
        follower.look()
    assert len(seen) == 2
    assert seen[0] != seen[1]
    follower.look()
    assert seen[2:] == [seen[0]]
    assert sorted(place.names()) == ["codex-first", "codex-second"]


def test_a_named_file_that_is_no_transcript_is_told(place: Place):
    follower = place.follower("*.md", "*.jsonl")
    (place.work / "talk.md").write_text("# aider chat")
    place.write(place.work / "talk.jsonl")
    assert follower.unread() == []
    follower.look()
    assert follower.unread() == ["*.md"]


def test_a_prompt_that_was_cut_inside_a_character_is_recorded(place: Place):
    follower = place.follower()
    place.said.prompt("cut \ud83d", "t1")
    place.write()
    (taken,) = follower.look()
    assert (taken.kind, taken.note) == ("prompt", "cut \ufffd")
    (place.work / "a").write_text("after")
    place.said.say("done")
    place.write()
    (taken,) = follower.look()
    assert taken.kind == "tools"


def test_only_the_newest_of_several_prompts_has_a_checkpoint(place: Place):
    follower = place.follower()
    place.said.prompt("first", "t1")
    place.said.say("done")
    place.said.prompt("second", "t2")
    place.write()
    assert [one.note for one in follower.look()] == ["second"]
    known = [one.checkpoint is not None for one in Conversation(place.session()).prompts]
    assert known == [False, True]


def test_what_was_said_before_is_left_alone_until_it_goes_on(place: Place):
    place.said.prompt("first", "t1")
    place.write()
    follower = place.follower()
    assert follower.look() == []
    assert place.names() == []
    place.said.prompt("second", "t2")
    place.write()
    assert [one.note for one in follower.look()] == ["second"]


def test_a_prompt_that_a_hook_has_recorded_is_not_recorded_again(place: Place):
    follower = place.follower()
    place.said.prompt("first", "t1")
    place.write()
    session = place.store.session(f"codex-{OLD}", workspace=place.work)
    event = HookEvent(
        "codex",
        HookKind.PROMPT,
        "UserPromptSubmit",
        OLD,
        str(place.work),
        prompt="first",
        prompt_id="t1",
    )
    record(session, event)
    assert follower.look() == []
    assert len(session.checkpoints()) == 1


def test_a_session_that_hooks_write_is_left_to_them_while_its_agent_lives(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(wait, stdin=subprocess.PIPE) as process:
        place.store.agent("codex", session=f"codex-{OLD}", process=process.pid).close()
        follower = place.follower()
        place.said.prompt("first", "t1")
        place.write()
        beside = Rollout(str(place.work))
        beside.entries[0]["payload"] |= {"id": "other", "session_id": "other"}
        beside.prompt("of another", "t1")
        (place.folder / "rollout-2026-11-18T10-00-00-other.jsonl").write_bytes(
            encode(beside.entries)
        )
        assert [one.note for one in follower.look()] == ["of another"]
        with monkeypatch.context() as patched:
            patched.delattr(transcript, "read_new")  # looked at often, and not read again
            assert follower.look() == []
        process.kill()
    assert [one.note for one in follower.look()] == ["first"]
    follower.close()


@pytest.mark.parametrize("source", [{"subagent": "review"}, "exec"])
def test_subagents_and_other_directories_are_not_followed(place: Place, source: Any):
    cwd = str(place.work) if isinstance(source, dict) else "/somewhere/else"
    place.said = Rollout(cwd, source)
    follower = place.follower()
    place.said.prompt("first", "t1")
    place.write()
    assert follower.look() == []
    assert place.names() == []


def test_a_transcript_of_another_directory_is_read_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    follower, read = place.follower(), []
    real = transcript.read_new
    monkeypatch.setattr(transcript, "read_new", lambda *a: [read.append(a), real(*a)][1])
    place.said = Rollout("/elsewhere")
    for number in range(3):
        place.said.prompt("first", f"t{number}")
        place.write()
        assert follower.look() == []
        assert follower.look() == []
    assert len(read) == 1


def test_a_directory_that_is_no_path_does_not_end_the_watch(place: Place):
    follower = place.follower()
    place.said = Rollout("/else\0where")
    place.said.prompt("first", "t1")
    place.write()
    assert follower.look() == []


def test_a_file_that_was_begun_is_recognised_later(place: Place):
    follower = place.follower()
    place.path.write_text('{"type": "session_meta", "payl')
    assert follower.look() == []
    place.said.prompt("first", "t1")
    place.write()
    assert [one.note for one in follower.look()] == ["first"]


def test_a_pattern_names_files_elsewhere_and_the_format_is_recognised(place: Place):
    follower = place.follower("../kept/**/*.jsonl")
    kept = place.work.parent / "kept/deep"
    kept.mkdir(parents=True)
    said = Transcript(cwd=str(place.work))
    said.prompt("of another agent", promptId="p0")
    (kept / "x.jsonl").write_bytes(encode(said.entries))
    place.said.prompt("not named", "t1")
    place.write()
    assert [one.note for one in follower.look()] == ["of another agent"]
    assert [name.partition("-")[0] for name in place.names()] == ["claude"]


def test_the_end_records_what_was_written_last(place: Place):
    follower = place.follower()
    place.said.prompt("first", "t1")
    place.write()
    follower.look()
    place.said.say("done")
    place.write()
    follower.close()
    session = place.session()
    assert session.state.get("conversation") == place.said.entries
    assert session.state.get(("agents", "codex", "state")) == "done"
    known = agent_session(session)
    assert known is not None
    assert known.prompts == 1
