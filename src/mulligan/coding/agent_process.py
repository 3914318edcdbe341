"""The process of a coding agent that does not name it to its hooks."""

from __future__ import annotations

import os

from mulligan import procfs

SHELLS = {
    "sh",
    "bash",
    "dash",
    "zsh",
    "fish",
    "ksh",
    "ash",
    "busybox",
    "env",
    "timeout",
    "uv",
    "uvx",
}
"""Programs between an agent and its hook, or an MCP server."""

MAX_STEPS = 4
"""How far up an agent is looked for."""


def agent_above(hook: int | None = None) -> int | None:
    """Return the process that started a hook, past the shells in between; None if unknown.

    ``hook`` is the process of the hook: this one by default.
    """
    found = procfs.stat(os.getpid() if hook is None else hook)
    for _ in range(MAX_STEPS):
        if found is None or found.parent <= 1:
            return None
        if procfs.name(found.parent) not in SHELLS:
            return found.parent
        found = procfs.stat(found.parent)
    return None
