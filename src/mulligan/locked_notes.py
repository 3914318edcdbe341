"""Notes in the store's ``tmp/`` about what a process has made and may not live to remove.

A note is locked while its process lives. So the next process that finds one that is not locked
knows that its process died, and ends or removes what the note is about.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mulligan.layout import sync_directory, write_all
from mulligan.owner import make_directory, open_as_owner


def write_note(file: Path, data: bytes) -> int:
    """Make a note durable and return its locked handle, for ``close_note``."""
    make_directory(file.parent)  # tmp/ may be deleted at any time
    handle = open_as_owner(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    try:
        # Locked while it is empty: a process that finds the note must not mistake its owner for
        # dead.
        fcntl.flock(handle, fcntl.LOCK_EX)
        write_all(handle, data)
        # Durable before anything is made: after a power cut, all that was made has its note.
        os.fsync(handle)
        sync_directory(file.parent)
        # ``tmp`` was emptied by a user or a clean-up; without a name, no process would find the
        # note.
        if os.fstat(handle).st_nlink == 0:
            raise FileNotFoundError(f"{file} was deleted")
    except BaseException:
        file.unlink(missing_ok=True)
        os.close(handle)
        raise
    return handle


def close_note(handle: int) -> None:
    """Release the lock of a note, whether it was deleted or not."""
    # Explicitly: a process that was forked meanwhile shares the lock.
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


@contextmanager
def left_note(file: Path) -> Iterator[bool]:
    """Hold the lock of a note; yields False while its process lives, or has just deleted it."""
    handle = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            # Never wait: the process may be at work for minutes.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        # Deleted between open and lock: its process has just come to its end.
        yield os.fstat(handle).st_nlink > 0
    finally:
        # Releases nothing of a live process: this handle holds a lock only if there was none.
        close_note(handle)
