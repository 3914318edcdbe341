"""Walking a pack from its first frame to its last, for ``verify`` and to rebuild the index.

Damage never ends the walk: a damaged object is reported with its frame, and a stretch without a
readable frame is a gap, after which the walk continues.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mulligan.model import Location, ObjectKind
from mulligan.objects.frames import (
    FRAME_HEADER_SIZE,
    FRAME_MAGIC,
    PACK_HEADER_SIZE,
    DamagedFrame,
    Entry,
    FrameHeader,
    check_pack_header,
    decode_directory,
    decode_frame,
    decode_header,
    entries,
    pack_owner,
)
from mulligan.objects.pack_reader import ReadHandle, open_pack

_WINDOW = 1 << 20


class ScannedFrame(msgspec.Struct, frozen=True):
    """A frame whose header and directory are intact.

    ``damage`` names the damaged objects by slot; it is empty when all are intact, and when the
    bodies were not read.
    """

    pack: int
    offset: int
    length: int
    entries: tuple[Entry, ...]
    damage: dict[int, str]

    def location(self, slot: int) -> Location:
        """Return the location of the object in a slot, as in the index."""
        return Location(self.pack, self.offset, self.length, slot)


class ScannedGap(msgspec.Struct, frozen=True):
    """A stretch of a pack in which nothing can be read, and why."""

    pack: int
    offset: int
    length: int
    detail: str


Scanned = ScannedFrame | ScannedGap


def scan_pack(
    file: ReadHandle, number: int, store_id: bytes, end: int | None, *, bodies: bool
) -> Iterator[Scanned]:
    """Yield every frame and gap up to ``end``, in order.

    Frames and gaps cover the pack without holes; only an intact pack header is not reported.
    ``end`` is the acknowledged length, by default the file's.
    """
    size = os.fstat(file.fd).st_size
    stop = size if end is None else min(size, end)
    try:
        check_pack_header(file.read(0, PACK_HEADER_SIZE), number, store_id)
    except DamagedFrame as error:
        yield ScannedGap(number, 0, PACK_HEADER_SIZE, str(error))
    yield from _walk(file, number, stop, bodies)
    if end is not None and max(size, PACK_HEADER_SIZE) < end:
        missing = max(size, PACK_HEADER_SIZE)
        yield ScannedGap(number, missing, end - missing, f"the file ends at {size}, not at {end}")


def is_foreign(path: Path, store_id: bytes) -> bool:
    """Whether a pack belongs to another store; an incomplete header names none."""
    with contextlib.suppress(OSError, DamagedFrame):
        if path.is_file():  # opening a FIFO would block
            return pack_owner(open_pack(path).read(0, PACK_HEADER_SIZE)) not in (None, store_id)
    return False


def values_after(file: ReadHandle, start: int) -> Iterator[bytes]:
    """Yield the values in the complete frames from ``start`` up to the first incomplete one."""
    stop = os.fstat(file.fd).st_size
    offset = max(start, PACK_HEADER_SIZE)
    with contextlib.suppress(DamagedFrame):
        while offset < stop:
            header, directory = _directory_at(file, offset, stop)
            frame = decode_frame(file.read(offset, header.length))
            for slot, entry in enumerate(entries(directory)):
                if entry.kind == ObjectKind.VALUE:
                    yield frame.object(slot, entry.kind, entry.digest)
            offset += header.length


def _walk(file: ReadHandle, number: int, stop: int, bodies: bool) -> Iterator[Scanned]:
    offset = PACK_HEADER_SIZE
    while offset < stop:
        found: Scanned
        try:
            found = _frame_at(file, number, offset, stop, bodies)
        except DamagedFrame as error:
            following = _next_frame(file, offset + 1, stop)
            found = ScannedGap(number, offset, following - offset, str(error))
        yield found
        offset += found.length


def _frame_at(file: ReadHandle, number: int, offset: int, stop: int, bodies: bool) -> ScannedFrame:
    header, directory = _directory_at(file, offset, stop)
    listed = tuple(entries(directory))
    damage = _damage(file, offset, header, listed) if bodies else {}
    return ScannedFrame(number, offset, header.length, listed, damage)


def _directory_at(file: ReadHandle, offset: int, stop: int) -> tuple[FrameHeader, bytes]:
    header = decode_header(file.read(offset, min(FRAME_HEADER_SIZE, stop - offset)))
    if offset + header.length > stop:
        raise DamagedFrame(f"the frame reaches beyond the end of the pack at {stop}")
    return decode_directory(file.read(offset, header.body_start))


def _damage(
    file: ReadHandle, offset: int, header: FrameHeader, listed: tuple[Entry, ...]
) -> dict[int, str]:
    try:
        frame = decode_frame(file.read(offset, header.length))
    except DamagedFrame as error:
        return dict.fromkeys(range(len(listed)), str(error))
    damage = {}
    for slot, entry in enumerate(listed):
        try:
            frame.object(slot, entry.kind, entry.digest)
        except DamagedFrame as error:
            damage[slot] = str(error)
    return damage


def _next_frame(file: ReadHandle, start: int, stop: int) -> int:
    """Return where the next intact frame begins, or ``stop``."""
    offset = start
    while offset < stop:
        # Windows overlap by the magic's length, so that one across a border is found.
        length = min(_WINDOW + len(FRAME_MAGIC) - 1, stop - offset)
        for candidate in _magics(file, offset, length):
            try:
                _directory_at(file, candidate, stop)
            except DamagedFrame:
                continue
            return candidate
        offset += _WINDOW
    return stop


def _magics(file: ReadHandle, offset: int, length: int) -> Iterator[int]:
    try:
        window = file.read(offset, length)
    except DamagedFrame:
        return
    at = window.find(FRAME_MAGIC)
    while at >= 0:
        yield offset + at
        at = window.find(FRAME_MAGIC, at + 1)
