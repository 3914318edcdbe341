"""Transcripts with values of other types than the agents write: nothing in them raises an error."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mulligan.coding.transcripts.claude_transcript import backups
from mulligan.coding.transcripts.transcript_format import Move, NewSession
from mulligan.coding.transcripts.transcript_formats import FORMATS
from tests.unit.coding.codex_entries import Rollout

ODD: list[Any] = [None, -1, 1.5, True, "", "x", [], {}, [1], {"a": 1}, ["x", None]]

MESSAGE = "msg_000000000001" + "a" * 14


def codex() -> list[Any]:
    made = Rollout("/w")
    made.prompt("first", "t1")
    made.say("done")
    call = {"type": "function_call", "call_id": "c1", "name": "x"}
    return [*made.entries, {"timestamp": "t", "type": "response_item", "payload": call}]


def claude() -> list[Any]:
    frame = {"sessionId": "s", "cwd": "/w"}
    use = {"type": "tool_use", "id": "c1", "name": "x", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "x"}
    tracked = {"f": {"backupFileName": "b"}}
    said = [("user", "hi"), ("assistant", [use]), ("user", [result]), ("user", "two")]
    lines = [
        {
            **frame,
            "type": role,
            "uuid": f"u{number}",
            "parentUuid": f"u{number - 1}" if number else None,
            "message": {"role": role, "content": content},
        }
        for number, (role, content) in enumerate(said)
    ]
    note = {"type": "file-history-snapshot", "messageId": "u0"}
    return [*lines, {**note, "snapshot": {"messageId": "u0", "trackedFileBackups": tracked}}]


def gemini() -> list[Any]:
    asked = {"id": "m1", "type": "user", "content": [{"text": "hi"}]}
    return [
        {"sessionId": "s", "projectHash": "h", "startTime": "t", "kind": "main"},
        asked,
        {"id": "m2", "type": "gemini", "content": "x", "toolCalls": [{"id": "c1", "name": "n"}]},
        {"$set": {"messages": [asked]}},
        {"id": "m3", "type": "user", "content": [{"functionResponse": {"id": "c1"}}]},
        {"$rewindTo": "m1"},
        {"id": "m4", "type": "user", "content": "more"},
        {"id": "m5", "type": "gemini", "content": [{"functionCall": {"id": "c9", "name": "n"}}]},
    ]


def opencode() -> list[Any]:
    info = {"id": MESSAGE, "role": "user", "sessionID": "s", "path": {"cwd": "/w"}}
    call = {"type": "tool", "callID": "c1", "state": {"status": "running", "input": {}}}
    return [
        {"info": {**info, "time": {"created": 1}}, "parts": [{"type": "text", "text": "hi"}]},
        {"info": {**info, "role": "assistant"}, "parts": [call]},
    ]


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key in value if isinstance(value, dict) else range(len(value)):
        yield (*above, key)
        if isinstance(value[key], dict | list):
            yield from places(value[key], (*above, key))


def odd(entries: list[Any]) -> Iterator[list[Any]]:
    """Yield copies of entries with one value replaced by another, or left out."""
    for *above, last in places(entries):
        for value in ODD:
            made = copy.deepcopy(entries)
            holder: Any = made
            for key in above:
                holder = holder[key]
            holder[last] = value
            yield made
            if isinstance(holder, dict):
                del holder[last]
                yield made


@pytest.mark.parametrize("seed", [codex, claude, gemini, opencode])
@pytest.mark.parametrize("move", [None, Move("/w", "/v")])
def test_no_value_of_a_transcript_raises_an_error(seed: Any, move: Move | None) -> None:
    known, numbers = FORMATS[seed.__name__], count()
    new = NewSession("new", "2026-11-18T10:00:00.000Z", move, "s", "/h/.x")
    for made in odd(seed()):
        entries = known.parsed(made)
        known.owner(Path("/nowhere/chats/file"), entries)
        known.prompts(entries, ("t1",))
        for calls in (["c1"], None):
            known.completed(entries, entries, len(entries), calls)
        known.subagent(entries, new)
        known.started_in(entries, "/w/x", "/w")
        rewound = known.rewound(entries, new, lambda: f"id-{next(numbers)}")
        if seed is claude:
            backups(rewound.entries)
