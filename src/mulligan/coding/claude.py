"""What only Claude Code does: its files, its process, and the results in its transcripts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mulligan import procfs
from mulligan.coding.hook_input import MAX_ID, ToolUse

PROJECT = "CLAUDE_PROJECT_DIR"
"""The variable that names the directory in which the agent was started."""

PROCESS = "CLAUDE_PID"
"""The variable that names the agent's process to its hooks."""

NOTIFICATION = "<task-notification>"
"""How a prompt begins that the agent gives itself when a task in the background has ended."""

_PREFIX, _SUFFIX = "agent-", ".jsonl"


def agent_process(variables: Mapping[str, str]) -> int | None:
    """Return the process of the agent that runs a hook; None if it cannot be told."""
    named = variables.get(PROCESS, "")
    pid = int(named) if named.isascii() and named.isdigit() else 0
    return pid if pid > 1 and procfs.started(pid) is not None else None


def subagent_files(transcript: str) -> dict[str, str]:
    """Return the transcripts of subagents by their ids; they are in a directory of the session."""
    directory = os.path.join(transcript.removesuffix(_SUFFIX), "subagents")
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return {}  # most sessions have none
    return {
        name.removeprefix(_PREFIX).removesuffix(_SUFFIX): os.path.join(directory, name)
        for name in names
        if name.startswith(_PREFIX) and name.endswith(_SUFFIX) and len(name) < MAX_ID
    }


def tool_results(entries: Iterable[Any]) -> Iterator[ToolUse]:
    """Yield the calls of tools that returned, as the entries of a transcript tell of them."""
    for entry in entries:
        message = entry.get("message") if isinstance(entry, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") == "tool_result":
                id, result = part.get("tool_use_id"), part.get("content")
                if isinstance(id, str) and 0 < len(id) <= MAX_ID:
                    failed = part.get("is_error") is True
                    error = str(result)[:1000] if failed else None
                    yield ToolUse("unknown", id=id, response=result, error=error)
