"""Releasing the storage of packs: holes, cut tails, removed files, objects copied elsewhere."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.model import Digest, Location, ObjectKind
from mulligan.objects.frames import (
    ENTRY_SIZE,
    PACK_HEADER_SIZE,
    DamagedFrame,
    check_pack_header,
    encode_frame,
)
from mulligan.objects.holes import punch, write_zeros
from mulligan.objects.pack_reader import PackReader
from mulligan.objects.pack_writer import OwnPack, PackWriter, explained
from mulligan.objects.protocol import Copied, Entry, Extent

_NO_PACK = (errno.ENOENT, errno.ELOOP, errno.EISDIR)


def usage(path: Path) -> int:
    """Return how many bytes a file takes on its disk; 0 if there is none."""
    try:
        return os.lstat(path).st_blocks * 512
    except FileNotFoundError:
        return 0


def free(path: Path, extents: Iterable[Extent], *, erase: bool = False) -> int | None:
    """Punch stretches out of a pack; return the bytes released, None if that is impossible.

    With ``erase``, zeros are written where no hole can be.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return 0
    try:
        with explained(path):
            before = os.fstat(fd).st_blocks
            for offset, length in extents:
                # The pack's header belongs to no frame.
                start = max(offset, PACK_HEADER_SIZE)
                end = min(offset + length, os.fstat(fd).st_size)
                if start >= end or punch(fd, start, end - start):
                    continue
                if not erase:
                    return None
                write_zeros(fd, start, end - start)
            # A power cut must not bring bytes back that were erased. And the next commit of the
            # journal would write the changes of the file system, while it holds the write lock.
            os.fsync(fd)
            return max(0, before - os.fstat(fd).st_blocks) * 512
    finally:
        os.close(fd)


class LockedPack:
    """A pack that no writer owns, locked; implements ``OwnedArea``."""

    def __init__(self, path: Path, fd: int, failpoint: FailpointHook) -> None:
        self._path = path
        self._fd = fd
        self._failpoint = failpoint

    def cut_tail(self, length: int) -> int:
        """Cut what follows the acknowledged length; return the bytes released."""
        before = os.fstat(self._fd)
        end = max(length, PACK_HEADER_SIZE)
        if before.st_size <= end:
            return 0
        with explained(self._path):
            os.ftruncate(self._fd, end)
            # Synced, as its next owner would do: a power cut must not bring the tail back.
            os.fsync(self._fd)
        self._failpoint(Failpoint.PACK_TAIL_CUT)
        return max(0, before.st_blocks - os.fstat(self._fd).st_blocks) * 512

    def remove(self) -> int:
        """Remove the pack; return the bytes released."""
        freed = os.fstat(self._fd).st_blocks * 512
        with explained(self._path):
            # The name first: after a crash in between, no writer can adopt an empty pack.
            os.unlink(self._path)
            self._failpoint(Failpoint.FREE_PACK_UNLINKED)
            # Long-lived readers keep packs open, which would keep the bytes on the disk.
            os.ftruncate(self._fd, 0)
            # See ``free``: not while the journal's next commit holds the write lock.
            os.fsync(self._fd)
        return freed


@contextmanager
def own(
    path: Path, number: int, store_id: bytes, failpoint: FailpointHook
) -> Iterator[LockedPack | None]:
    """Lock a pack as a writer does; yields None if one has it, or if it is not of this store."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in _NO_PACK:
            raise
        yield None
        return
    try:
        yield LockedPack(path, fd, failpoint) if _is_ours(fd, number, store_id) else None
    finally:
        # Explicitly: a process forked meanwhile may still have the file open.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _is_ours(fd: int, number: int, store_id: bytes) -> bool:
    try:
        # Never wait: the owner may keep its pack for hours.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        check_pack_header(os.pread(fd, PACK_HEADER_SIZE, 0), number, store_id)
    except (BlockingIOError, DamagedFrame):
        return False
    return os.fstat(fd).st_nlink > 0


def _frame_of(place: tuple[Entry, Location]) -> tuple[int, int]:
    return place[1].area, place[1].offset


class Copier:
    """Copies objects into new frames, each checked against its digest."""

    def __init__(self, reader: PackReader, writer: PackWriter, target: int, values: int) -> None:
        self._reader = reader
        self._writer = writer
        self._chunk_target, self._value_target = target, values
        self._pending: list[tuple[int, Digest, bytes]] = []
        self._old: list[Location] = []
        self._size = 0
        self._moves: dict[Digest, tuple[Location, Location]] = {}
        self._packs: dict[int, tuple[OwnPack, int]] = {}

    def copy(self, places: Sequence[tuple[Entry, Location]]) -> Copied:
        """Copy objects in the order of their locations; damaged ones are left where they are."""
        for _, group in groupby(places, key=_frame_of):
            listed = list(group)
            try:
                frame = self._reader.load(listed[0][1])
            except (DamagedFrame, OSError):
                continue
            for entry, location in listed:
                try:
                    data = frame.object(location.slot, entry.kind, entry.digest)
                except DamagedFrame:
                    continue
                self._add(entry, location, data)
        self._write()
        for pack, end in self._packs.values():
            # Before the index leads there.
            pack.sync(end)
        ends = {number: end for number, (_, end) in self._packs.items()}
        return Copied(self._moves, ends)

    def _add(self, entry: Entry, old: Location, data: bytes) -> None:
        cost = len(data) + ENTRY_SIZE
        is_mixed = bool(self._pending) and self._pending[0][0] != entry.kind
        is_chunk = entry.kind == ObjectKind.CHUNK
        if is_mixed or self._size + cost > (self._chunk_target if is_chunk else self._value_target):
            self._write()
        self._pending.append((entry.kind, entry.digest, data))
        self._old.append(old)
        self._size += cost

    def _write(self) -> None:
        if not self._pending:
            return
        frame = encode_frame(self._pending)
        pack, offset = self._writer.append(frame)
        for slot, ((_, digest, _), old) in enumerate(zip(self._pending, self._old, strict=True)):
            self._moves[digest] = old, Location(pack.number, offset, len(frame), slot)
        self._packs[pack.number] = (pack, offset + len(frame))
        self._pending, self._old, self._size = [], [], 0
