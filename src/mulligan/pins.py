"""Pins and grace periods: nothing is removed while an operation may still use it.

An operation that looks objects up and refers to them later, or reads them later, runs inside a
*pin*. Upkeep removes references first; then it starts a *grace period*, which ends when all
operations have ended that were pinned at its start. What was out of reach at the start is then out
of reach for all. This is epoch-based reclamation: operations never wait, only upkeep does.

A pin is a shared ``flock`` on the file ``locks/pins``, so it ends with its process. A grace period
renames that file, and is over when the renamed one can be locked exclusively. The next operation
creates a new file. Renamed files stay until they are no longer locked: the process that renamed
one may die, and the next grace period must wait for its operations too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from mulligan.errors import DiskFull, StoreUnwritable
from mulligan.owner import make_directory, open_as_owner

NAME = "pins"


class _Epoch:
    """The operations that were pinned between two grace periods, in this process."""

    __slots__ = ("handle", "inode", "pid", "users")

    def __init__(self, handle: int = -1) -> None:
        self.handle = handle
        self.pid = os.getpid()
        self.inode = -1 if handle < 0 else os.fstat(handle).st_ino
        self.users = 0

    def unlock(self) -> None:
        # Not by closing alone: a process forked meanwhile shares the lock and may live on.
        if self.handle >= 0:
            fcntl.flock(self.handle, fcntl.LOCK_UN)

    def close(self) -> None:
        handle, self.handle = self.handle, -1
        if handle >= 0:
            # That of no file: the ``__del__`` of another object that is garbage, too, may pin.
            self.inode = 0
            os.close(handle)

    def __del__(self) -> None:
        self.close()  # a store was dropped without being closed


class Pins:
    """The pins of one store; without a directory, they hold for this process alone."""

    def __init__(
        self, locks: Path | None, check_present: Callable[[], None] = lambda: None
    ) -> None:
        self._file = None if locks is None else str(locks / NAME)
        self._check_present = check_present
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        # For the counters of this process; the flock alone cannot count nested pins.
        self._lock = threading.Lock()
        self._current: _Epoch | None = None
        self._earlier: list[_Epoch] = []

    @property
    def is_pinned(self) -> bool:
        """Whether an operation of this process is pinned."""
        if self._pid != os.getpid():
            return False
        current = self._current
        return bool(current and current.users) or any(epoch.users for epoch in self._earlier)

    def pin(self) -> Pin:
        """Return a context manager that keeps everything that can be found now; pins nest."""
        return Pin(self)

    def start_grace_period(self) -> GracePeriod:
        """Start a grace period. The caller must not be pinned: it would wait for itself."""
        with self._guard():
            if self._file is None:
                current, self._current = self._current, None
                if current is not None and current.users:
                    self._earlier.append(current)
                return GracePeriod([], list(self._earlier))
            with suppress(FileNotFoundError):  # no operation was pinned since the last one
                # The rename divides time: operations that pin from now on lock a new file, so the
                # old one drains while new ones never stop coming.
                os.rename(self._file, f"{self._file}-{os.urandom(8).hex()}")
        path = Path(self._file)
        return GracePeriod([*path.parent.glob(f"{path.name}-*")], [])

    def close(self) -> None:
        """Release the file; pins of other threads keep theirs."""
        with self._guard():
            self._retire()

    def enter(self) -> _Epoch:
        """Pin one operation; ends with ``leave``."""
        counted = None
        try:
            with self._guard():
                epoch = self._locked_epoch()
                epoch.users += 1
                counted = epoch
            return epoch
        except BaseException:
            if counted is not None:  # a signal at the end of the block
                self.leave(counted)
            raise

    def _locked_epoch(self) -> _Epoch:
        epoch = self._current
        if epoch is None:
            return self._renewed()
        if not epoch.users and epoch.handle >= 0:
            # Shared: operations do not wait for each other, only a grace period waits for all of
            # them.
            fcntl.flock(epoch.handle, fcntl.LOCK_SH)
            # Compared after the lock: a grace period that started before it ignores this lock.
            if not self._is_current(epoch):
                epoch.unlock()
                return self._renewed()
        elif not self._is_current(epoch):
            return self._renewed()
        return epoch

    def is_known(self, epoch: _Epoch) -> bool:
        """Whether the end of an epoch would be noticed."""
        return epoch.handle >= 0 or self._file is None

    def leave(self, epoch: _Epoch) -> None:
        """End the pin of one operation."""
        # A process forked meanwhile has none of the parent's pins, also after pins of its own: it
        # shares the parent's lock, and would release it for the parent, too.
        if epoch.pid != os.getpid():
            return
        with self._lock:
            epoch.users -= 1
            if epoch.users:
                return
            epoch.unlock()
            if epoch is not self._current:
                epoch.close()
                self._earlier.remove(epoch)

    def _guard(self) -> threading.Lock:
        if self._pid != os.getpid():
            self._forget()  # a lock inherited by a fork may be held forever
        return self._lock

    def _is_current(self, epoch: _Epoch) -> bool:
        if self._file is None or epoch.inode < 0:
            return True
        try:
            return os.stat(self._file).st_ino == epoch.inode
        except FileNotFoundError:
            return False

    def _retire(self) -> None:
        before, self._current = self._current, None
        if before is not None and before.users:
            self._earlier.append(before)
        elif before is not None:
            before.close()

    def _renewed(self) -> _Epoch:
        """Make the epoch of the present file the current one, locked."""
        self._retire()
        # In a loop: a grace period may start at any moment.
        while True:
            epoch = _Epoch() if self._file is None else _Epoch(self._opened(self._file))
            if epoch.handle >= 0:
                fcntl.flock(epoch.handle, fcntl.LOCK_SH)
            # It may have been renamed between the open and the lock.
            if self._is_current(epoch):
                self._current = epoch
                return epoch
            epoch.close()

    def _opened(self, file: str) -> int:
        try:
            return _open(file)
        except FileNotFoundError:
            # Otherwise a deleted store would be reported as one that cannot be written.
            self._check_present()
            make_directory(os.path.dirname(file))
            return _open(file)


class Pin:
    """One pinned operation; a class, because generators are slower and every write uses one."""

    __slots__ = ("_epoch", "_pins")

    def __init__(self, pins: Pins) -> None:
        self._pins = pins

    def __enter__(self) -> object:
        """Return the epoch: between two pins of the same one, no grace period has started."""
        self._epoch = self._pins.enter()
        try:
            # Without the file, nothing shows whether one has.
            return self._epoch if self._pins.is_known(self._epoch) else object()
        except BaseException:  # a signal
            self._pins.leave(self._epoch)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pins.leave(self._epoch)


class GracePeriod:
    """A grace period that has started."""

    def __init__(self, files: list[Path], epochs: list[_Epoch]) -> None:
        self._files = files
        self._epochs = epochs

    def is_over(self) -> bool:
        """Whether every operation has ended that was pinned at the start."""
        self._files = [file for file in self._files if not _is_drained(file)]
        self._epochs = [epoch for epoch in self._epochs if epoch.users]
        return not self._files and not self._epochs


def _open(file: str) -> int:
    """Open the file of the pins; -1 if the store cannot be written, so that nothing is removed."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return open_as_owner(file, flags | os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"There is no space left for {file}.") from error
        if error.errno == errno.ENOENT:
            raise
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise StoreUnwritable(f"{file} cannot be opened: {error.strerror}.") from error
    try:
        # A shared lock needs no right to write, so readers of a store of another user hold off its
        # upkeep, too.
        return os.open(file, flags | os.O_RDONLY)
    except OSError:
        return -1


def _is_drained(file: Path) -> bool:
    """Delete a renamed file if no operation has it locked; return whether it is gone."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        # Exclusive, and at once: each operation that still uses the file holds it shared.
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It is no longer at the name that operations open: one that locks it from now on sees
        # that, and takes the present file.
        file.unlink(missing_ok=True)
    # An operation that began before the grace period still runs; the caller asks again later.
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
