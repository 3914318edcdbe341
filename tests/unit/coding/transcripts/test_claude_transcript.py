"""Transcripts of Claude Code: cut, given to a new session, and closed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.coding.transcripts.claude_transcript import (
    FOLDER_LENGTH,
    backups,
    folder_name,
    is_main,
    prompts,
    rewound,
    subagent,
)
from mulligan.coding.transcripts.transcript_format import (
    INTERRUPTED,
    Move,
    NewSession,
    decoded,
    encode,
)
from tests.unit.coding.claude_entries import NEW, OLD, Transcript, new_ids

SESSION = NewSession(NEW, "2026-11-18T11:00:00.000Z")


def rewind(entries: list[Any], session: NewSession = SESSION) -> list[dict[str, Any]]:
    return rewound(entries, session, new_ids())


def ids(entries: list[dict[str, Any]]) -> list[str]:
    return [one["uuid"] for one in entries if is_main(one)]


def two_turns() -> Transcript:
    made = Transcript()
    made.prompt("first")
    made.call("c1")
    made.result("c1")
    made.say("done")
    made.prompt("second")
    made.say("done, too")
    return made


def test_a_conversation_keeps_its_ids_and_parents_under_the_new_session_id():
    old = two_turns()
    made = rewind(old.entries)
    assert ids(made) == ids(old.entries)
    parents = [one["parentUuid"] for one in old.entries]
    assert [one["parentUuid"] for one in made if is_main(one)] == parents
    assert {one["sessionId"] for one in made} == {NEW}
    assert OLD not in encode(made).decode()


def test_the_entries_that_were_given_are_not_changed():
    old = two_turns()
    before = json.dumps(old.entries)
    rewind(old.entries, NewSession(NEW, "…", Move("/project", "/copy")))
    assert json.dumps(old.entries) == before


def test_the_last_note_names_the_end_of_the_conversation():
    made = rewind(two_turns().entries)
    assert made[-1] == {
        "type": "last-prompt",
        "lastPrompt": "second",
        "leafUuid": "uuid-5",
        "sessionId": NEW,
    }


def test_nothing_said_is_no_transcript():
    empty = Transcript()
    empty.note("mode", mode="normal")
    assert rewind(empty.entries) == []
    assert rewind([]) == []


def test_a_call_without_a_result_gets_one():
    old = Transcript()
    old.prompt("first")
    call = old.call("c1")
    made = rewind(old.entries)
    (added,) = [one for one in made if one.get("uuid", "").startswith("new-")]
    assert added["parentUuid"] == call == added["sourceToolAssistantUUID"]
    (block,) = added["message"]["content"]
    assert block == {
        "tool_use_id": "c1",
        "type": "tool_result",
        "content": INTERRUPTED,
        "is_error": True,
    }
    assert (added["type"], added["sessionId"], added["cwd"]) == ("user", NEW, "/project")
    assert made[-1]["leafUuid"] == added["uuid"]


def test_of_parallel_calls_only_those_without_a_result_are_closed():
    old = Transcript()
    old.prompt("first")
    one = old.call("c1", "both")
    two = old.call("c2", "both")
    old.result("c1", follows=one)
    made = rewind(old.entries)
    added = [entry for entry in made if entry.get("uuid", "").startswith("new-")]
    assert [entry["parentUuid"] for entry in added] == [two]
    assert [entry["message"]["content"][0]["tool_use_id"] for entry in added] == ["c2"]


def test_what_followed_a_call_without_a_result_follows_the_added_one():
    old = Transcript()
    old.prompt("first")
    call = old.call("c1")
    second = old.prompt("second")
    made = [one for one in rewind(old.entries) if is_main(one)]
    assert [(one["uuid"], one["parentUuid"]) for one in made] == [
        ("uuid-0", None),
        (call, "uuid-0"),
        ("new-0", call),
        (second, "new-0"),
    ]


def test_results_of_parallel_calls_are_kept_although_nothing_follows_them():
    old = Transcript()
    old.prompt("first")
    one = old.call("c1", "both")
    two = old.call("c2", "both")
    old.result("c1", follows=one)
    old.result("c2", follows=two)
    old.say("done")
    assert ids(rewind(old.entries)) == ids(old.entries)


def test_a_branch_that_the_conversation_left_is_dropped():
    old = Transcript()
    old.prompt("first")
    kept = old.say("done")
    old.prompt("wrong way")
    old.call("lost")
    right = old.prompt("right way", follows=kept)
    assert ids(rewind(old.entries)) == ["uuid-0", kept, right]


def test_going_back_inside_of_the_program_counts_before_anything_new_is_said():
    old = Transcript()
    first = old.prompt("first")
    kept = old.say("done")
    old.prompt("wrong way")
    old.say("oh")
    old.note("last-prompt", leafUuid=kept, explicit=True)
    assert ids(rewind(old.entries)) == [first, kept]
    old.note("last-prompt", leafUuid=None, explicit=True)
    assert rewind(old.entries) == []


def test_a_compaction_keeps_what_came_before_it():
    old = two_turns()
    before = old.last
    boundary = old.add("system", follows=None, subtype="compact_boundary", logicalParentUuid=before)
    old.prompt("This session is being continued", isCompactSummary=True)
    old.prompt("third")
    made = rewind(old.entries)
    assert ids(made) == ids(old.entries)
    found = next(one for one in made if one.get("uuid") == boundary)
    assert (found["parentUuid"], found["logicalParentUuid"]) == (None, before)


def test_an_unreadable_line_in_the_middle_loses_only_itself():
    old = two_turns()
    old.entries[3] = '{"cut'
    made = rewind(old.entries)
    assert ids(made) == ["uuid-0", "uuid-1", "uuid-2", "uuid-4", "uuid-5"]
    assert next(one for one in made if one.get("uuid") == "uuid-4")["parentUuid"] == "uuid-2"


def test_a_result_whose_call_was_unreadable_is_dropped():
    old = two_turns()
    old.entries[1] = "unreadable"
    assert ids(rewind(old.entries)) == ["uuid-0", "uuid-3", "uuid-4", "uuid-5"]


def test_thinking_that_nothing_followed_is_cut_off():
    old = two_turns()
    old.prompt("third")
    old.think()
    assert ids(rewind(old.entries))[-1] == "uuid-6"


def test_notes_of_requests_and_costs_stay_with_the_old_session():
    old = two_turns()
    for kind in ("api-request", "cost-state", "queue-operation", "bridge-session", "pr-link"):
        old.note(kind)
    old.note("custom-title", customTitle="Parser")
    notes = [one["type"] for one in rewind(old.entries) if not is_main(one)]
    assert notes == ["custom-title", "last-prompt"]


def test_notes_about_an_entry_are_kept_with_it():
    old = two_turns()
    cut = old.entries[:4]
    for uuid in ("uuid-0", "uuid-4"):
        cut.append({"type": "file-history-snapshot", "messageId": uuid, "snapshot": {}})
        cut.append({"type": "summary", "summary": "…", "leafUuid": uuid})
    notes = [one for one in rewind(cut) if not is_main(one)]
    assert [one.get("messageId") or one.get("leafUuid") for one in notes] == [
        "uuid-0",
        "uuid-0",
        "uuid-3",
    ]


def test_entries_of_subagents_in_the_file_are_kept_and_never_the_end():
    old = two_turns()
    old.add("user", follows=None, isSidechain=True, message={"role": "user", "content": "sub"})
    made = rewind(old.entries)
    assert [one["sessionId"] for one in made if one.get("isSidechain")] == [NEW]
    assert made[-1]["leafUuid"] == "uuid-5"


def test_parents_that_run_in_a_circle_end_the_walk():
    old = two_turns()
    old.entries[0]["parentUuid"] = "uuid-5"
    assert ids(rewind(old.entries)) == ids(old.entries)


def test_a_moved_conversation_names_the_new_directory_and_tells_the_model():
    old = Transcript(cwd="/project/src")
    old.prompt("first", cwd="/projects")
    old.say("done")
    made = rewind(old.entries, NewSession(NEW, "…", Move("/project", "/copy")))
    assert [one["cwd"] for one in made if "cwd" in one] == ["/projects", "/copy/src", "/copy/src"]
    told = made[-2]
    assert told["isMeta"]
    assert "/copy" in told["message"]["content"]
    assert made[-1]["leafUuid"] == told["uuid"]
    assert [one.text for one in prompts(made)] == ["first"]


def test_prompts_are_what_a_person_typed():
    old = two_turns()
    old.prompt("<local-command-caveat>…", isMeta=True)
    old.prompt("<command-name>/compact</command-name>")
    old.prompt("This session is being continued", isCompactSummary=True)
    old.add("user", message={"role": "user", "content": [{"type": "text", "text": "third"}]})
    found = prompts(old.entries)
    assert [(one.entry, one.text) for one in found] == [(0, "first"), (4, "second"), (9, "third")]
    assert found[1].uuid == "uuid-4"
    assert found[1].time == "2026-11-18T10:00:04.000Z"


@pytest.mark.parametrize(
    "said",
    [
        "[Request interrupted by user]",
        "[Request interrupted by user for tool use]",
        "[Request interrupted: the session ended before this agent finished. Nobody asked it.]",
    ],
)
def test_a_note_that_a_turn_was_stopped_is_no_prompt(said: str):
    old = two_turns()
    block = {"type": "text", "text": said}
    old.add("user", message={"role": "user", "content": [block]}, promptId="asked")
    old.prompt(f"{said} is what I saw")
    assert [one.text for one in prompts(old.entries)] == [
        "first",
        "second",
        f"{said} is what I saw",
    ]


def test_a_command_is_a_prompt_if_it_was_asked():
    old = two_turns()
    said = "<command-name>/fix</command-name>\n<command-args>the build</command-args>"
    old.prompt(said, promptId="asked")
    old.prompt("what the command says", promptId="asked", isMeta=True)
    old.prompt("<command-name>/cost</command-name>", promptId="shown")
    found = prompts(old.entries, {"asked"})
    assert [one.text for one in found] == ["first", "second", "/fix the build"]


def test_lines_that_the_store_keeps_as_text_are_entries_again():
    old = two_turns()
    old.entries[2]["message"]["content"][0]["content"] = "cut in half: \ud83d"
    old.entries[3]["message"]["usage"] = {"output_tokens": 2**70}
    lines = [json.dumps(one) for one in old.entries]
    stored = [*old.entries[:2], *lines[2:4], *old.entries[4:], "{cut"]
    made = decoded(stored)
    assert made == [*old.entries, "{cut"]
    again = [json.loads(line) for line in encode(rewind(made)).splitlines()]
    assert again[2]["message"] == old.entries[2]["message"]
    assert again[3]["message"] == old.entries[3]["message"]


def test_a_subagent_gets_the_session_id_of_its_parent():
    old = Transcript()
    old.prompt("look", isSidechain=True, agentId="a1")
    old.note("api-request")
    made = subagent([*old.entries, "unreadable"], SESSION)
    assert [(one["sessionId"], one["agentId"]) for one in made] == [(NEW, "a1")]


def test_keys_are_written_in_the_order_of_the_program():
    sorted_keys = json.loads(json.dumps(two_turns().entries, sort_keys=True))
    for line in encode(rewind(sorted_keys)).splitlines():
        assert line.startswith((b'{"parentUuid":', b'{"type":'))
        if line.startswith(b'{"parentUuid":'):
            assert b'","timestamp":"' in line


def test_backups_are_names_and_never_paths():
    tracked = {"a.txt": {"backupFileName": "0a@v1"}, "b.txt": {"backupFileName": None}}
    bad = {"backupFileName": "../secret"}
    notes = [
        {"type": "file-history-snapshot", "snapshot": {"trackedFileBackups": tracked}},
        {"type": "file-history-delta", "backup": {"backupFileName": "1b@v2"}},
        {"type": "file-history-delta", "backup": bad},
        {"type": "file-history-delta", "backup": {"backupFileName": ".."}},
    ]
    assert backups(notes) == {"0a@v1", "1b@v2"}


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("/srv/my/project", "-srv-my-project"),
        ("/home/me/odd dir/ü.x_y (1)", "-home-me-odd-dir---x-y--1-"),
        ("/srv/😀z", "-srv---z"),
        ("/srv/e\u0301x", "-srv-e-x"),
    ],
)
def test_the_folder_of_a_directory_is_the_one_that_the_program_uses(directory: str, name: str):
    assert folder_name(directory) == name


def test_the_folder_of_a_long_path_ends_with_a_hash():
    # As the real program named it.
    path = "/srv/agents/long" + "/abcdefghijklmnopqrstuvwxyz0123456789" * 6
    name = folder_name(path)
    assert name.endswith("-z6p2i2")
    assert len(name) == FOLDER_LENGTH + 7


@st.composite
def transcripts(draw: st.DrawFn) -> list[Any]:
    """Any tree of prompts, answers, calls and results, cut anywhere, with unreadable lines.

    An answer has an id of its own, and its parts follow each other: only results of its calls come
    in between.
    """
    made = Transcript()
    known: list[str] = []
    calls: list[tuple[str, str]] = []
    part: tuple[str, str] | None = None
    for number in range(draw(st.integers(0, 25))):
        follows = draw(st.sampled_from([True, *known])) if known else True
        kinds = [
            "prompt",
            "say",
            "think",
            "call",
            "result",
            "torn",
            *(["parallel"] if part else []),
        ]
        kind = draw(st.sampled_from(kinds))
        if kind == "torn":
            made.entries.append("{")
            continue
        if kind == "result" and calls:
            call, at = draw(st.sampled_from(calls))
            known.append(made.result(call, follows=at))
            continue
        if kind in ("call", "parallel"):
            answer, at = part if part and kind == "parallel" else (f"x{number}", follows)
            known.append(made.call(f"c{number}", answer, follows=at))
            calls.append((f"c{number}", known[-1]))
            part = (answer, known[-1])
            continue
        part = None
        known.append(made.think() if kind == "think" else getattr(made, kind)("…"))
    return [one if draw(st.integers(0, 9)) else "torn" for one in made.entries]


@given(transcripts())
def test_any_transcript_becomes_one_that_is_whole(entries: list[Any]):
    made = rewind(entries)
    for found in (made, rewind(made)):
        main = [one for one in found if is_main(one)]
        assert bool(found) == bool(main) == bool(made)
        known = [one["uuid"] for one in main]
        assert len(set(known)) == len(known)
        assert all(one["parentUuid"] in (None, *known[:at]) for at, one in enumerate(main))
        assert blocks(main, "tool_use", "id") == blocks(main, "tool_result", "tool_use_id")


def blocks(entries: list[Any], kind: str, key: str) -> set[str]:
    contents = [one["message"]["content"] for one in entries]
    found = [block for one in contents if isinstance(one, list) for block in one]
    return {block[key] for block in found if block["type"] == kind}
