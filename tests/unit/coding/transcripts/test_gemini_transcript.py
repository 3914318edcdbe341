"""Transcripts of Gemini CLI: what is applied, prompts, the cut, and what the program accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mulligan.coding.transcripts.gemini_transcript import MOVED, GeminiFormat
from mulligan.coding.transcripts.transcript_format import INTERRUPTED, Entry, Move, NewSession

OLD, NEW = "0aaaaaaa-old", "0bbbbbbb-new"
SESSION = NewSession(NEW, "2026-11-18T11:02:03.004Z", old=OLD)


def nothing(name: str) -> None:
    """Return that nothing was kept beside a transcript."""


FORMAT = GeminiFormat()

HEADER = {"sessionId": OLD, "projectHash": "h", "startTime": "t", "kind": "main"}


def user(id: str, text: str) -> Entry:
    return {"id": id, "timestamp": f"at {id}", "type": "user", "content": [{"text": text}]}


def answer(id: str, text: str = "", **more: Any) -> Entry:
    return {"id": id, "type": "gemini", "content": text, **more}


def call(id: str, **more: Any) -> Entry:
    return {"id": id, "name": "run_shell_command", "args": {}, **more}


CONTEXT = user("c", "<session_context>here</session_context>")
DONE = answer("a1", toolCalls=[call("x", result=[{"functionResponse": {"id": "x"}}])])

TURNS: list[Any] = [
    HEADER,
    {"$set": {"messages": [CONTEXT], "lastUpdated": "t"}},
    user("u1", "first"),
    answer("a1"),
    DONE,
    user("u2", "second"),
    answer("a2", "done"),
]


def parsed(entries: list[Any]) -> list[Any]:
    return FORMAT.parsed(entries)


def prompts(entries: list[Any]) -> list[tuple[str, str]]:
    return [(one.uuid, one.text) for one in FORMAT.prompts(parsed(entries), ())]


def cut(entries: list[Any], number: int) -> list[Any]:
    made = parsed(entries)
    return made[: FORMAT.prompts(made, ())[number].entry]


def ids(entries: list[Any], new: NewSession = SESSION) -> list[str]:
    made = FORMAT.rewound(entries, new, lambda: "added").entries
    return [one["id"] for one in made[1:]]


def test_prompts_are_what_a_person_typed():
    assert prompts([*TURNS, user("u3", "/help"), user("u4", " ")]) == [
        ("u1", "first"),
        ("u2", "second"),
    ]


def test_a_cut_conversation_has_one_header_and_each_message_once():
    made = FORMAT.rewound(cut(TURNS, 1), SESSION, lambda: "x")
    assert made.entries[0] == {
        "sessionId": NEW,
        "startTime": SESSION.time,
        "lastUpdated": SESSION.time,
        "projectHash": "h",
        "kind": "main",
    }
    assert made.entries[1:] == [CONTEXT, TURNS[2], DONE]


def test_a_session_that_was_resumed_is_cut_where_a_prompt_was_said_first():
    again = [CONTEXT, TURNS[2], DONE, TURNS[5], TURNS[6]]
    entries = [*TURNS, HEADER, {"$set": {"messages": again}}, user("u3", "third")]
    assert prompts(entries) == [("u1", "first"), ("u2", "second"), ("u3", "third")]
    assert ids(cut(entries, 1)) == ["c", "u1", "a1"]
    assert ids(cut(entries, 2)) == ["c", "u1", "a1", "u2", "a2"]


def test_a_compression_holds_after_it_and_not_before():
    short = [CONTEXT, user("s", "a summary"), TURNS[6]]
    entries = [*TURNS, {"$set": {"messages": short}}, user("u3", "third")]
    assert ids(parsed(entries)) == ["c", "s", "a2", "u3"]
    assert ids(cut(entries, 1)) == ["c", "s", "a2"]


def test_the_way_back_inside_of_the_program_counts():
    entries = [*TURNS, {"$rewindTo": "u2"}, user("u3", "other")]
    assert prompts(entries) == [("u1", "first"), ("u3", "other")]
    assert ids(parsed([*TURNS, {"$rewindTo": "unknown"}, user("u3", "other")])) == ["u3"]


def test_calls_without_a_result_get_one():
    open_call = answer("a3", toolCalls=[call("y"), call("z", result=[{"text": "ok"}])])
    part = answer("a4", toolCalls=None) | {"content": [{"functionCall": call("w")}]}
    made = FORMAT.rewound([*parsed(TURNS), open_call, part], SESSION, lambda: "added")
    assert made.closed == 2
    first = made.entries[-3]["toolCalls"]
    assert first[0]["result"][0]["functionResponse"]["response"] == {"error": INTERRUPTED}
    assert first[1] == open_call["toolCalls"][1]
    assert made.entries[-1]["content"][0]["functionResponse"]["id"] == "w"


def test_nothing_said_is_no_transcript():
    assert FORMAT.rewound(cut(TURNS, 0), SESSION, lambda: "x").entries == []
    assert FORMAT.rewound(["{cut", 7, None], SESSION, lambda: "x").entries == []


def test_a_fork_says_where_its_files_are_and_that_is_no_prompt():
    moved = NewSession(NEW, SESSION.time, Move("/p", "/q"), OLD)
    made = FORMAT.rewound(parsed(TURNS), moved, lambda: "added").entries
    assert made[-1]["content"][0]["text"].startswith(f"{MOVED}This conversation continues in /q")
    assert made[0]["projectHash"] != "h"
    assert [text for _, text in prompts(made)] == ["first", "second"]


def test_the_result_of_a_call_may_be_written_after_its_hook():
    entries = parsed(TURNS)
    assert FORMAT.completed(entries[:5], entries, 6, None) == entries[:6]
    assert FORMAT.completed(entries[:5], entries, 5, None) == entries[:5]


def test_a_fork_gets_a_folder_that_its_directory_owns(tmp_path: Path):
    old = tmp_path / ".gemini/tmp/p/chats/session-1.jsonl"
    folder = FORMAT.folder(str(old), {"HOME": "/h"})
    assert folder.transcript(Path("/p"), SESSION).parent == old.parent
    new = NewSession(NEW, SESSION.time, Move("/p", "/Copy of p"), OLD)
    path = folder.transcript(Path("/Copy of p"), new)
    assert path.parents[1] == tmp_path / ".gemini/tmp/copy-of-p-0bbbbbbb"
    (file,) = folder.placed(path, new, [{}], nothing).side_files
    assert (file.path, file.data) == (path.parents[1] / ".project_root", b"/Copy of p")
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(file.data)
    later = NewSession("0ccccccc", SESSION.time, new.move, OLD)
    assert folder.transcript(Path("/Copy of p"), later).parents[1] == path.parents[1]
    assert folder.placed(path, later, [{}], nothing).side_files == ()


def test_what_to_type():
    usual = FORMAT.folder(None, {"HOME": "/h"})
    assert usual.resume_command(NEW, None, is_new=False) == f"gemini --resume {NEW}"
    assert usual.resume_command(NEW, None, is_new=True) == f"gemini --session-id {NEW}"
    other = FORMAT.folder("/x/.gemini/tmp/p/chats/session-1.jsonl", {"HOME": "/h"})
    command = other.resume_command(NEW, None, is_new=False)
    assert command == f"GEMINI_CLI_HOME=/x gemini --resume {NEW}"
