"""opencode without its plugin: its own database is followed, and never written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import mulligan
from mulligan.coding.follow import TranscriptFollower
from mulligan.coding.rewind.target import Conversation
from mulligan.coding.settings.opencode_settings import merged, project_file
from mulligan.coding.transcripts.opencode_database import database_file

ID, OTHER = "ses_e109aec62ffeR7XkjZf9D3q4Bt", "ses_e109aec62ffeR7XkjZf9D3q4Bu"
TABLES = """
CREATE TABLE session (id text PRIMARY KEY, parent_id text, directory text NOT NULL,
    time_updated integer NOT NULL);
CREATE TABLE message (id text PRIMARY KEY, session_id text NOT NULL, time_created integer,
    time_updated integer, data text NOT NULL);
CREATE TABLE part (id text PRIMARY KEY, message_id text NOT NULL, session_id text NOT NULL,
    time_created integer, time_updated integer, data text NOT NULL);
"""
"""The columns that are read, as the program has them."""


class Program:
    """opencode in a directory: what it writes into its database."""

    def __init__(self, place: Path) -> None:
        self.work, self.variables = place / "work", {"HOME": str(place)}
        self.work.mkdir()
        self.file = place / ".local/share/opencode/opencode.db"
        self.file.parent.mkdir(parents=True)
        self.opened = sqlite3.connect(self.file, isolation_level=None)
        self.opened.execute("PRAGMA journal_mode = WAL")
        self.opened.executescript(TABLES)
        self.time = 1000
        self.store = mulligan.open(place / "store")

    def begin(self, id: str = ID, directory: str | None = None, parent: str | None = None) -> None:
        given = (id, parent, directory or str(self.work), self.tick())
        self.opened.execute("INSERT INTO session VALUES (?, ?, ?, ?)", given)

    def say(self, role: str, number: int, text: str, id: str = ID) -> None:
        time, name = self.tick(), f"msg_{number:012x}YS7bZXLOYGvaqU"
        info = json.dumps({"role": role, "time": {"created": time}})
        self.opened.execute(
            "INSERT INTO message VALUES (?, ?, ?, ?, ?)", (name, id, time, time, info)
        )
        part = (f"prt_{number:012x}YS7bZXLOYGvaqU", name, id, time, time)
        data = json.dumps({"type": "text", "text": text})
        self.opened.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", (*part, data))

    def tick(self) -> int:
        self.time += 1
        return self.time

    def follower(self) -> TranscriptFollower:
        return TranscriptFollower(self.store, self.work, self.variables)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.opened.close()
    made.store.close()


def notes(follower: TranscriptFollower) -> list[tuple[str, str | None]]:
    return [(one.kind, one.note) for one in follower.look()]


def test_prompts_become_checkpoints_that_a_rewind_finds(program: Program):
    follower = program.follower()
    program.begin()
    program.say("user", 1, "first")
    assert notes(follower) == [("prompt", "first")]
    (program.work / "a").write_text("made for the first")
    program.say("assistant", 2, "done")
    assert notes(follower) == [("tools", "batch end")]
    assert follower.look() == []
    program.say("user", 3, "second")
    assert notes(follower) == [("prompt", "second")]
    follower.close()
    session = program.store.session(f"opencode-{ID}", create=False)
    found = Conversation(session).prompts
    assert [(one.prompt.text, one.checkpoint is not None) for one in found] == [
        ("first", True),
        ("second", True),
    ]
    said = session.state.get("conversation")
    assert [one["info"]["role"] for one in said] == ["user", "assistant", "user"]
    assert said[0]["info"]["sessionID"] == ID
    assert said[0]["parts"][0]["messageID"] == said[0]["info"]["id"]


def test_what_was_said_before_is_left_alone_until_it_goes_on(program: Program, tmp_path: Path):
    program.begin()
    program.say("user", 1, "first")
    follower = program.follower()
    assert follower.look() == []
    assert list(tmp_path.glob(".local/state/mulligan/opencode/*")) == []
    program.say("user", 2, "second")
    assert notes(follower) == [("prompt", "second")]


def test_a_conversation_that_could_not_be_written_out_is_tried_again(
    program: Program, tmp_path: Path
):
    follower = program.follower()
    program.begin()
    program.say("user", 1, "first")
    place = tmp_path / ".local/state/mulligan/opencode"
    place.parent.mkdir(parents=True)
    place.write_text("in the way")
    with pytest.raises(FileExistsError):
        follower.look()
    place.unlink()
    assert notes(follower) == [("prompt", "first")]


def test_other_directories_and_subagents_are_left_alone(program: Program):
    follower = program.follower()
    program.begin(directory=f"{program.work}-beside")
    program.say("user", 1, "elsewhere")
    program.begin(OTHER, parent=ID)
    program.say("user", 2, "of an agent", OTHER)
    assert follower.look() == []


def test_a_directory_below_belongs_to_the_workspace(program: Program):
    follower = program.follower()
    program.begin(directory=str(program.work / "src"))
    program.say("user", 1, "below")
    assert notes(follower) == [("prompt", "below")]


def test_the_plugin_records_by_itself(program: Program):
    follower = program.follower()
    plugin = project_file(program.work)
    plugin.parent.mkdir(parents=True)
    plugin.write_text(merged({"text": ""}, ["mulligan", "hook", "opencode"])["text"])
    program.begin()
    program.say("user", 1, "first")
    assert follower.look() == []
    plugin.unlink()
    assert notes(follower) == [("prompt", "first")]


def test_a_message_whose_text_is_not_there_yet_is_no_prompt(program: Program):
    follower = program.follower()
    program.begin()
    program.say("user", 1, "first")
    program.opened.execute("DELETE FROM part")
    assert [kind for kind, _ in notes(follower)] in ([], ["tools"])
    program.opened.execute("DELETE FROM message")
    program.say("user", 1, "first")
    assert notes(follower) == [("prompt", "first")]


def test_what_is_written_out_is_for_the_user_alone(program: Program, tmp_path: Path):
    follower = program.follower()
    program.begin()
    program.say("user", 1, "first")
    follower.look()
    (file,) = tmp_path.glob(".local/state/mulligan/opencode/*")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", ["DROP TABLE part", "UPDATE part SET data = '7'", "garbage"])
def test_a_database_that_is_not_understood_has_no_conversations(program: Program, damage: str):
    follower = program.follower()
    program.begin()
    program.say("user", 1, "first")
    if damage == "garbage":
        program.opened.close()
        for file in program.file.parent.iterdir():
            file.write_bytes(b"no database" * 1000)
    else:
        program.opened.execute(damage)
    assert follower.look() == []


@pytest.mark.parametrize("data", [None, '{"a":' + "[" * 200_000 + "]" * 200_000 + "}"])
def test_a_row_that_cannot_be_decoded_does_not_end_the_look(program: Program, data: str | None):
    follower = program.follower()
    program.begin()
    program.opened.execute("DROP TABLE part")
    program.opened.execute(TABLES.split(";")[2].replace("data text NOT NULL", "data text"))
    program.say("user", 1, "first")
    program.opened.execute("UPDATE part SET data = ?", (data,))
    assert follower.look() == []
    program.opened.execute("DELETE FROM part")
    program.opened.execute("DELETE FROM message")
    program.say("user", 1, "first")
    assert notes(follower) == [("prompt", "first")]


def test_a_writer_that_holds_the_database_is_not_disturbed(program: Program):
    follower = program.follower()
    program.begin()
    program.say("user", 1, "first")
    program.opened.execute("BEGIN IMMEDIATE")
    program.say("user", 2, "not committed")
    assert notes(follower) == [("prompt", "first")]
    program.opened.execute("COMMIT")
    assert notes(follower) == [("prompt", "not committed")]


def test_the_database_is_where_the_program_is_told(tmp_path: Path):
    home = {"HOME": str(tmp_path)}
    assert database_file(home) == tmp_path / ".local/share/opencode/opencode.db"
    data = home | {"XDG_DATA_HOME": "/data", "OPENCODE_DB": "other.db"}
    assert database_file(data) == Path("/data/opencode/other.db")
    assert database_file(home | {"OPENCODE_DB": "/db/x.db"}) == Path("/db/x.db")
