"""The process of a coding agent that does not name it to its hooks."""

from __future__ import annotations

import os

from mulligan import procfs

SHELLS = {"sh", "bash", "dash", "zsh", "fish", "ksh", "ash", "busybox", "env", "timeout"}
"""Programs between an agent and its hook."""

MAX_STEPS = 4
"""How far up an agent is looked for."""


def agent_above() -> int | None:
    """Return the process that started this hook, past the shells in between; None if unknown."""
    pid = os.getppid()
    for _ in range(MAX_STEPS):
        found = procfs.stat(pid)
        if pid <= 1 or found is None:
            return None
        if procfs.name(pid) not in SHELLS:
            return pid
        pid = found.parent
    return None
