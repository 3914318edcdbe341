"""What only Claude Code does: its files, its process, and the results in its transcripts."""

from __future__ import annotations

import os
import re
import stat
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

COMPACTED = "compact"
"""How a session starts again after its conversation was compacted."""

RESULT_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}(?:\.[A-Za-z0-9]{1,10})?")
"""The names of files with large results of tools."""

MAX_RESULT = 16 << 20
"""The largest result that is kept, in bytes; a larger one stays where the agent has it."""

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


def tool_results_of(transcript: str) -> str:
    """Return the directory of results of tools that were too large for a transcript."""
    return os.path.join(transcript.removesuffix(_SUFFIX), "tool-results")


def large_results(transcript: str, known: Mapping[str, int]) -> dict[str, bytes]:
    """Return large results by their names, without those that are known by their size."""
    directory = tool_results_of(transcript)
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return {}  # most sessions have none
    plain = [name for name in names if RESULT_NAME.fullmatch(name)]
    read = {name: _result(os.path.join(directory, name), known.get(name)) for name in plain}
    return {name: data for name, data in read.items() if data is not None}


def _result(path: str, known: int | None) -> bytes | None:
    """Return the content of a file; None if it is known, too large, or no regular file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None  # gone meanwhile, or a link
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size in (known, 0):
            return None
        return None if found.st_size > MAX_RESULT else file.read(MAX_RESULT)


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
