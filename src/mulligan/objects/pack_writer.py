"""Appending to packs: each writing process owns the pack it appends to.

Ownership is an exclusive ``flock``, held as long as bytes of this process may not be in the index
yet. The next owner of a pack truncates what was never acknowledged.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from mulligan.errors import DiskFull, ReadOnlyStore, StoreUnwritable
from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.objects.frames import (
    PACK_HEADER_SIZE,
    DamagedFrame,
    check_pack_header,
    encode_pack_header,
    pack_name,
    pack_number,
)
from mulligan.objects.protocol import CommittedLength, LastForgotten
from mulligan.owner import open_as_owner

CANDIDATES = 16
"""How many of the newest packs are tried before a new one is created."""

START_SYNC = 8 << 20
"""After this many bytes, writeback is started, so that the sync has less left to do."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EROFS, errno.EACCES, errno.EPERM)
_NOT_OURS = (*_DENIED, errno.ENOENT, errno.ELOOP, errno.EISDIR)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Translate errors of the system about a pack, or about the directory of packs."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(f"There is no space left to write {path}.") from error
        if error.errno in _DENIED:
            raise ReadOnlyStore(f"{path} cannot be written: {error.strerror}.") from error
        if error.errno == errno.EIO:
            raise StoreUnwritable(
                f"The disk failed to write {path}: {error.strerror}.",
                hint="Everything acknowledged before is safe. Try again: that uses another pack. "
                "If it fails again, check the disk.",
            ) from error
        raise


def _sync(fd: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync alone leaves the bytes in the drive's cache
    else:
        os.fdatasync(fd)  # data and length; the other metadata is not needed to read it back


def _sync_directory(path: Path) -> None:
    """Make names in a directory durable: the sync of a file does not cover them."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(fd: int, data: memoryview, offset: int) -> None:
    while data:
        # A write may be short, for example when the disk fills up.
        written = os.pwrite(fd, data, offset)
        data = data[written:]
        offset += written


def list_packs(directory: Path) -> list[int]:
    """Return the numbers of the packs in a directory, in order."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(number for name in names if (number := pack_number(name)) is not None)


class OwnPack:
    """A pack whose lock this process holds."""

    _fd = -1  # for ``__del__``, if a signal ends the constructor

    def __init__(
        self, path: Path, number: int, fd: int, end: int, failpoint: FailpointHook
    ) -> None:
        self.path = path
        self.number = number
        self.end = end
        self.failed = False
        self._fd = fd
        self._started = end
        self._synced = end
        # One sync at a time: threads that wait for it find their frames covered by it.
        self._syncing = Lock()
        self._failpoint = failpoint

    def append(self, frame: bytes) -> int:
        """Write a frame at the end and return its offset; nothing is appended on any error."""
        offset, half = self.end, len(frame) // 2
        view = memoryview(frame)
        with explained(self.path):
            try:
                _write(self._fd, view[:half], offset)
                self._failpoint(Failpoint.PACK_FRAME_HALF_WRITTEN)
                _write(self._fd, view[half:], offset + half)
            except BaseException:
                # Only to free the space: the next frame overwrites these bytes anyway.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, offset)
                raise
        # Only now: a frame that was written in part is overwritten by the next one.
        self.end = offset + len(frame)
        self._failpoint(Failpoint.PACK_FRAME_WRITTEN)
        if self.end - self._started >= START_SYNC:
            self._start_sync()
        return offset

    def _start_sync(self) -> None:
        """Start writeback of the newest frames; errors show at the sync."""
        start, self._started = self._started, self.end
        if hasattr(os, "posix_fadvise"):
            # For dirty pages, DONTNEED only starts writeback.
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, start, self.end - start, os.POSIX_FADV_DONTNEED)

    def sync(self, end: int) -> None:
        """Make everything before ``end`` durable; waiting threads share one sync."""
        with self._syncing, explained(self.path):
            if self._synced >= end:
                return
            if self.failed:
                raise OSError(errno.EIO, "An earlier sync of this pack failed", str(self.path))
            # Read before the sync: frames that other threads append during it may not be covered.
            target = self.end
            try:
                _sync(self._fd)
            except OSError:
                # The kernel may have dropped the pages, and a second sync would report success.
                self.failed = True
                raise
            self._synced = target

    def release(self) -> None:
        """Unlock and close; everything appended must be in the index, or be given up."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                # Explicitly: a forked process may still have the file open, and the lock with it.
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.abandon()

    def abandon(self) -> None:
        """Close without unlocking: after a fork, the lock belongs to the parent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # A store was dropped without being closed, or its process has forked. The ``__del__`` of
        # another object that is garbage, too, may still write: that takes another pack.
        self.failed = True
        self.abandon()


