"""What Claude Code gives to a hook of type mcp_tool is what it gives to a command."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mulligan.coding import hook_input
from mulligan.coding.mcp_input import ARGUMENTS, EVENTS, hook_json

BASE = {
    "session_id": "s-1",
    "transcript_path": "/home/a/t.jsonl",
    "cwd": "/project",
    "prompt_id": "p-1",
    "permission_mode": "default",
    "effort": {"level": "medium"},
}

SENT: list[dict[str, Any]] = [
    {"hook_event_name": "UserPromptSubmit", "prompt": 'say {"a": 1} and ${cwd}'},
    {
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "echo 'x' > \"a b\"", "n": 7, "deep": [{"é": None}]},
        "tool_use_id": "t-1",
    },
    {
        "hook_event_name": "PostToolUse",
        "tool_name": "Bash",
        "tool_input": {},
        "tool_use_id": "t-1",
        "tool_response": {"stdout": "{}", "interrupted": False},
    },
    {
        "hook_event_name": "PostToolUseFailure",
        "tool_name": "Bash",
        "tool_input": {},
        "tool_use_id": "t-1",
        "error": "Exit code 1",
        "is_interrupt": True,
    },
    {
        "hook_event_name": "PostToolBatch",
        "tool_calls": [
            {"tool_name": "Read", "tool_input": {}, "tool_use_id": "t", "tool_response": "1\ttwo"}
        ],
    },
    {"hook_event_name": "SubagentStop", "agent_id": "a-1", "agent_type": "general"},
    {"hook_event_name": "PreCompact", "trigger": "auto"},
    {"hook_event_name": "Stop", "stop_hook_active": False, "last_assistant_message": "done"},
]


def filled_in(event: dict[str, Any]) -> dict[str, str]:
    """Return the arguments as the agent makes them: objects as JSON, nothing as an empty text."""

    def value(match: re.Match[str]) -> str:
        found = event.get(match.group(1))
        if found is None:
            return ""
        if isinstance(found, bool):
            return str(found).lower()
        return json.dumps(found) if isinstance(found, dict | list) else str(found)

    return {name: re.sub(r"\$\{([a-z_]+)\}", value, text) for name, text in ARGUMENTS.items()}


@pytest.mark.parametrize("sent", SENT, ids=lambda sent: sent["hook_event_name"])
def test_the_event_is_the_same_as_that_of_a_command(sent: dict[str, Any]) -> None:
    event = BASE | sent
    expected = hook_input.parse(json.dumps(event).encode())
    assert hook_input.parse(hook_json(filled_in(event))) == expected


def test_every_event_is_tried() -> None:
    assert {sent["hook_event_name"] for sent in SENT} == set(EVENTS)


def test_unknown_arguments_are_ignored_and_broken_json_stays_a_text() -> None:
    data = hook_json({"hook_event_name": "Stop", "shell": "rm", "tool_input": '{"cut'})
    assert json.loads(data) == {"hook_event_name": "Stop", "tool_input": '{"cut'}
