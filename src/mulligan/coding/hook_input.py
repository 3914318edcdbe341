"""The JSON that a coding agent gives its hooks, checked and turned into one neutral event.

The agents send nearly the same JSON. Claude Code sends everything; Codex no end of a batch of tool
calls, so that each call is a batch of its own; Gemini CLI has other names, and no ids of tool
calls; for opencode, the plugin that ``mulligan install`` writes sends it. What an agent does not
send is None, or empty, here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec
from blake3 import blake3

from mulligan.coding import agent_json
from mulligan.errors import InvalidHook

MAX_BYTES = 32 << 20
"""The longest hook JSON that is read. A tool's input and response are part of it."""

MAX_ID = 200
"""The longest id of a session, subagent or tool call, in characters."""


PROMPT_EVENT = "prompt "
"""How the id of an event begins that is made of a prompt, or of that of its turn."""


class HookKind(StrEnum):
    """What happened in the agent, whatever the agent calls it."""

    SESSION_START = "session start"
    PROMPT = "prompt"
    TOOL_CALLED = "tool called"
    TOOL_RETURNED = "tool returned"
    TOOL_FAILED = "tool failed"
    BATCH_END = "batch end"
    SUBAGENT_START = "subagent start"
    SUBAGENT_END = "subagent end"
    BEFORE_COMPACTION = "before compaction"
    TURN_END = "turn end"
    TURN_FAILED = "turn failed"
    SESSION_END = "session end"


class ToolUse(msgspec.Struct, frozen=True):
    """One call of a tool by the agent; ``id`` is None where the agent gives none."""

    name: str
    input: Any = None
    id: str | None = None
    response: Any = None
    error: str | None = None
    is_interrupt: bool = False


class HookEvent(msgspec.Struct, frozen=True):
    """One event of a coding agent.

    ``name`` is the agent's own name of it. ``detail`` tells events of a kind apart: how a session
    started (``startup``, ``resume``, ``clear``, ``compact``, ``fork``), why it ended, what caused a
    compaction (``manual``, ``auto``), or why a turn failed (``rate_limit``, ``unknown``).
    ``subagent`` is set for everything that a subagent does. ``id`` is that of the event, if its
    sender has given one; ``prompt_event`` is another one, which a prompt or a compaction has from
    every sender.
    """

    agent: str
    kind: HookKind
    name: str
    session_id: str
    cwd: str
    transcript: str | None = None
    prompt_id: str | None = None
    prompt: str | None = None
    detail: str | None = None
    tool: ToolUse | None = None
    calls: tuple[ToolUse, ...] = ()
    subagent: str | None = None
    subagent_type: str | None = None
    subagent_transcript: str | None = None
    id: str | None = None
    prompt_event: str | None = None

    @property
    def ids(self) -> list[str]:
        """The ids of the event itself: one that comes again under any of them is the same."""
        return [id for id in (self.prompt_event, self.id) if id is not None]


CLAUDE = "claude"

CLAUDE_EVENTS = {
    "SessionStart": HookKind.SESSION_START,
    "UserPromptSubmit": HookKind.PROMPT,
    "PreToolUse": HookKind.TOOL_CALLED,
    "PostToolUse": HookKind.TOOL_RETURNED,
    "PostToolUseFailure": HookKind.TOOL_FAILED,
    "PostToolBatch": HookKind.BATCH_END,
    "SubagentStart": HookKind.SUBAGENT_START,
    "SubagentStop": HookKind.SUBAGENT_END,
    "PreCompact": HookKind.BEFORE_COMPACTION,
    "Stop": HookKind.TURN_END,
    "StopFailure": HookKind.TURN_FAILED,
    "SessionEnd": HookKind.SESSION_END,
}
"""The events of Claude Code that are recorded, by their names."""

CODEX = "codex"

CODEX_EVENTS = {
    "SessionStart": HookKind.SESSION_START,
    "UserPromptSubmit": HookKind.PROMPT,
    "PreToolUse": HookKind.TOOL_CALLED,
    "PostToolUse": HookKind.BATCH_END,
    "SubagentStart": HookKind.SUBAGENT_START,
    "SubagentStop": HookKind.SUBAGENT_END,
    "PreCompact": HookKind.BEFORE_COMPACTION,
    "Stop": HookKind.TURN_END,
    "SessionEnd": HookKind.SESSION_END,
}

GEMINI = "gemini"

GEMINI_EVENTS = {
    "SessionStart": HookKind.SESSION_START,
    "BeforeAgent": HookKind.PROMPT,
    "BeforeTool": HookKind.TOOL_CALLED,
    "AfterTool": HookKind.BATCH_END,
    "AfterAgent": HookKind.TURN_END,
    "SessionEnd": HookKind.SESSION_END,
}
"""Without ``PreCompress``: Gemini CLI sends it with every turn, whether it compresses or not."""

OPENCODE = "opencode"

OPENCODE_EVENTS = {
    "SessionStart": HookKind.SESSION_START,
    "UserPromptSubmit": HookKind.PROMPT,
    "PreToolUse": HookKind.TOOL_CALLED,
    "PostToolUse": HookKind.BATCH_END,
    "PreCompact": HookKind.BEFORE_COMPACTION,
    "Stop": HookKind.TURN_END,
    "SessionEnd": HookKind.SESSION_END,
}

