"""Directory locks: one restore at a time, and no capture while files are being restored.

Three lock files in the store represent a directory. Each is locked with ``flock``, so a process
that dies holds none of them:

- ``restore-D`` is held by a restore. A second restore is refused at once.
- ``gate-D`` is also held by a restore; a capture passes through it. Without it, back-to-back
  captures could keep a restore waiting forever.
- ``files-D`` is shared by captures and exclusive for a restore. It lists the sessions whose restore
  was started and not finished, for the captures of other sessions.

D is the device and inode of the directory, so every path to it leads to the same locks. The locks
belong to one store: restores and captures of another store on the same directory do not see them.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from blake3 import blake3

from mulligan.engine import Engine
from mulligan.errors import DiskFull, RestoreBusy, StoreUnwritable
from mulligan.journal.lock_owner import REPORT_AFTER_SECONDS, STOPPED_POLL_SECONDS, find_flock_owner
from mulligan.layout import LOCKS
from mulligan.owner import make_directory, open_as_owner
from mulligan.workspace.restore.fileops import is_disk_full

RESTORE, GATE, FILES = "restore", "gate", "files"

_MAX_MARK_BYTES = 1 << 16
"""Maximum number of bytes of session numbers that are read."""

_FIRST_POLL_SECONDS = 0.001


def marked_sessions(locks: Path) -> set[int]:
    """Return the sessions that have a mark in any directory."""
    found: set[int] = set()
    for file in locks.glob(f"{FILES}-*"):
        with suppress(OSError), file.open("rb") as stream:
            found |= _numbers(stream.fileno())
    return found


class Marks:
    """The numbers of the sessions whose restore in a directory was started and not finished.

    The journal has the final say on each: a process may die before it removes its mark. An empty
    file was never written. In that case the marks of all directories apply: one of them may be this
    directory, with a different device number since a reboot.
    """

    def __init__(self, handle: int | None, locks: str | None = None) -> None:
        self._handle = handle
        self._locks = locks

    def read(self) -> set[int]:
        """Return the session numbers."""
        if self._handle is None:
            return set()
        # Never an empty set from an empty file; see the class.
        return _numbers(self._handle) if self._is_written(self._handle) else self._elsewhere()

    def _elsewhere(self) -> set[int]:
        return marked_sessions(Path(self._locks)) if self._locks else set()

    @staticmethod
    def _is_written(handle: int) -> bool:
        return os.fstat(handle).st_size > 0

    def add(self, number: int) -> None:
        """Add a session; durable on return, because later steps rely on the mark."""
        if self._handle is None:
            return
        try:
            self._write(self._handle, self.read() | {number})
            # The mark must reach the disk before the first file changes: a capture by another
            # session would otherwise store a half-restored directory after a crash.
            os.fsync(self._handle)
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull("There is no space left for the marks of restores.") from error
            raise StoreUnwritable(f"A restore cannot be marked: {error.strerror}.") from error

    def remove(self, *numbers: int) -> None:
        """Remove sessions.

        Not synced, and errors are ignored: a stale mark only costs a lookup in the journal.
        """
        if self._handle is None:
            return
        if not numbers and self._is_written(self._handle):
            return
        marked = self.read()
        if marked & set(numbers) or not self._is_written(self._handle):
            with suppress(OSError):
                self._write(self._handle, marked - set(numbers))

    @staticmethod
    def _write(handle: int, numbers: set[int]) -> None:
        data = "".join(f"{number}\n" for number in sorted(numbers)).encode() or b"\n"
        # Written before the file is cut: a crash in between leaves numbers too many, which only
        # cost a lookup.
        os.pwrite(handle, data, 0)
        os.ftruncate(handle, len(data))


def _numbers(handle: int) -> set[int]:
    words = os.pread(handle, _MAX_MARK_BYTES, 0).split()
    return {int(word) for word in words if word.isdigit()}


@contextmanager
def lock_directory(engine: Engine, root: Path) -> Iterator[Marks]:
    """Lock a directory for a restore, after waiting for captures that are under way.

    All sessions of a store share the locks of a directory, because their restores would mix.
    """
    with _Held(engine, root) as held:
        # Always in this order, so that no two processes can deadlock. The gate comes before the
        # files lock: it stops new captures while the running ones finish.
        held.take(RESTORE, fcntl.LOCK_EX, wait_for=None)
        held.take(GATE, fcntl.LOCK_EX, wait_for="capturing files")
        yield held.marks(held.take(FILES, fcntl.LOCK_EX, wait_for="capturing files"))


@contextmanager
def share_directory(engine: Engine, root: Path) -> Iterator[Marks]:
    """Keep restores out of a directory while it is captured; waits for one that is under way."""
    with _Held(engine, root) as held:
        # The gate first: while a restore waits for the running captures, it holds the gate, and new
        # captures queue here instead of overtaking it.
        held.take(GATE, fcntl.LOCK_SH, wait_for="restoring files")
        handle = held.take(FILES, fcntl.LOCK_SH, wait_for="restoring files")
        # Only passed through: held any longer, it would keep a restore from queueing.
        held.release(GATE)
        yield held.marks(handle)


def is_restoring(engine: Engine, root: Path) -> bool:
    """Whether a process is restoring files in a directory right now."""
    if engine.directory is None:
        return False
    try:
        handle = os.open(engine.directory / LOCKS / lock_name(root, GATE), os.O_RDONLY)
    except OSError:
        return False  # no restore has run here yet
    try:
        # Probe the gate, where a restore only waits a moment; probing its own lock would make a
        # restore that starts now fail.
        return not _is_taken(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def lock_name(root: Path, which: str = RESTORE) -> str:
    """Return the name of a directory's lock, which is the same for every path to it."""
    return f"{which}-{_identity(root, None)}"


