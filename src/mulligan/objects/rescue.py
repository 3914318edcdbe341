"""Reading everything that is intact out of a directory of packs, without an index.

Each object is checked against its digest. What cannot be read is named by pack and offset, so that
the damaged bytes can be kept aside.
"""

from __future__ import annotations

import os
import shutil
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mulligan.model import Digest, Location
from mulligan.objects.frames import (
    PACK_HEADER_SIZE,
    DamagedFrame,
    check_pack_header,
    decode_frame,
    encode_frame,
    encode_pack_header,
    pack_name,
    pack_owner,
)
from mulligan.objects.pack_reader import open_pack
from mulligan.objects.pack_writer import explained, list_packs
from mulligan.objects.scan import ScannedFrame, ScannedGap, frames_inside, scan_pack

MAX_ID_BITS = 16
"""How many bits of the id in a pack's header may differ for it to count as damaged, not foreign."""


class IntactObject(NamedTuple):
    """An object whose bytes match its digest."""

    kind: int
    digest: Digest
    location: Location


class DamagedStretch(NamedTuple):
    """Bytes of a pack that cannot be read as objects, and those that its directory names."""

    pack: int
    offset: int
    length: int
    detail: str
    digests: tuple[Digest, ...] = ()


PIECE = 64 << 10
"""How many bytes of a stretch are read at once; a hole of this size takes no space."""

RescuedObjects = list[tuple[int, Digest, bytes]]
"""Objects with their kinds and bytes."""


class RescuedPack(NamedTuple):
    """What one pack holds: its intact objects, its damage, its size, and where they end.

    ``contents`` are intact objects of damaged frames, which have to be stored again.
    """

    number: int
    size: int
    end: int
    objects: list[IntactObject]
    damage: list[DamagedStretch]
    is_header_damaged: bool
    contents: RescuedObjects


def likely_store_id(directory: Path) -> bytes | None:
    """Return the store id that most packs have; None if there is none."""
    owners: Counter[bytes] = Counter()
    for number in list_packs(directory):
        if (header := _header(directory / pack_name(number))) and (owner := pack_owner(header)):
            owners[owner] += 1
    found = owners.most_common(1)
    return found[0][0] if found else None


def own_packs(directory: Path, store_id: bytes, known: set[int]) -> Iterator[int]:
    """Yield the packs of a store: those that its journal knows, or whose header says so."""
    for number in list_packs(directory):
        header = _header(directory / pack_name(number))
        if header is not None and (number in known or _is_own(header, number, store_id)):
            yield number


def _is_own(header: bytes, number: int, store_id: bytes) -> bool:
    if len(header) < PACK_HEADER_SIZE:
        return False
    try:
        check_pack_header(header, number, store_id)
    except DamagedFrame:
        found, expected = header, encode_pack_header(number, store_id)
        differ = zip(found, expected, strict=True)
        return sum((a ^ b).bit_count() for a, b in differ) <= MAX_ID_BITS
    return True


def _header(path: Path) -> bytes | None:
    try:
        # Opening a FIFO would block.
        return open_pack(path).read(0, PACK_HEADER_SIZE) if path.is_file() else None
    except (OSError, DamagedFrame):
        return None


def rescue_pack(directory: Path, number: int, store_id: bytes) -> RescuedPack:
    """Read a pack from beginning to end; never raises for damage inside of it."""
    file = open_pack(directory / pack_name(number))
    size = os.fstat(file.fd).st_size
    objects: list[IntactObject] = []
    damage: list[DamagedStretch] = []
    contents: RescuedObjects = []
    end, is_header_damaged = PACK_HEADER_SIZE, False
    for found in scan_pack(file, number, store_id, None, bodies=True):
        if isinstance(found, ScannedGap):
            is_header_damaged |= found.offset == 0
            if found.offset:
                damage.append(DamagedStretch(number, found.offset, found.length, found.detail))
            continue
        end = found.offset + found.length
        if found.damage:
            # All of it: the index must not lead into a damaged frame.
            damage.append(_damaged(found))
            for frame in (found, *frames_inside(file, found)):
                contents += _contents(file.read(frame.offset, frame.length), frame)
        else:
            objects += _intact(found)
    return RescuedPack(number, size, end, objects, damage, is_header_damaged, contents)


