"""Transcripts of Codex: prompts, the cut, and what the program accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mulligan.coding.transcripts.codex_transcript import CodexFormat
from mulligan.coding.transcripts.transcript_format import INTERRUPTED, Move, NewSession
from tests.unit.coding.codex_entries import OLD, Rollout

NEW = "0b-new"
SESSION = NewSession(NEW, "2026-11-18T11:02:03.004Z", old=OLD)
FORMAT = CodexFormat()


def two_turns() -> Rollout:
    made = Rollout()
    made.prompt("first", "t1")
    made.call("c1")
    made.result("c1")
    made.say("done")
    made.prompt("second", "t2")
    made.say("done, too")
    return made


def prompts(entries: list[Any]) -> list[tuple[int, str, str | None]]:
    return [(one.entry, one.text, one.asked) for one in FORMAT.prompts(entries, ())]


def test_a_prompt_begins_where_its_turn_does():
    assert prompts(two_turns().entries) == [(1, "first", "t1"), (8, "second", "t2")]


def test_what_is_typed_into_a_turn_that_runs_begins_where_it_is_said():
    made = two_turns()
    made.prompt("also", "t2", starts=False)
    assert prompts(made.entries)[2] == (13, "also", "t2")


def test_events_of_older_versions_are_prompts_too():
    made = Rollout()
    made.add("response_item", {"type": "message", "role": "user", "content": []})
    made.add("event_msg", {"type": "user_message", "message": "old"})
    assert prompts(made.entries) == [(1, "old", None)]


def test_turns_that_were_rolled_back_are_no_prompts():
    made = two_turns()
    made.add("event_msg", {"type": "thread_rolled_back", "num_turns": 1})
    made.prompt("third", "t3")
    assert [text for _, text, _ in prompts(made.entries)] == ["first", "third"]


def test_a_cut_conversation_is_one_of_the_new_session():
    made = FORMAT.rewound(two_turns().entries[:8], SESSION, lambda: "x")
    assert made.closed == 0
    assert [one["ordinal"] for one in made.entries] == list(range(8))
    meta = made.entries[0]["payload"]
    assert (meta["id"], meta["session_id"], meta["timestamp"]) == (NEW, NEW, SESSION.time)
    assert OLD not in str(made.entries)
    assert made.entries[5] == two_turns().entries[5]


def test_calls_without_a_result_get_one_after_their_answer():
    old = Rollout()
    old.prompt("first", "t1")
    old.call("c1")
    old.call("c2", "custom_tool_call")
    old.result("c1")
    old.prompt("second", "t2")
    made = FORMAT.rewound(old.entries, SESSION, lambda: "x")
    assert made.closed == 1
    items = [one["payload"] for one in made.entries if one["type"] == "response_item"]
    assert [one["type"] for one in items][1:6] == [
        "function_call",
        "custom_tool_call",
        "function_call_output",
        "custom_tool_call_output",
        "message",
    ]
    assert items[4] == {
        "type": "custom_tool_call_output",
        "call_id": "c2",
        "output": INTERRUPTED,
    }
    assert [one["ordinal"] for one in made.entries] == list(range(len(made.entries)))


def test_a_fork_is_in_its_directory_and_says_so():
    moved = NewSession(NEW, SESSION.time, Move("/p", "/q"), OLD)
    made = FORMAT.rewound(two_turns().entries[:8], moved, lambda: "x").entries
    assert made[0]["payload"]["cwd"] == "/q"
    assert made[2]["payload"]["cwd"] == "/q/src"
    last = made[-1]["payload"]
    assert last["role"] == "developer"
    assert "continues in /q" in last["content"][0]["text"]


def test_lines_that_are_no_entries_are_left_out():
    entries = ["{cut", 7, {"type": "event_msg"}, *two_turns().entries[:4]]
    assert len(FORMAT.rewound(entries, SESSION, lambda: "x").entries) == 4
    assert prompts([*entries, {"type": "event_msg", "payload": 3}]) == []
    assert FORMAT.rewound([{"payload": {}}], SESSION, lambda: "x").entries == []


def test_the_last_result_of_a_moment_may_have_been_written_later():
    entries = two_turns().entries
    assert FORMAT.completed(entries[:5], entries, 8, {"c1"}) == entries[:7]
    assert FORMAT.completed(entries[:5], entries, 8, set()) == entries[:5]
    assert FORMAT.completed([1], entries, 8, {"c1"}) == [1]


def test_a_transcript_is_in_the_folder_of_its_day():
    folder = FORMAT.folder("/h/.x/sessions/2026/11/17/rollout-1.jsonl", {"HOME": "/h"})
    path = folder.transcript(Path("/p"), SESSION)
    assert path == Path(f"/h/.x/sessions/2026/11/18/rollout-2026-11-18T11-02-03-{NEW}.jsonl")
    assert folder.resume_command(NEW, None, is_new=False) == f"CODEX_HOME=/h/.x codex resume {NEW}"
    usual = FORMAT.folder(None, {"HOME": "/h"})
    assert usual.resume_command(NEW, None, is_new=False) == f"codex resume {NEW}"