class PackWriter:
    """The packs that this process owns; frames go to the current one."""

    def __init__(
        self,
        directory: Path,
        store_id: bytes,
        committed: CommittedLength,
        last_forgotten: LastForgotten,
        failpoint: FailpointHook,
        pack_limit: int,
    ) -> None:
        self._directory = directory
        self._store_id = store_id
        self._committed = committed
        self._last_forgotten = last_forgotten
        self._failpoint = failpoint
        self._limit = pack_limit
        # Frames are appended one after the other: two at the same offset would destroy each other.
        self._lock = Lock()
        self._current: OwnPack | None = None
        self._retired: list[OwnPack] = []

    def append(self, frame: bytes) -> tuple[OwnPack, int]:
        """Write a frame and return the pack it went to and its offset there."""
        with self._lock:
            pack = self._writable()
            return pack, pack.append(frame)

    def close(self) -> None:
        """Release every pack."""
        with self._lock:
            for pack in self._owned():
                pack.release()

    def abandon(self) -> None:
        """Close every pack without unlocking, and without a lock that may be held for good."""
        for pack in self._owned():
            pack.abandon()

    def _owned(self) -> list[OwnPack]:
        owned = self._retired + ([self._current] if self._current else [])
        self._retired, self._current = [], None
        return owned

    def _writable(self) -> OwnPack:
        pack = self._current
        if pack is not None and (pack.failed or pack.end >= self._limit):
            self._retired.append(pack)
            # Retired, not released: objects in it may not be committed yet.
            pack = self._current = None
        if pack is None:
            self._release_retired()
            with explained(self._directory):
                pack = self._current = self._adopt() or self._create()
        return pack

    def _release_retired(self) -> None:
        # A pack stays locked until all of it is in the journal: if it were unlocked earlier,
        # another process could truncate frames that are about to be committed.
        owned, self._retired = self._retired, []
        for pack in owned:
            if not pack.failed and self._committed(pack.number) >= pack.end:
                pack.release()
            else:
                self._retired.append(pack)

    def _adopt(self) -> OwnPack | None:
        # Newest first: older packs are mostly full, or owned by long-running writers.
        for number in list_packs(self._directory)[: -CANDIDATES - 1 : -1]:
            try:
                fd = os.open(
                    self._path(number), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                )
            except OSError as error:
                # Removed meanwhile, a link, or written by another user: any other pack will do.
                if error.errno in _NOT_OURS:
                    continue
                raise
            pack = self._claim(fd, number)
            if pack is not None:
                return pack
        return None

    def _create(self) -> OwnPack:
        # O_EXCL: of several processes that choose the same number, one gets it.
        # Never the number of a removed pack: locations in it may still be known somewhere.
        number = max([self._last_forgotten(), *list_packs(self._directory)]) + 1
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            # A number that the journal knows belongs to a pack that was lost; do not reuse it.
            if not self._committed(number):
                with contextlib.suppress(FileExistsError):
                    fd = open_as_owner(self._path(number), flags)
                    # Another process may already have found and locked the new file.
                    pack = self._claim(fd, number)
                    if pack is not None:
                        return pack
            number += 1

    def _path(self, number: int) -> Path:
        return self._directory / pack_name(number)

    def _claim(self, fd: int, number: int) -> OwnPack | None:
        """Lock the pack and return it; return None and close it if that is not possible."""
        end = None
        try:
            with contextlib.suppress(BlockingIOError):
                # Never wait: the owner may keep its pack for hours, and any other pack will do.
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end = self._prepared(fd, number)
        finally:
            if end is None:
                os.close(fd)
        if end is None:
            return None
        return OwnPack(self._path(number), number, fd, end, self._failpoint)

    def _prepared(self, fd: int, number: int) -> int | None:
        """Prepare a locked pack for appending and return its end; None if that is not possible."""
        status = os.fstat(fd)
        # Read under the lock: before it, the previous owner could still commit more.
        committed = self._committed(number)
        # Deleted between open and lock: what is written there would be lost.
        if not stat.S_ISREG(status.st_mode) or status.st_nlink == 0:
            return None
        # A pack that lost acknowledged bytes is left as it is, for verify to report.
        if status.st_size < committed or committed >= self._limit:
            return None
        # A removed pack whose file is still there, because upkeep was killed; it removes it later.
        if not committed and number <= self._last_forgotten():
            return None
        if not committed and status.st_size < PACK_HEADER_SIZE:
            self._write_header(fd, number)
            return PACK_HEADER_SIZE
        try:
            header = os.pread(fd, PACK_HEADER_SIZE, 0)
            check_pack_header(header, number, self._store_id)
        except DamagedFrame:
            return None
        end = max(committed, PACK_HEADER_SIZE)
        if not committed:
            # Its creator may have died before the name was durable.
            _sync_directory(self._directory)
        if status.st_size > end:
            self._cut_tail(fd, end)
        return end

    def _write_header(self, fd: int, number: int) -> None:
        # Also over a part of a header, which a creator left that was killed.
        _write(fd, memoryview(encode_pack_header(number, self._store_id)), 0)
        # Both before the first frame: an acknowledged frame needs its header and its name.
        os.fsync(fd)
        _sync_directory(self._directory)
        self._failpoint(Failpoint.PACK_CREATED)

    def _cut_tail(self, fd: int, end: int) -> None:
        # Bytes past the acknowledged length are of a writer that died before its commit, and no
        # index entry leads to them. Under the pack's lock: of a live writer they would be needed.
        os.ftruncate(fd, end)
        # Synced before new frames: a power cut must not bring the old tail back behind them.
        os.fsync(fd)
        self._failpoint(Failpoint.PACK_TAIL_CUT)