def _identity(root: Path, handle: int | None) -> str:
    """Return the device and inode of a directory, or the digest of its path if it is gone.

    A directory that no longer exists can only be identified by its path.
    """
    try:
        status = os.stat(root if handle is None else handle)
    except OSError:
        return blake3(os.fsencode(os.path.realpath(root))).hexdigest(length=16)
    return f"{status.st_dev:x}-{status.st_ino:x}"


class _Held:
    """The locks that one thread holds on a directory; all are released at the end."""

    def __init__(self, engine: Engine, root: Path) -> None:
        self._engine = engine
        self._root = root
        self._handles: dict[str, int] = {}
        self._locks = None if engine.directory is None else f"{engine.directory}/{LOCKS}"
        self._directory: int | None = None
        self._name = ""
        self._key = ("", 0, 0)
        # An in-memory store belongs to one process, and so do its locks. In a forked child, the
        # copied lock may be held forever.
        is_in_memory = engine.directory is None and engine.is_own_process
        self._in_memory = engine.directory_lock if is_in_memory else nullcontext()

    def __enter__(self) -> _Held:
        # While open, the directory keeps its inode number; some filesystems reassign it otherwise.
        with suppress(OSError):
            self._directory = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._name = _identity(self._root, self._directory)
        self._key = (self._name, os.getpid(), threading.get_ident())
        # Two descriptors conflict under flock even within one thread: without this check, a nested
        # call would wait for itself forever.
        if self._engine.directory is not None and self._key in self._engine.held:
            self._close()
            raise RestoreBusy(
                f"This thread is already capturing or restoring files in {self._root}.",
                hint="Nothing was changed. Retry after that call returns.",
            )
        # After the check above: a thread that waits for its own lock would never return.
        self._in_memory.__enter__()
        self._engine.held.add(self._key)
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.held.discard(self._key)
        for which in list(self._handles):
            self.release(which)
        self._in_memory.__exit__(None, None, None)
        self._close()

    def _close(self) -> None:
        if self._directory is not None:
            os.close(self._directory)

    def take(self, which: str, how: int, *, wait_for: str | None) -> int | None:
        """Take a lock; wait for its owner, or raise ``RestoreBusy`` if ``wait_for`` is None."""
        handle = self._open(which)
        if handle is None:
            return None
        self._handles[which] = handle
        if _is_taken(handle, how):
            return handle
        if wait_for is None:
            raise RestoreBusy(f"Another process is restoring files in {self._root}.")
        self._wait(handle, how, wait_for)
        return handle

    def marks(self, handle: int | None) -> Marks:
        """Return the marks stored in a lock file."""
        return Marks(handle, self._locks)

    def release(self, which: str) -> None:
        """Release a lock."""
        handle = self._handles.pop(which, None)
        if handle is not None:
            # A process forked in the meantime shares the lock; closing alone would not release it.
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def _open(self, which: str) -> int | None:
        """Open a lock file; None if it does not exist and the store cannot be written."""
        if self._locks is None:
            return None
        file = f"{self._locks}/{which}-{self._name}"
        try:
            if self._engine.read_only:
                return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            return self._made(self._locks, file)
        except OSError as error:
            if self._engine.read_only:
                return None
            if is_disk_full(error):
                raise DiskFull(f"There is no space left for {file}.") from error
            raise StoreUnwritable(f"{file} cannot be opened: {error.strerror}.") from error

    def _made(self, locks: str, file: str) -> int:
        """Open a lock file, which is made if it is missing."""
        # Lock files are never deleted: a process could hold the lock of a file that has lost its
        # name.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            return open_as_owner(file, flags)
        except FileNotFoundError:
            # Otherwise a deleted store would be reported as one that cannot be written.
            self._engine.check_present()
            make_directory(locks)  # stores of earlier versions have none
            return open_as_owner(file, flags)

    def _wait(self, handle: int, how: int, doing: str) -> None:
        """Retry until the lock is free; a signal, or an error from ``on_wait``, ends the wait."""
        began, is_reported, nap = time.monotonic(), False, _FIRST_POLL_SECONDS
        # Poll with backoff instead of blocking in flock: the wait stays interruptible, and the
        # owner can be reported once it has lasted.
        while not _is_taken(handle, how):
            if not is_reported and time.monotonic() - began >= REPORT_AFTER_SECONDS:
                self._engine.on_wait(find_flock_owner(handle, doing))
                is_reported = True
            time.sleep(nap)
            nap = min(2 * nap, STOPPED_POLL_SECONDS)


def _is_taken(handle: int, how: int) -> bool:
    """Try to take a lock without waiting; return whether it is now held."""
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
