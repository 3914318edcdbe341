"""Hook JSON that arrives as the arguments of an MCP tool.

Claude Code can call a tool of a connected MCP server as a hook (type ``mcp_tool``). It fills in the
arguments that its settings name, each as a text: an object or a list as JSON, a value that the
event does not have as an empty text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan.coding import agent_json
from mulligan.coding.hook_input import MAX_BYTES
from mulligan.errors import InvalidHook

TEXTS = (
    "hook_event_name",
    "session_id",
    "transcript_path",
    "cwd",
    "permission_mode",
    "prompt_id",
    "prompt",
    "agent_id",
    "agent_type",
    "agent_transcript_path",
    "tool_name",
    "tool_use_id",
    "error",
    "trigger",
    "source",
    "reason",
)
VALUES = ("tool_input", "tool_response", "tool_calls", "is_interrupt", "stop_hook_active")
"""The fields that are not texts in the agent's JSON; a tool's response may be either."""

ARGUMENTS = {name: f"${{{name}}}" for name in (*TEXTS, *VALUES)}
"""What the settings of a hook name as ``input``."""

EVENTS = (
    "UserPromptSubmit",
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "PostToolBatch",
    "SubagentStop",
    "PreCompact",
    "Stop",
)
"""The events whose hooks may call a tool: at the others, no server is connected yet or any more."""


def hook_json(arguments: dict[str, Any]) -> bytes:
    """Return the JSON that the agent gives to its other hooks. Raises ``InvalidHook``."""
    fields: dict[str, Any] = {}
    for name, given in arguments.items():
        if name not in ARGUMENTS or given == "":
            continue
        fields[name] = _value(given) if name in VALUES else given
    data = msgspec.json.encode(fields)
    if len(data) > MAX_BYTES:
        raise InvalidHook(f"The hook's JSON is longer than {MAX_BYTES >> 20} MiB.")
    return data


def _value(given: Any) -> Any:
    """Return the value of a JSON text; a text that is no JSON is the value itself."""
    if not isinstance(given, str):
        return given
    try:
        return agent_json.decode(given.encode())
    except (msgspec.DecodeError, RecursionError):
        return given
