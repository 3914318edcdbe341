"""Hook JSON becomes a neutral event; anything else is refused in one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mulligan.coding import hook_input
from mulligan.coding.hook_input import CLAUDE_EVENTS, HookKind, ToolUse, parse
from mulligan.errors import InvalidHook


def hook(event: str, **fields: Any) -> bytes:
    """Return hook JSON as Claude Code sends it."""
    base = {"session_id": "s-1", "transcript_path": "/t/s-1.jsonl", "cwd": "/p"}
    return json.dumps({**base, "hook_event_name": event, **fields}).encode()


def test_a_tool_call_has_its_name_input_and_id() -> None:
    given = hook("PreToolUse", tool_name="Bash", tool_input={"command": "ls"}, tool_use_id="t1")
    event = parse(given)
    assert event.kind is HookKind.TOOL_CALLED
    assert (event.session_id, event.cwd, event.transcript) == ("s-1", "/p", "/t/s-1.jsonl")
    assert event.tool == ToolUse("Bash", {"command": "ls"}, "t1")


def test_a_failure_has_its_error() -> None:
    event = parse(hook("PostToolUseFailure", tool_name="Bash", error="Exit code 1"))
    assert event.tool is not None
    assert event.tool.error == "Exit code 1"
    assert event.tool.id is None, "Gemini CLI gives calls no ids"


def test_a_batch_has_its_calls_and_leaves_out_what_it_cannot_read() -> None:
    calls = [{"tool_name": "Bash", "tool_use_id": "a", "tool_response": "ok"}, {"x": 1}, 7]
    event = parse(hook("PostToolBatch", tool_calls=calls))
    assert event.calls == (ToolUse("Bash", id="a", response="ok"),)
    assert parse(hook("PostToolBatch", tool_calls="none")).calls == ()


@pytest.mark.parametrize("source", ["startup", "resume", "clear", "compact", "fork"])
def test_starts_are_told_apart(source: str) -> None:
    assert parse(hook("SessionStart", source=source)).detail == source


def test_ends_and_compactions_say_why() -> None:
    assert parse(hook("SessionEnd", reason="clear")).detail == "clear"
    assert parse(hook("PreCompact", trigger="auto")).detail == "auto"
    assert parse(hook("StopFailure", error="overloaded")).detail == "overloaded"


def test_what_a_subagent_does_names_it() -> None:
    event = parse(
        hook("SubagentStop", agent_id="a1", agent_type="Explore", agent_transcript_path="/x")
    )
    assert (event.subagent, event.subagent_type, event.subagent_transcript) == (
        "a1",
        "Explore",
        "/x",
    )


def test_every_recorded_event_is_read() -> None:
    for name, kind in CLAUDE_EVENTS.items():
        assert parse(hook(name, tool_name="Bash")).kind is kind


def test_unknown_fields_are_ignored() -> None:
    assert parse(hook("Stop", new_field={"a": [1]})).kind is HookKind.TURN_END


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (hook("Stop")[:-9], "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[1]", "not an object"),
        (b'{"session_id": "x", "cwd": "/"}', "no hook_event_name"),
        (hook("Stop", session_id=7), "no session_id"),
        (hook("Stop", cwd=None), "no cwd"),
        (hook("PreToolUse"), "no tool_name"),
        (hook("Stop", session_id="x" * 201), "too long"),
        (hook("Stop", session_id="a\nb"), "not printable"),
        (hook("Brainwave"), "'Brainwave' of claude is not known"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(data: bytes, said: str) -> None:
    with pytest.raises(InvalidHook, match=said):
        parse(data)


def test_huge_json_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_input, "MAX_BYTES", 100)
    with pytest.raises(InvalidHook, match="longer than"):
        parse(hook("UserPromptSubmit", prompt="x" * 100))


def test_an_unknown_agent_is_refused() -> None:
    with pytest.raises(InvalidHook, match="Hooks of 'cursor' are not"):
        parse(hook("Stop"), "cursor")
