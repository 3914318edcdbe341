"""Reading LMDB's lock file without dropping LMDB's locks.

LMDB's locks on ``lock.mdb`` are POSIX record locks. A process loses all its locks on a file as soon
as it closes *any* descriptor of that file. The next process to open the journal would then assume
that it is alone, and reset the lock under a writer. So each process has one descriptor per lock
file, shared by all code that reads it, and closes it after the environment.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
from pathlib import Path

from mulligan.owner import open_as_owner

NAME = "lock.mdb"

_FLOCK = struct.Struct("hhqqi4x")
"""``struct flock`` of 64-bit Linux: type, whence, start, length, process."""

Key = tuple[int, int]

_INVALID = bytes(8)
"""What takes the place of LMDB's magic number and version."""


class _Descriptor:
    __slots__ = ("fd", "holds")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.holds = 0


_descriptors: dict[Key, _Descriptor] = {}
# One descriptor per file and process: closing any descriptor of a file drops all record locks that
# the process has on it, also those of LMDB. So opening and counting are one step.
# Reentrant: a garbage collection in the middle may close another store.
_guard = threading.RLock()


def _renew_guard() -> None:
    """Replace the lock: another thread may have held it at the fork."""
    global _guard
    _guard = threading.RLock()


os.register_at_fork(after_in_child=_renew_guard)


class LockFile:
    """A reference to this process's descriptor of a journal's lock file."""

    __slots__ = ("_descriptor", "_key")

    def __init__(self, directory: Path, *, create: bool = False) -> None:
        path = directory / NAME
        with _guard:
            if create:
                _create(path)
            self._key = _identity(os.stat(path))
            self._descriptor = _descriptors.get(self._key) or self._opened(path)
            self._descriptor.holds += 1

    def _opened(self, path: Path) -> _Descriptor:
        made = _Descriptor(_open(path))
        # The file may have been replaced; leak the descriptor, because closing it drops locks.
        self._key = _identity(os.fstat(made.fd))
        return _descriptors.setdefault(self._key, made)

    def read(self, length: int) -> bytes:
        """Return the first bytes of the file."""
        return os.pread(self._descriptor.fd, length, 0)

    def is_used_elsewhere(self) -> bool:
        """Whether another process has the environment open, as far as the lock file shows."""
        return self.other_user() is not None

    def other_user(self) -> int | None:
        """Return another process that has the environment open, as far as the lock file shows."""
        if sys.platform != "linux" or struct.calcsize("P") != 8:
            return None
        # F_GETLK reports only locks of other processes; those of this process do not conflict.
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self._descriptor.fd, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else int(pid)

    def lock_alone(self) -> bool:
        """Lock the first byte exclusively, so that every process that opens the journal waits.

        It does not wait, because others may keep the journal open for hours; it returns whether
        none does. The environment of this process must be closed. Opening it again takes the lock
        over.
        """
        try:
            # The byte on which LMDB itself holds a shared lock while an environment is open.
            fcntl.lockf(self._descriptor.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN, errno.EBADF):
                raise
            return False  # in use, or the file cannot be written
        return True

    @property
    def is_read_only(self) -> bool:
        """Whether the file cannot be written, so that it can never be locked alone."""
        return fcntl.fcntl(self._descriptor.fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY

    def invalidate(self) -> None:
        """Make LMDB refuse the file until a process that is alone initialises it again.

        A process that already waits for the lock would otherwise trust its record of the newest
        commit, which describes the file that was replaced.
        """
        os.pwrite(self._descriptor.fd, _INVALID, 0)

    @property
    def is_invalid(self) -> bool:
        """Whether the file has to be initialised; see ``invalidate``."""
        return self.read(len(_INVALID)) == _INVALID

    def release(self) -> None:
        """Release the reference; call it once, after the environment of this process was closed."""
        with _guard:
            self._descriptor.holds -= 1
            if self._descriptor.holds == 0:
                del _descriptors[self._key]
                # Drops every lock of this process on the file: no environment may be open any more.
                os.close(self._descriptor.fd)


def _open(path: Path) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | flags)  # for ``lock_alone``
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return os.open(path, os.O_RDONLY | flags)


def _create(path: Path) -> None:
    """Create the file if it is missing: a new one has no locks that closing it could drop."""
    try:
        os.close(open_as_owner(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
    except FileExistsError:
        return


def _identity(status: os.stat_result) -> Key:
    return status.st_dev, status.st_ino
