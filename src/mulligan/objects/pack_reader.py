"""Reading objects out of packs: every byte is checked before it is returned."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from threading import Lock

from mulligan.errors import DamagedObject, MissingObject
from mulligan.model import Digest, Location
from mulligan.objects.background import Helper, Job
from mulligan.objects.frames import (
    FRAME_HEADER_SIZE,
    MAX_FRAME,
    PACK_HEADER_SIZE,
    DamagedFrame,
    Frame,
    decode_directory,
    decode_frame,
    decode_header,
    entries,
    pack_name,
)
from mulligan.objects.protocol import Entry

OPEN_FILES = 32
"""How many packs are kept open for reading."""

CACHE_BYTES = 24 << 20
"""How many bytes of decompressed frames are cached, because neighbours are read together."""

KEPT_BYTES = 2 << 20
"""How many of them stay cached after a write: a long-lived writer reads little of many frames."""

MAX_FRAMES_READ_DIRECTLY = 4
"""Up to this many frames, reading them directly is faster than using another thread."""

_Key = tuple[int, int, int]
"""The key of a frame: its pack, its offset and its length."""

# A failing disk, or something that is not a pack at its path: damage, to be reported as such.
_MEDIA_ERRORS = (errno.EIO, errno.ELOOP, errno.EISDIR)


def _key(location: Location) -> _Key:
    return location.area, location.offset, location.length


def _frame_of(place: tuple[Digest, Location]) -> _Key:
    return _key(place[1])


class ReadHandle:
    """A pack open for reading; it closes when its last user releases it."""

    __slots__ = ("fd",)

    def __init__(self, path: Path) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def __del__(self) -> None:
        if self.fd >= 0:
            # Not when it leaves the cache: another thread may still be reading from it.
            os.close(self.fd)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes at an offset, fewer only at the end of the file."""
        try:
            # With an offset: threads share the descriptor, and a file position would be shared as
            # well.
            data = os.pread(self.fd, length, offset)
            while len(data) < length:
                more = os.pread(self.fd, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _as_damage(error) from error
        return data


def _as_damage(error: OSError) -> Exception:
    if error.errno in _MEDIA_ERRORS:
        return DamagedFrame(f"it cannot be read ({error.strerror})")
    return error


def open_pack(path: Path) -> ReadHandle:
    """Open a pack; raise ``FileNotFoundError``, or ``DamagedFrame`` if it cannot be read."""
    try:
        return ReadHandle(path)
    except OSError as error:
        raise _as_damage(error) from error


class PackReader:
    """Reads objects by location, with caches of open files and decompressed frames."""

    def __init__(self, directory: Path, helper: Helper) -> None:
        self._directory = directory
        self._helper = helper
        # For the caches; files are read and frames decompressed without it.
        self._lock = Lock()
        self._following: dict[_Key, Location] = {}
        self._last: dict[_Key, int] = {}
        self._coming: dict[_Key, Job[Frame]] = {}
        self._files: OrderedDict[int, ReadHandle] = OrderedDict()
        self._frames: OrderedDict[_Key, Frame] = OrderedDict()
        self._cached = 0

    def read(self, kind: int, digest: Digest, location: Location) -> bytes:
        """Return the object at a location after checking it.

        Raises ``MissingObject`` when the pack is gone and ``DamagedObject`` on any mismatch.
        """
        try:
            try:
                return self._frame(location).object(location.slot, kind, digest)
            except DamagedFrame:
                # Retry without the cache: it may be from a file that was replaced since.
                self._forget(location)
                return self._frame(location).object(location.slot, kind, digest)
        except DamagedFrame as error:
            raise DamagedObject(f"{self._where(digest, location)} is damaged: {error}.") from error
        except FileNotFoundError as error:
            raise MissingObject(
                f"{self._where(digest, location)} is missing: there is no such pack."
            ) from error

    def read_all(
        self, kind: int, places: Sequence[tuple[Digest, Location]]
    ) -> Iterator[tuple[Digest, bytes]]:
        """Yield the objects at sorted locations; unreadable ones are left out.

        It runs in one thread: two would lose their gain by waiting for each other.
        """
        for _, found in groupby(places, key=_frame_of):
            wanted = list(found)
            try:
                # Not cached: each frame is needed once here, and would evict those of other
                # readers.
                frame = self.load(wanted[0][1])
            except (DamagedFrame, OSError):
                continue
            for digest, location in wanted:
                try:
                    data = frame.object(location.slot, kind, digest)
                except DamagedFrame:
                    continue
                yield digest, data

    def expect(self, locations: Sequence[Location]) -> None:
        """Announce the next reads in order: a frame is prepared while the previous one is used."""
        frames = list({_key(location): location for location in locations}.items())
        last: dict[_Key, int] = {}
        for location in locations:
            key = _key(location)
            last[key] = max(location.slot, last.get(key, 0))
        with self._lock:
            self._last = last
            self._coming.clear()
            # A frame that is loaded ahead must not fill the cache before it is used.
            self._following = {
                key: following
                for (key, _), (_, following) in pairwise(frames)
                if len(frames) > MAX_FRAMES_READ_DIRECTLY and following.length <= CACHE_BYTES // 4
            }

    def trim(self) -> None:
        """Drop frames that were not read recently."""
        with self._lock:
            self._shrink(KEPT_BYTES)

    def close(self) -> None:
        """Close all files and drop all frames."""
        with self._lock:
            self._following.clear()
            self._last.clear()
            self._coming.clear()
            self._files.clear()
            self._frames.clear()
            self._cached = 0

    def _where(self, digest: Digest, location: Location) -> str:
        path = self._directory / pack_name(location.area)
        return f"Object {digest.hex()} in {path} at offset {location.offset}"

    def _frame(self, location: Location) -> Frame:
        key = _key(location)
        with self._lock:
            frame = self._frames.get(key)
            if frame is not None and frame.reaches(location.slot):
                self._frames.move_to_end(key)
                return frame
            coming = self._coming.pop(key, None)
            following = self._following.pop(key, None)
        # Without the lock: decompression takes milliseconds, and other threads read other frames.
        if following is not None:
            self._coming[_key(following)] = self._helper.do(self._load_expected, following)
        frame = self._load_expected(location) if coming is None else coming.result()
        if not frame.reaches(location.slot):
            frame = self.load(location)
        self._keep(key, frame)
        return frame

    def _load_expected(self, location: Location) -> Frame:
        """Return a frame, decoded up to the last object that was announced."""
        last = self._last.get(_key(location))
        return self.load(location, None if last is None else max(last, location.slot))

    def load(self, location: Location, last: int | None = None) -> Frame:
        """Return a frame that is not cached; raises ``DamagedFrame`` or ``OSError``."""
        # A damaged index entry must not cause a read of gigabytes.
        if location.offset < PACK_HEADER_SIZE or not 0 < location.length <= MAX_FRAME:
            raise DamagedFrame("the index says where no frame can be")
        data = self._file(location.area).read(location.offset, location.length)
        return decode_frame(data, last)

    def entries_at(self, location: Location, known: int) -> tuple[Entry, ...] | None:
        """Return the directory of a frame, None if it has ``known`` entries.

        Raises ``DamagedFrame`` or ``OSError``.
        """
        file = self._file(location.area)
        header = decode_header(file.read(location.offset, FRAME_HEADER_SIZE))
        if header.count == known:
            return None
        _, directory = decode_directory(file.read(location.offset, header.body_start))
        return tuple(entries(directory))

    def _keep(self, key: _Key, frame: Frame) -> None:
        # One large frame must not evict everything else.
        if frame.cost > CACHE_BYTES // 2:
            return
        with self._lock:
            known = self._frames.get(key)
            if known is None or len(known.raw) < len(frame.raw):
                self._cached += frame.cost - (known.cost if known else 0)
                self._frames[key] = frame
            self._shrink(CACHE_BYTES)

    def _shrink(self, most: int) -> None:
        while self._cached > most:
            self._cached -= self._frames.popitem(last=False)[1].cost

    def _forget(self, location: Location) -> None:
        with self._lock:
            self._files.pop(location.area, None)
            frame = self._frames.pop(_key(location), None)
            if frame is not None:
                self._cached -= frame.cost

    def _file(self, number: int) -> ReadHandle:
        with self._lock:
            file = self._files.get(number)
            if file is None:
                file = self._files[number] = open_pack(self._directory / pack_name(number))
                if len(self._files) > OPEN_FILES:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(number)
            return file
