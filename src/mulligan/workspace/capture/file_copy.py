"""Copies of files that are being written to, so that they can be stored from a stable source.

Chunking and compressing a large file takes many times longer than copying it, and storing a reading
that turns out inconsistent would be wasted. So such a file is cloned where the filesystem supports
it (a clone is a point-in-time copy), or else copied, and stored from the copy. The copies have no
names: they show up neither in the workspace nor in the store, and they vanish with the process.
"""

from __future__ import annotations

import errno
import fcntl
import os
from functools import partial
from pathlib import Path
from typing import IO

from blake3 import blake3

from mulligan.clock import Clock
from mulligan.workspace.capture.steady_read import MAX_READINGS, Reading, read_steadily, signature
from mulligan.workspace.syscalls import FICLONE

HOT_NANOSECONDS = 1_000_000_000
"""A file that changed within this many nanoseconds may be under constant write."""

MAX_COPY_SECONDS = 1.0
"""After this many seconds a copy is not retried."""

_BLOCK = 1 << 20
_ZEROS = bytes(_BLOCK)

_NO_CLONES = (errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOSYS, errno.EXDEV)
"""Errors by which a filesystem reports that it cannot clone, or not to this target."""


class _NoRoom(Exception):
    """The copy cannot be written; this says nothing about the file itself."""


class FileCopies:
    """Make nameless copies of open files, in a directory of the store if there is one."""

    def __init__(self, directory: Path | None, clock: Clock) -> None:
        self._directories = (directory, None) if directory is not None else (None,)
        self._clock = clock
        self._without_clones: set[int] = set()

    def is_hot(self, status: os.stat_result) -> bool:
        """Whether a file changed so recently that more changes are likely."""
        # abs: a file from a machine with a faster clock is in the future, and hot as well.
        return abs(self._clock.wall_ns() - status.st_mtime_ns) < HOT_NANOSECONDS

    def copy(self, handle: int, directory: int) -> Reading[IO[bytes]] | None:
        """Clone or copy an open file from a directory; None if there is no space for it.

        The content of the reading is a file that the caller closes.
        """
        return self.clone(handle, directory) or self._copy(handle)

    def clone(self, handle: int, directory: int) -> Reading[IO[bytes]] | None:
        """Clone an open file from a directory; None where the filesystem cannot."""
        before = os.fstat(handle)
        if before.st_dev in self._without_clones:
            return None
        error = None
        for nameless in (self._nameless, partial(_nameless_in, directory)):
            file = nameless()
            # In the store first; a clone works only within one filesystem, so then beside the file
            # itself.
            error = file and _clone(handle, file)
            if file is not None and error is None:
                # The clone itself is atomic; this only decides whether the stat belongs to its
                # bytes.
                holds = signature(before) == signature(os.fstat(handle))
                return Reading(file, os.fstat(file.fileno()).st_size, before, holds)
        if error in _NO_CLONES:
            self._without_clones.add(before.st_dev)
        return None

    def _copy(self, handle: int) -> Reading[IO[bytes]] | None:
        file = self._nameless()
        if file is None:
            return None
        end = self._clock.monotonic() + MAX_COPY_SECONDS
        try:
            reading = read_steadily(
                handle,
                partial(_copied, handle, file.fileno()),
                MAX_READINGS,
                lambda: self._clock.monotonic() > end,
            )
        except BaseException as error:
            # A file without a name takes space until it is closed.
            file.close()
            if isinstance(error, _NoRoom):
                return None
            raise
        return Reading(file, reading.size, reading.stat, reading.holds, reading.torn)

    def _nameless(self) -> IO[bytes] | None:
        from tempfile import TemporaryFile  # slow to import, rarely needed

        for directory in self._directories:
            try:
                return TemporaryFile(dir=directory, buffering=0)
            except OSError:
                continue  # a read-only store, or a full disk
        return None


def _nameless_in(directory: int) -> IO[bytes] | None:
    """Return a file on the filesystem of a directory that never has a name there."""
    if not hasattr(os, "O_TMPFILE"):
        return None
    try:
        handle = os.open(b".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except OSError:
        return None
    return os.fdopen(handle, "w+b", buffering=0)


def _clone(handle: int, file: IO[bytes]) -> int | None:
    """Make a new file a clone of another; on failure, close it and return the error number."""
    try:
        fcntl.ioctl(file, FICLONE, handle)
    except OSError as error:
        file.close()
        return error.errno
    return None


def _copied(handle: int, copy: int, size: int) -> tuple[bytes, int]:
    """Copy this many bytes from one file to another; return their digest and actual count."""
    digest, at = blake3(), 0
    try:
        os.ftruncate(copy, 0)
    except OSError as error:
        raise _NoRoom from error
    while at < size and (block := os.pread(handle, min(_BLOCK, size - at), at)):
        digest.update(block)
        _write(copy, block, at)
        at += len(block)
    try:
        os.ftruncate(copy, at)
    except OSError as error:
        raise _NoRoom from error
    return digest.digest(), at


def _write(copy: int, block: bytes, at: int) -> None:
    if block == _ZEROS[: len(block)]:
        return  # keep holes
    view = memoryview(block)
    try:
        while view:
            written = os.pwrite(copy, view, at)
            view, at = view[written:], at + written
    except OSError as error:
        raise _NoRoom from error
