"""When a journal that other processes have open is checked page by page again.

Each of them checked the file when it opened it, but a disk may have lost bits since. What they
write changes its digest, so only its pages can be checked, which takes far longer. So a small
journal is always checked, and a large one if the last check was some time ago: the modification
time of ``journal/checked``, which is a hint and may be deleted.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from mulligan.owner import open_as_owner

NAME = "checked"

ALWAYS_BYTES = 1 << 20
"""The size of the largest journal that is checked whenever it is opened beside others: 2 ms."""

SECONDS_PER_MEBIBYTE = 2.0
"""How long a check counts. One takes 2 ms for each MiB, so it is a thousandth of the time."""


def is_due(directory: Path, size: int) -> bool:
    """Whether a journal of this size has to be checked again."""
    if size <= ALWAYS_BYTES:
        return True
    try:
        age = time.time() - os.stat(directory / NAME, follow_symlinks=False).st_mtime
    except OSError:
        return True
    # A time in the future was written under a clock that was wrong: it counts for nothing.
    return not 0 <= age < size / (1 << 20) * SECONDS_PER_MEBIBYTE


def note(directory: Path) -> None:
    """Note that a journal was just checked; without effect on read-only media."""
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = open_as_owner(directory / NAME, flags)
        try:
            os.utime(fd)
        finally:
            os.close(fd)
