"""Proving a purge: reading every byte of every file of a store.

Files are searched as they are, and what is compressed in them is searched uncompressed: the frames
of packs, whether in use or not, and the bodies of events.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from mulligan import codec
from mulligan.engine import Engine
from mulligan.errors import DamageError
from mulligan.journal.copies import copied_bodies
from mulligan.model import ObjectKind
from mulligan.upkeep.purge.text import MIN_MATCH
from mulligan.upkeep.space.layout_plan import dead_extents

WINDOW = 8 << 20
"""How many bytes of a file are searched at once."""

HEADER_BYTES = 32
"""The header of a pack; see ``mulligan.objects.frames``."""

LOCK_FILE = "lock.mdb"
"""Not read: closing it would drop the locks that LMDB has on it. It holds process numbers only."""

MIN_TEXT = 8
"""Shorter texts are not searched for in raw bytes, where they would be found by chance."""


class Proof(msgspec.Struct, frozen=True):
    """What was read to prove a purge, and the places where something is left."""

    files: int
    bytes: int
    left: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether nothing is left."""
        return not self.left


def prove(engine: Engine, texts: Iterable[bytes] = ()) -> Proof:
    """Search every file of a store for texts, and check that nothing dead is left in packs."""
    return _Proving(engine, [text for text in texts if len(text) >= MIN_MATCH]).run()


class _Proving:
    def __init__(self, engine: Engine, texts: list[bytes]) -> None:
        self._engine = engine
        self._texts = texts
        self._raw = [text for text in texts if len(text) >= MIN_TEXT]
        self._longest = max(map(len, texts), default=0)
        self._files = self._bytes = 0
        self._left: list[str] = []

    def run(self) -> Proof:
        directory = self._engine.directory
        if directory is not None:
            for file in sorted(_files(directory)):
                self._search_file(directory, file)
            self._check_dead(directory)
        for area in self._engine.objects.areas():
            self._search_area(area)
        self._search_events()
        self._search_copies()
        return Proof(self._files, self._bytes, tuple(dict.fromkeys(self._left)))

    def _search_file(self, directory: Path, file: Path) -> None:
        self._files += 1
        for data, new in _windows(file, self._longest):
            self._bytes += new
            if any(text in data for text in self._raw):
                self._left.append(f"{file.relative_to(directory)}, in its bytes")
                return

    def _search_area(self, area: int) -> None:
        name = self._engine.objects.area_name(area)
        try:
            for body in self._engine.objects.contents(area):
                if self._holds(body):
                    self._left.append(f"packs/{name}, in a compressed frame")
        except DamageError as error:
            self._left.append(f"packs/{name}: {error}")

    def _check_dead(self, directory: Path) -> None:
        """Check that packs hold nothing but zeros where no entry of the index leads to."""
        with self._engine.read() as view:
            # Read before the entries: what is appended meanwhile is not taken for dead.
            lengths = view.area_lengths()
            live: dict[int, dict[int, int]] = {area: {} for area in lengths}
            for _, place in view.locations():
                live[place.area][place.offset] = place.length
        for area, frames in live.items():
            name = f"packs/{self._engine.objects.area_name(area)}"
            extents = dead_extents(frames, lengths[area])
            if any(not _is_empty(directory / name, *extent) for extent in extents):
                self._left.append(f"{name}, in dead bytes")

    def _search_events(self) -> None:
        with self._engine.read() as view:
            for record in view.sessions():
                first = (record.origin.seq if record.origin else 0) + 1
                for event in view.remaining(record.number, first, view.head(record.number).seq):
                    if self._holds(codec.encode(event.payload)):
                        self._left.append(f"event #{event.seq} of session {record.name!r}")

    def _search_copies(self) -> None:
        """Search the copies of events, whose records may be compressed inside of them."""
        with self._engine.read() as view:
            copies = list(view.copies())
        for copy in copies:
            where = f"the copy of events #{copy.first} to #{copy.last}"
            try:
                data = self._engine.objects.get(ObjectKind.EVENTS, copy.digest)
                if any(map(self._holds, copied_bodies(data))):
                    self._left.append(where)
            except DamageError as error:
                self._left.append(f"{where}: {error}")

    def _holds(self, data: bytes) -> bool:
        return any(text in data for text in self._texts)


def _is_empty(file: Path, offset: int, length: int) -> bool:
    """Whether a stretch of a pack is zeros; its header belongs to no frame."""
    start, end = max(offset, HEADER_BYTES), offset + length
    with file.open("rb", buffering=0) as source:
        source.seek(start)
        while start < end and (data := source.read(min(WINDOW, end - start))):
            if data.count(0) != len(data):
                return False
            start += len(data)
    return True


def _files(directory: Path) -> Iterator[Path]:
    for place, _, names in os.walk(directory):
        for name in names:
            file = Path(place) / name
            if name != LOCK_FILE and file.is_file() and not file.is_symlink():
                yield file


def _windows(file: Path, overlap: int) -> Iterator[tuple[bytes, int]]:
    """Yield the content of a file in overlapping windows, with the number of new bytes in each."""
    try:
        with file.open("rb", buffering=0) as source:
            tail = b""
            while data := source.read(WINDOW):
                yield tail + data, len(data)
                tail = (tail + data)[-overlap + 1 :] if overlap > 1 else b""
    except FileNotFoundError:
        return  # removed since it was listed
