"""Conversations of opencode: prompts, the cut, new ids in the same order, and the import."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

from mulligan.coding.transcripts.opencode_transcript import OpenCodeFormat
from mulligan.coding.transcripts.transcript_format import INTERRUPTED, Entry, Move, NewSession

OLD, NEW = "ses_e1155c32dffevIbOcy7LISF2oD", "ses_new"
SESSION = NewSession(NEW, "2026-11-18T11:02:03.004Z", old=OLD)


def nothing(name: str) -> None:
    """Return that nothing was kept beside a transcript."""


FORMAT = OpenCodeFormat()


def id(kind: str, number: int) -> str:
    return f"{kind}_{0x1EEAA3D12000 + number:012x}YS7bZXLOYGvaqU"


def message(role: str, number: int, *parts: Entry, **info: Any) -> Entry:
    named = {"id": id("msg", number), "sessionID": OLD, "role": role, "time": {"created": 1000}}
    return {
        "info": {**named, **info},
        "parts": [
            {**part, "id": id("prt", number * 10 + at), "messageID": id("msg", number)}
            for at, part in enumerate(parts)
        ],
    }


def text(said: str, **more: Any) -> Entry:
    return {"type": "text", "text": said, **more}


def tool(call: str, status: str) -> Entry:
    state = {"status": status, "input": {"command": "ls"}}
    return {"type": "tool", "tool": "bash", "callID": call, "state": state}


def turns() -> list[Any]:
    return [
        message("user", 1, text("first"), text("a file", synthetic=True), agent="build"),
        message("assistant", 2, tool("c1", "completed"), parentID=id("msg", 1)),
        message("user", 3, text("second"), agent="build"),
        message("assistant", 4, tool("c2", "running"), path={"cwd": "/p/src", "root": "/"}),
    ]


def new_ids() -> Any:
    numbers = count(1)
    return lambda: f"00000000-0000-4000-8000-{next(numbers):012x}"


def test_prompts_are_what_a_person_typed():
    found = FORMAT.prompts([*turns(), "{cut", {"info": 3}], ())
    assert [(one.entry, one.text, one.asked) for one in found] == [
        (0, "first", id("msg", 1)),
        (2, "second", id("msg", 3)),
    ]
    assert found[0].time == "1970-01-01T00:00:01+00:00"


def test_a_cut_conversation_has_ids_of_its_own_in_the_same_order():
    made = FORMAT.rewound(turns()[:2], SESSION, new_ids()).entries
    assert OLD not in json.dumps(made)
    ids = [one["info"]["id"] for one in made]
    assert ids == sorted(ids)
    assert not set(ids) & {id("msg", 1), id("msg", 2)}
    assert made[1]["info"]["parentID"] == ids[0]
    assert all(part["messageID"] == one["info"]["id"] for one in made for part in one["parts"])
    parts = [part["id"] for one in made for part in one["parts"]]
    assert parts == sorted(set(parts))


def test_prompts_of_a_rewound_conversation_are_those_that_hooks_have_seen():
    seen = [one.uuid for one in FORMAT.prompts(turns(), ())]
    made = FORMAT.rewound(turns(), SESSION, new_ids()).entries
    found = FORMAT.prompts(made, seen)
    assert [one.asked for one in found] == seen
    assert not {one.uuid for one in found} & set(seen)


def test_calls_without_a_result_get_one():
    made = FORMAT.rewound(turns(), SESSION, new_ids())
    assert made.closed == 1
    state = made.entries[3]["parts"][0]["state"]
    assert (state["status"], state["error"]) == ("error", INTERRUPTED)
    assert state["input"] == {"command": "ls"}
    assert made.entries[1]["parts"][0]["state"]["status"] == "completed"


def test_the_result_of_a_call_is_kept_after_its_hook():
    then = turns()
    now = [*then[:3], message("assistant", 4, tool("c2", "completed"))]
    (part,) = FORMAT.completed(then, now, 4, {"c2"})[3]["parts"]
    assert part["state"]["status"] == "completed"
    assert FORMAT.completed(then, now, 4, set()) == then


def test_a_fork_is_in_its_directory_and_ends_with_a_note_that_is_no_prompt():
    moved = NewSession(NEW, SESSION.time, Move("/p", "/q"), OLD)
    made = FORMAT.rewound(turns(), moved, new_ids()).entries
    assert made[3]["info"]["path"] == {"cwd": "/q/src", "root": "/"}
    last = made[-1]
    assert "continues in /q" in last["parts"][0]["text"]
    assert last["info"]["id"] > made[3]["info"]["id"]
    assert last["info"]["agent"] == "build"
    assert [one.text for one in FORMAT.prompts(made, ())] == ["first", "second"]


def test_the_import_has_the_messages_and_the_command_names_it():
    folder = FORMAT.folder("/state/opencode/ses_x.jsonl", {"HOME": "/h"})
    path = folder.transcript(Path("/p"), SESSION)
    made = FORMAT.rewound(turns(), SESSION, new_ids()).entries
    (file,) = folder.placed(path, SESSION, made, nothing).side_files
    assert file.path == Path(f"/state/opencode/{NEW}.json")
    found = json.loads(file.data)
    assert (found["info"]["id"], found["info"]["title"]) == (NEW, "first")
    assert found["messages"] == made
    typed = f"opencode import {file.path} && opencode --session {NEW}"
    assert folder.resume_command(NEW, path, is_new=False) == typed
    assert folder.resume_command(NEW, None, is_new=False) == f"opencode --session {NEW}"


def test_before_the_first_prompt_there_is_a_session_without_messages():
    folder = FORMAT.folder(None, {"HOME": "/h", "XDG_STATE_HOME": "/s"})
    path = folder.transcript(Path("/p"), SESSION)
    (file,) = folder.placed(path, SESSION, [], nothing).side_files
    assert json.loads(file.data)["messages"] == []


def test_an_id_of_a_session_looks_like_those_of_the_program():
    made = FORMAT.session_id("01234567-89ab-4def-8123-456789abcdef")
    assert made == "ses_0123456789ab4def8123456789"
    assert len(made) == len(OLD)
