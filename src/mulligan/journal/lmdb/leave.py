"""Asking other processes to close the journal for a moment, so that its file can be replaced.

The process that asks creates ``journal/leave`` and keeps it locked with ``flock``. Every process
that has the journal open looks for the file when it begins a transaction, at most once a second. It
then closes the journal, waits for the lock, and opens the journal again. A process that dies gives
its lock up, so a file that is left behind asks for nothing. An idle process does not look, and the
one that asks goes on without it after some time.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mulligan.owner import open_as_owner

NAME = "leave"

LOOK_SECONDS = 1.0
"""How often a process looks whether it is asked."""

_POLL_SECONDS = 0.01
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def asking(directory: Path, is_used: Callable[[], bool], seconds: float) -> Iterator[None]:
    """Ask other processes to leave, and wait until they have; go on after some seconds anyway."""
    path = directory / NAME
    fd = open_as_owner(path, _FLAGS | os.O_CREAT)
    try:
        # Before the wait: without the lock, the file asks for nothing.
        fcntl.flock(fd, fcntl.LOCK_EX)
        # An idle process does not look for the file, so the wait has an end; compaction then skips.
        deadline = time.monotonic() + seconds
        while is_used() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        # Before the lock is released: those that waited for it must not find the file again.
        with suppress(OSError):  # a file that is left behind asks for nothing
            path.unlink(missing_ok=True)
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def asked(directory: Path) -> int | None:
    """Return the open file if another process asks to leave, for :func:`wait`; None if not."""
    try:
        fd = os.open(directory / NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        # Free means that the file was left behind by a process that died: it asks for nothing.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return fd
    os.close(fd)
    return None


def wait(fd: int) -> None:
    """Wait until the process that asks is done, and close the file."""
    try:
        # Shared: all processes that left may come back at the same time.
        fcntl.flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)
