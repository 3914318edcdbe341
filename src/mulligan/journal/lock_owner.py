"""Lock owners: which process holds a lock that this one waits for.

One process writes at a time. A process that is stopped (SIGSTOP, Ctrl-Z) while it holds the write
lock keeps it until it continues, and nothing else would name that process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

import msgspec

from mulligan import procfs

REPORT_AFTER_SECONDS = 3.0
"""A wait that takes longer than this is reported."""

STOPPED_POLL_SECONDS = 0.05
"""How often a wait for a stopped process looks whether it continues."""

WRITING = "writing to the store"


class LockOwner(msgspec.Struct, frozen=True):
    """The process that holds a lock: its number, its command, and whether it is stopped."""

    pid: int
    command: str
    is_stopped: bool
    doing: str = WRITING
    """What it is doing with the lock, as part of a sentence."""


OnWait = Callable[[LockOwner | None], None]
"""Called with the process that is waited for; None where it cannot be found out."""


def find_flock_owner(handle: int, doing: str) -> LockOwner | None:
    """Return who has the ``flock`` of an open file, which this process waits for.

    None if no process is seen to have it: it may run in another container.
    """
    inode = str(os.fstat(handle).st_ino)
    try:
        # 1: FLOCK  ADVISORY  WRITE 4711 08:01:131073 0 EOF; a lock that is waited for has an arrow
        lines = [line.split() for line in (procfs.PROC / "locks").read_text().splitlines()]
    except OSError:
        return None
    locks = [words for words in lines if words[1:2] == ["FLOCK"] and len(words) > 5]
    pids = [int(words[4]) for words in locks if words[5].rpartition(":")[2] == inode]
    for pid in pids:
        if pid > 0 and _has_open(pid, handle):
            return LockOwner(pid, procfs.command(pid), procfs.is_stopped(pid), doing)
    return None


def _has_open(pid: int, handle: int) -> bool:
    """Whether a process has a file open: the same number of an inode may be another device's."""
    with suppress(OSError):
        own = os.fstat(handle)
        entries = (procfs.PROC / str(pid) / "fd").iterdir()
        return any(os.path.samestat(entry.stat(), own) for entry in entries)
    return False
