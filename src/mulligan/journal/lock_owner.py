"""Lock owners: which process holds a lock that this one waits for.

One process writes at a time. A process that is stopped (SIGSTOP, Ctrl-Z) while it holds the write
lock keeps it until it continues, and nothing else would name that process.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from mulligan import procfs

REPORT_AFTER_SECONDS = 3.0
"""A wait that takes longer than this is reported."""

STOPPED_POLL_SECONDS = 0.05
"""How often a wait for a stopped process checks whether it continues."""

WRITING = "writing to the store"


class LockOwner(msgspec.Struct, frozen=True):
    """The process that holds a lock: its number, its command, and whether it is stopped."""

    pid: int
    command: str
    is_stopped: bool
    doing: str = WRITING
    """What it is doing with the lock, as part of a sentence."""


OnWait = Callable[[LockOwner | None], None]
"""Called with the owner of the lock that is waited for; None if it is unknown."""


def find_flock_owner(handle: int, doing: str) -> LockOwner | None:
    """Return the owner of the ``flock`` of an open file that this process waits for.

    None if no owner is visible: it may run in another container.
    """
    for pid in procfs.flock_pids(os.fstat(handle).st_ino):
        # The same inode number may belong to another device.
        if pid > 0 and procfs.has_open(pid, handle):
            return LockOwner(pid, procfs.command(pid), procfs.is_stopped(pid), doing)
    return None