def _intact(frame: ScannedFrame) -> Iterator[IntactObject]:
    for slot, entry in enumerate(frame.entries):
        yield IntactObject(entry.kind, entry.digest, frame.location(slot))


def _contents(data: bytes, frame: ScannedFrame) -> RescuedObjects:
    """Return the intact objects of a damaged frame; of a compressed one, its first."""
    try:
        readable = decode_frame(data)
    except DamagedFrame:
        slots = range(len(frame.entries))
        # Decompression fails from some slot on: find the last one that it reaches.
        reached = bisect_left(slots, True, key=lambda slot: not _is_reached(data, slot))
        if not reached:
            return []
        readable = decode_frame(data, reached - 1)
    found: RescuedObjects = []
    for slot, entry in enumerate(frame.entries):
        with suppress(DamagedFrame):
            if readable.reaches(slot):
                data = readable.object(slot, entry.kind, entry.digest)
                found.append((entry.kind, entry.digest, data))
    return found


def _is_reached(data: bytes, slot: int) -> bool:
    try:
        decode_frame(data, slot)
    except DamagedFrame:
        return False
    return True


def read_object(directory: Path, found: IntactObject) -> bytes:
    """Return the bytes of an object that was found intact; raises ``DamagedFrame``."""
    place = found.location
    file = open_pack(directory / pack_name(place.area))
    frame = decode_frame(file.read(place.offset, place.length), place.slot)
    return frame.object(place.slot, found.kind, found.digest)


def write_pack(directory: Path, store_id: bytes, contents: RescuedObjects, forgotten: int) -> int:
    """Write objects to a new pack, durably, and return its number; raises ``DiskFull``."""
    number = max([forgotten, *list_packs(directory)]) + 1
    path = directory / pack_name(number)
    data = [encode_pack_header(number, store_id)]
    # One frame for each: they are few, and one of them may be large.
    data += [encode_frame([content]) for content in contents]
    with explained(path):
        with open(path, "xb", opener=_private) as file:
            file.writelines(data)
            file.flush()
            # The bytes, then the name, and only then the index that leads to them.
            os.fsync(file.fileno())
        _sync(directory)
    return number


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _sync(directory: Path) -> None:
    """Make names in a directory durable: the sync of a file does not cover them."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _damaged(frame: ScannedFrame) -> DamagedStretch:
    digests = tuple(frame.entries[slot].digest for slot in frame.damage)
    detail = next(iter(frame.damage.values()))
    return DamagedStretch(frame.pack, frame.offset, frame.length, detail, digests)


def read_stretch(directory: Path, stretch: DamagedStretch) -> bytes:
    """Return damaged bytes as they are, as far as the disk can read them."""
    try:
        file = open_pack(directory / pack_name(stretch.pack))
        return file.read(stretch.offset, stretch.length)
    except (OSError, DamagedFrame):
        return b""


def read_pieces(directory: Path, stretch: DamagedStretch) -> Iterator[tuple[int, bytes]]:
    """Yield the pieces of a stretch that are not zero, with their offsets in it.

    What the disk cannot read is passed over.
    """
    for at in range(0, stretch.length, PIECE):
        place = stretch.offset + at
        piece = DamagedStretch(stretch.pack, place, min(PIECE, stretch.length - at), "")
        data = read_stretch(directory, piece)
        if data.strip(b"\x00"):
            yield at, data


def _own_bytes(path: Path) -> None:
    """Give a file that has several names bytes of its own: what the others lead to must stay."""
    if os.lstat(path).st_nlink > 1:
        made = path.with_name(f"{path.name}-own")
        shutil.copy(path, made)
        with open(made, "rb") as file:
            # Before the rename: the name must never lead to bytes that a power cut can take away.
            os.fsync(file.fileno())
        os.replace(made, path)
        _sync(path.parent)


def rewrite_header(directory: Path, number: int, store_id: bytes) -> None:
    """Write the header of a pack again. Durable on return; raises ``DiskFull``."""
    path = directory / pack_name(number)
    with explained(path):
        _own_bytes(path)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(fd, encode_pack_header(number, store_id), 0)
            # Before the repair goes on: it must not find the same damage again after a power cut.
            os.fsync(fd)
        finally:
            os.close(fd)
