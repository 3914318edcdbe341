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

from mulligan.model import Digest, Location, ObjectKind
from mulligan.objects.frames import (
    FRAME_HEADER_SIZE,
    FRAME_MAGIC,
    PACK_HEADER_SIZE,
    DamagedFrame,
    FrameHeader,
    check_pack_header,
    decode_directory,
    decode_frame,
    decode_header,
    digests,
    entries,
    is_body_as_written,
    pack_owner,
)
from mulligan.objects.holes import next_data
from mulligan.objects.pack_reader import ReadHandle, open_pack
from mulligan.objects.protocol import Entry, Pick

_WINDOW = 1 << 20
"""Bytes that are read at once, with bodies or in search of the next frame after damage."""

_HEADER_WINDOW = 8 << 10
"""Bytes that are read at once if only headers and directories are needed."""


class _Window:
    """Reads a file forwards in large pieces: small frames share one."""

    def __init__(self, file: ReadHandle, size: int) -> None:
        self.file = file
        self._size = size
        self._start = 0
        self._data = memoryview(b"")

    def read(self, offset: int, length: int) -> memoryview:
        """Return the bytes at an offset, fewer only at the end of the file."""
        at = offset - self._start
        if at < 0 or at + length > len(self._data):
            self._start, at = offset, 0
            self._data = memoryview(self.file.read(offset, max(length, self._size)))
        return self._data[at : at + length]


class ScannedFrame(msgspec.Struct, frozen=True):
    """A frame whose header and directory are intact.

    ``damage`` names the damaged objects by slot; it is empty when all are intact, and when the
    body was not checked.
    """

    pack: int
    offset: int
    length: int
    directory: bytes
    damage: dict[int, str]
    is_checked: bool

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Its objects in slot order."""
        return tuple(entries(self.directory))

    @property
    def digests(self) -> tuple[Digest, ...]:
        """The digests of its objects in slot order."""
        return digests(self.directory)

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
_Readable = ReadHandle | _Window


def scan_pack(
    file: ReadHandle, number: int, store_id: bytes, end: int | None, *, bodies: bool | Pick
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


def bodies(file: ReadHandle) -> Iterator[bytes]:
    """Yield the uncompressed bodies of all frames that can be read, whether in use or not."""
    stop = os.fstat(file.fd).st_size
    for found in _walk(file, 0, stop, False):
        if isinstance(found, ScannedFrame):
            with contextlib.suppress(DamagedFrame):  # its bytes are scanned as they are
                yield decode_frame(file.read(found.offset, found.length)).raw


def frames_inside(file: ReadHandle, damaged: ScannedFrame) -> Iterator[ScannedFrame]:
    """Yield the frames that begin inside of a damaged one.

    A block that a disk wrote to the wrong place can have the header of another frame, whose length
    then leads past frames that are intact.
    """
    end, stop = damaged.offset + damaged.length, os.fstat(file.fd).st_size
    window = _Window(file, _WINDOW)
    offset = _next_frame(file, damaged.offset + 1, stop)
    while offset < end:
        found = _frame_at(window, damaged.pack, offset, stop, lambda: True)
        yield found
        offset = _next_frame(file, offset + (1 if found.damage else found.length), stop)


def _walk(file: ReadHandle, number: int, stop: int, bodies: bool | Pick) -> Iterator[Scanned]:
    offset = PACK_HEADER_SIZE
    window = _Window(file, _WINDOW if bodies is True else _HEADER_WINDOW)
    pick = bodies if callable(bodies) else lambda: bool(bodies)
    while offset < stop:
        found: Scanned
        try:
            found = _frame_at(window, number, offset, stop, pick)
        except DamagedFrame as error:
            # The length in a damaged header cannot be trusted, so search for the next frame.
            following = _next_frame(file, offset + 1, stop)
            found = ScannedGap(number, offset, following - offset, str(error))
        yield found
        offset += found.length


def _frame_at(window: _Window, number: int, offset: int, stop: int, pick: Pick) -> ScannedFrame:
    header, directory = _directory_at(window, offset, stop)
    is_checked = pick()
    damage = _damage(window.read(offset, header.length), header, directory) if is_checked else {}
    return ScannedFrame(number, offset, header.length, directory, damage, is_checked)


def _directory_at(file: _Readable, offset: int, stop: int) -> tuple[FrameHeader, bytes]:
    header = decode_header(file.read(offset, min(FRAME_HEADER_SIZE, stop - offset)))
    if offset + header.length > stop:
        raise DamagedFrame(f"the frame reaches beyond the end of the pack at {stop}")
    return decode_directory(file.read(offset, header.body_start))


def _damage(data: memoryview, header: FrameHeader, directory: bytes) -> dict[int, str]:
    # What was written was checked then; and bytes that were not may still decompress to it.
    if is_body_as_written(header, data[header.body_start :]):
        return {}
    try:
        frame = decode_frame(data)
    except DamagedFrame as error:
        return dict.fromkeys(range(header.count), str(error))
    damage = {}
    for slot, entry in enumerate(entries(directory)):
        try:
            frame.object(slot, entry.kind, entry.digest)
        except DamagedFrame as error:
            damage[slot] = str(error)
    return damage


def _next_frame(file: ReadHandle, start: int, stop: int) -> int:
    """Return where the next intact frame begins, or ``stop``."""
    offset = start
    while (offset := next_data(file.fd, offset, stop)) < stop:
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