EVENTS: Mapping[str, Mapping[str, HookKind]] = {
    CLAUDE: CLAUDE_EVENTS,
    CODEX: CODEX_EVENTS,
    GEMINI: GEMINI_EVENTS,
    OPENCODE: OPENCODE_EVENTS,
}
"""The events of every known agent. An agent with other field names needs a reader of its own."""

_DETAILS = ("source", "reason", "trigger")
_CHECKPOINTS = {HookKind.PROMPT, HookKind.BEFORE_COMPACTION}
"""The events that always take a checkpoint, so that one too many would be seen."""
_NEEDS_TOOL = {HookKind.TOOL_CALLED, HookKind.TOOL_RETURNED, HookKind.TOOL_FAILED}


def parse(data: bytes, agent: str = CLAUDE) -> HookEvent:
    """Return the event that hook JSON describes.

    Raises ``InvalidHook`` for JSON that is cut, too long, not an object or without a needed field,
    and for events and agents that are not known. Unknown fields are ignored: agents add some with
    every version.
    """
    known = EVENTS.get(agent)
    if known is None:
        raise InvalidHook(f"Hooks of {agent!r} are not supported.")
    fields = _object(data)
    name = _needed(fields, "hook_event_name")
    kind = known.get(name)
    if kind is None:
        raise InvalidHook(f"The event {name[:100]!r} of {agent} is not known.")
    tool = _tool(fields) if kind in _NEEDS_TOOL else None
    return HookEvent(
        agent=agent,
        kind=kind,
        name=name,
        session_id=_id(_needed(fields, "session_id"), "session_id"),
        cwd=_needed(fields, "cwd"),
        transcript=_text(fields, "transcript_path"),
        prompt_id=_text(fields, "prompt_id") or _text(fields, "turn_id"),
        prompt=_text(fields, "prompt"),
        detail=_detail(fields, kind),
        tool=tool,
        calls=_calls(fields) if kind is HookKind.BATCH_END else (),
        subagent=_optional_id(fields, "agent_id"),
        subagent_type=_text(fields, "agent_type"),
        subagent_transcript=_text(fields, "agent_transcript_path"),
        prompt_event=_prompt_event(fields) if agent == CLAUDE and kind in _CHECKPOINTS else None,
    )


def _detail(fields: Mapping[str, Any], kind: HookKind) -> str | None:
    # A failed call of a tool has an error, too: its whole output.
    keys = ("error",) if kind is HookKind.TURN_FAILED else _DETAILS
    return next((text for key in keys if (text := _text(fields, key))), None)


def _prompt_event(fields: Mapping[str, Any]) -> str | None:
    """Return an id of a prompt or compaction as an event: the same one whichever hook tells of it.

    Two hooks may: of a user and of a project, or a call of the MCP server and a command beside it.
    The other events need no such id, for there is nothing new in them the second time.
    """
    prompt_id = _text(fields, "prompt_id")
    if not prompt_id:
        return None
    # With the text: prompts that a person types during a turn have the id of the turn's first one.
    # Conversations of subagents are compacted in a turn, too.
    what = _text(fields, "prompt") or _text(fields, "agent_id") or ""
    return f"{PROMPT_EVENT}{prompt_id[:MAX_ID]} {_digest(what)}"


def is_of(id: str, subagent: str | None) -> bool:
    """Whether a ``prompt_event`` is of the turn of a subagent; of None, all are."""
    ending = "" if subagent is None else f" {_digest(subagent)}"
    return id.startswith(PROMPT_EVENT) and id.endswith(ending)


def _digest(text: str) -> str:
    return blake3(text.encode("utf-8", "surrogatepass")).hexdigest(length=8)


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise InvalidHook(f"The hook's JSON is longer than {MAX_BYTES >> 20} MiB.")
    try:
        fields = agent_json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidHook(
            f"The hook's JSON of {len(data)} bytes cannot be read: {error}."
        ) from error
    if not isinstance(fields, dict):
        raise InvalidHook("The hook's JSON is not an object.")
    return fields


def _tool(fields: Mapping[str, Any]) -> ToolUse:
    return ToolUse(
        name=_needed(fields, "tool_name"),
        input=fields.get("tool_input"),
        id=_optional_id(fields, "tool_use_id"),
        response=fields.get("tool_response"),
        error=_text(fields, "error"),
        is_interrupt=fields.get("is_interrupt") is True,
    )


def _calls(fields: Mapping[str, Any]) -> tuple[ToolUse, ...]:
    """Return the calls of a batch; one that cannot be read is left to the transcript."""
    # An agent without batches sends the end of each call, which is then one.
    given = fields.get("tool_calls", [fields])
    if not isinstance(given, list):
        return ()
    found = (_readable_tool(one) for one in given if isinstance(one, dict))
    return tuple(call for call in found if call is not None)


def _readable_tool(fields: Mapping[str, Any]) -> ToolUse | None:
    try:
        return _tool(fields)
    except InvalidHook:
        return None


def _needed(fields: Mapping[str, Any], key: str) -> str:
    found = _text(fields, key)
    if not found:
        raise InvalidHook(f"The hook's JSON has no {key}.")
    return found


def _text(fields: Mapping[str, Any], key: str) -> str | None:
    found = fields.get(key)
    return found if isinstance(found, str) else None


def _optional_id(fields: Mapping[str, Any], key: str) -> str | None:
    found = _text(fields, key)
    return _id(found, key) if found else None


def _id(text: str, key: str) -> str:
    if len(text) > MAX_ID or not text.isprintable():
        raise InvalidHook(f"The {key} of the hook's JSON is too long, or not printable.")
    return text
