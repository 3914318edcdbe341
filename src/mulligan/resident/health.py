"""Whether a helper that was started is able to answer."""

from __future__ import annotations

import os
from pathlib import Path

from mulligan import procfs
from mulligan.resident.place import LOCK, helper_directory


def stopped_helper(state: Path) -> int | None:
    """Return the process of a helper that is stopped; None if there is none.

    It holds the lock, so no other one can serve, and every hook waits for it in vain.
    """
    try:
        handle = os.open(helper_directory(state) / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None  # no helper was ever started
    try:
        holders = procfs.flock_pids(os.fstat(handle).st_ino)
        found = (pid for pid in holders if procfs.is_stopped(pid) and procfs.has_open(pid, handle))
        return next(found, None)
    finally:
        os.close(handle)
