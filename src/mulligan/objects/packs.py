"""Objects in append-only pack files; the journal's index holds their locations."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mulligan import codec
from mulligan.errors import (
    DamagedObject,
    DamagedPack,
    MissingObject,
    ReadOnlyStore,
    StoreClosed,
    UnstorableValue,
)
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.model import Digest, Location, ObjectKind
from mulligan.objects.background import Helper, Job
from mulligan.objects.frames import ENTRY_SIZE, DamagedFrame, encode_frame, pack_name
from mulligan.objects.pack_reader import PackReader, ReadHandle, open_pack
from mulligan.objects.protocol import (
    MAX_OBJECT,
    CommittedLength,
    Copied,
    Entry,
    Extent,
    Flushed,
    LastForgotten,
    Locate,
    LocateAll,
    Locations,
    OwnedArea,
    Pick,
    Places,
    Replacement,
    StoredGap,
    StoredGroup,
)

if TYPE_CHECKING:  # imported where they are used: a process that only reads needs none of them
    from mulligan.objects.pack_writer import OwnPack, PackWriter
    from mulligan.objects.scan import Scanned

FRAME_TARGET = 256 << 10
"""Small objects share a frame up to this many bytes; a larger object gets its own frame.

More would compress better (1 MiB by 9 %), but reading one file decompresses its frame up to it.
"""

VALUE_TARGET = 64 << 10
"""The same for frames with values, which are read one at a time; files are read together."""

MAX_SEALED = 48
"""How many full frames may wait to be written; more would only cost memory."""

MAX_HANDED = 12
"""With this many frames waiting, the helper is behind, and the caller compresses the next one."""

MIN_HELPER_BYTES = FRAME_TARGET // 4
"""Below this many bytes, compressing directly is faster than using the helper."""

PACK_LIMIT = 512 << 20
"""A pack of this many bytes gets no more frames."""


_Objects = dict[Digest, tuple[int, bytes]]


class Handles:
    """The open files and locks of one process."""

    def __init__(self, directory: Path, writer: PackWriter | None) -> None:
        self.helper = Helper()
        self.reader = PackReader(directory, self.helper)
        self.writer = writer

    def close(self) -> None:
        self.helper.close()
        if self.writer is not None:
            self.writer.close()
        self.reader.close()

    def abandon(self) -> None:
        if self.writer is not None:
            self.writer.abandon()


class PackObjects:
    """Implements ``Objects`` over a directory of packs.

    Several processes may write at once, each to its own pack; a handle survives ``fork``. Close it
    only after the transactions of its bundles have ended: the next owner of the pack may truncate
    what was flushed and not yet committed.
    """

    def __init__(
        self,
        directory: Path,
        store_id: bytes,
        locate: Locate,
        committed: CommittedLength,
        *,
        locate_all: LocateAll | None = None,
        locate_usable: LocateAll | None = None,
        last_forgotten: LastForgotten = lambda: 0,
        replacement: Replacement = lambda _: None,
        failpoint: FailpointHook = ignore,
        read_only: bool = False,
        pack_limit: int = PACK_LIMIT,
    ) -> None:
        self.directory = directory
        self.locate = locate
        self.locate_all = locate_all or self._one_by_one
        self.failpoint = failpoint
        self.damaged: set[Digest] = set()
        self._locate_usable = locate_usable or self.locate_all
        self._store_id = store_id
        self._committed = committed
        self._last_forgotten = last_forgotten
        self._replacement = replacement
        self._read_only = read_only
        self._limit = pack_limit
        self._closed = False
        self._ahead: dict[Digest, Location] = {}
        self._by_process: dict[int, Handles] = {}

    def bundle(self) -> PackBundle:
        """Begin a bundle of new objects; it belongs to one thread of this process."""
        return PackBundle(self, self.handles())

    def has(self, digest: Digest) -> bool:
        """Whether the index knows the object."""
        return self.locate(digest) is not None

    def get(self, kind: int, digest: Digest) -> bytes:
        """Return the object's bytes after checking them; see ``Objects.get``."""
        ahead = self._ahead.pop(digest, None)
        if ahead is not None:
            # Look it up again: it may have been moved since.
            with suppress(MissingObject, DamagedObject):
                return self.handles().reader.read(kind, digest, ahead)
        before, location = None, self.locate(digest)
        while location is not None:
            try:
                return self.handles().reader.read(kind, digest, location)
            except (MissingObject, DamagedObject):
                # It may have been moved or purged between the look-up and the read.
                before, location = location, self.locate(digest)
                if location == before:
                    self.damaged.add(digest)
                    raise
        return self._replaced(kind, digest)

    def _replaced(self, kind: int, digest: Digest) -> bytes:
        """Return what a purge left in the place of an object that the index does not have."""
        other = self._replacement(digest)
        if other is None:
            raise MissingObject(f"Object {digest.hex()} is not in the store.")
        return self.get(kind, other)

    def are_usable(self, digests: Iterable[Digest]) -> bool:
        """Whether new events may refer to all of these."""
        wanted = set(digests)
        return self.locate_usable(wanted).keys() >= wanted

    def locate_usable(self, digests: Iterable[Digest]) -> dict[Digest, Location]:
        """Return the locations of the objects that need not be stored again."""
        found = self._locate_usable(digests)
        for digest in self.damaged & found.keys():
            del found[digest]
        return found

    def sort_by_location(self, digests: Iterable[Digest]) -> list[Digest]:
        """Return the digests in pack order, in which reading is cheapest."""
        wanted = list(digests)
        found = self.locate_all(wanted)
        places = _in_order(found)
        # The reads that follow are of these objects, and need no look-up of their own.
        self._ahead = found
        self.handles().reader.expect([place for _, place in places])
        return [digest for digest, _ in places] + [d for d in wanted if d not in found]

    def get_all(self, kind: int, digests: Iterable[Digest]) -> Iterator[tuple[Digest, bytes]]:
        """Yield many objects in pack order; see ``Objects.get_all``."""
        return self.handles().reader.read_all(kind, self._places(digests))

    def locate_many(self, digests: Iterable[Digest]) -> Locations:
        """Return the locations of many objects; see ``Objects.locate_many``."""
        return Locations(os.fsencode(self.directory.absolute()), self._places(digests))

    def get_at(self, kind: int, places: Places) -> Iterator[tuple[Digest, bytes]]:
        """Yield the objects at sorted locations; see ``Objects.get_at``."""
        return self.handles().reader.read_all(kind, places)

    def _places(self, digests: Iterable[Digest]) -> Places:
        return _in_order(self.locate_all(digests))

    def _one_by_one(self, digests: Iterable[Digest]) -> dict[Digest, Location]:
        places = ((digest, self.locate(digest)) for digest in digests)
        return {digest: place for digest, place in places if place is not None}

    def close(self) -> None:
        """Release files and locks. Idempotent."""
        self._closed = True
        # Handles inherited through a fork are closed, not unlocked: the locks are the parent's.
        while self._by_process:
            pid, handles = self._by_process.popitem()
            if pid == os.getpid():
                handles.close()
            else:
                handles.abandon()

    def areas(self) -> list[int]:
        """Return the numbers of the existing packs, in order."""
        from mulligan.objects.pack_writer import list_packs

        return list_packs(self.directory)

    def path(self, number: int) -> Path:
        """Return the file of a pack."""
        return self.directory / pack_name(number)

    def area_name(self, area: int) -> str:
        """Return the name of a pack's file."""
        return pack_name(area)

    def area_size(self, area: int) -> int:
        """Return the length of a pack's file; raise ``DamagedPack`` when there is none."""
        return self._status(area).st_size

    def written_at(self, area: int) -> datetime:
        """Return when a pack was last written to; raise ``DamagedPack`` when there is none."""
        return datetime.fromtimestamp(self._status(area).st_mtime, UTC)

    def _status(self, area: int) -> os.stat_result:
        try:
            return os.lstat(self.path(area))
        except FileNotFoundError as error:
            raise DamagedPack(f"Pack {self.path(area)} is missing.") from error

    def enumerate(
        self, area: int, end: int, *, full: bool | Pick
    ) -> Iterator[StoredGroup | StoredGap]:
        """Yield what a pack holds; see ``Objects.enumerate``."""
        from mulligan.objects.scan import ScannedGap

        for found in self.scan(area, end, bodies=full):
            if isinstance(found, ScannedGap):
                yield StoredGap(found.pack, found.offset, found.length, found.detail)
            else:
                at = found.pack, found.offset, found.length
                yield StoredGroup(*at, found.digests, found.damage, found.is_checked)

    def scan(
        self, number: int, end: int | None = None, *, bodies: bool | Pick = True
    ) -> Iterator[Scanned]:
        """Yield the frames of a pack, and the gaps where none can be read, up to ``end``.

        With ``bodies`` the stored bytes of every frame are checked, or of those that it picks;
        otherwise only headers and directories are read. Raises ``DamagedPack`` when the file
        cannot be opened.
        """
        from mulligan.objects.scan import scan_pack

        return scan_pack(self._file(number), number, self._store_id, end, bodies=bodies)

    def is_foreign(self, area: int) -> bool:
        """Whether a pack belongs to another store."""
        from mulligan.objects.scan import is_foreign

        return is_foreign(self.path(area), self._store_id)

    def values_after(self, area: int, start: int) -> Iterator[bytes]:
        """Yield the intact values of a pack past its acknowledged length."""
        from mulligan.objects.scan import values_after

        return values_after(self._file(area), start)

    def contents(self, area: int) -> Iterator[bytes]:
        """Yield the body of every frame in a pack, past its acknowledged length too."""
        from mulligan.objects.scan import bodies

        return bodies(self._file(area))

    def area_usage(self, area: int) -> int:
        """Return how many bytes a pack takes, without its holes."""
        from mulligan.objects import pack_space

        return pack_space.usage(self.path(area))

    def entries_at(self, location: Location, known: int) -> Sequence[Entry] | None:
        """Return the directory of a frame; see ``Objects.entries_at``."""
        try:
            return self.handles().reader.entries_at(location, known)
        except (DamagedFrame, OSError) as error:
            where = f"{self.path(location.area)} at offset {location.offset}"
            raise DamagedPack(f"The frame in {where} cannot be read: {error}.") from error

    def own(self, area: int) -> AbstractContextManager[OwnedArea | None]:
        """Lock a pack as a writer does; see ``Objects.own``."""
        from mulligan.objects import pack_space

        return pack_space.own(self.path(area), area, self._store_id, self.failpoint)

    def free(self, area: int, extents: Iterable[Extent], *, erase: bool = False) -> int | None:
        """Punch stretches out of a pack; see ``Objects.free``."""
        from mulligan.objects import pack_space

        return pack_space.free(self.path(area), extents, erase=erase)

    def copy(self, places: Sequence[tuple[Entry, Location]]) -> Copied:
        """Copy objects to new frames; see ``Objects.copy``."""
        from mulligan.objects import pack_space

        handles = self.handles()
        if handles.writer is None:
            raise ReadOnlyStore(f"{self.directory} was opened for reading only.")
        copier = pack_space.Copier(handles.reader, handles.writer, FRAME_TARGET, VALUE_TARGET)
        return copier.copy(places)

    def _file(self, number: int) -> ReadHandle:
        path = self.path(number)
        try:
            return open_pack(path)
        except FileNotFoundError as error:
            raise DamagedPack(f"Pack {path} is missing.") from error
        except DamagedFrame as error:
            raise DamagedPack(f"Pack {path} is damaged at offset 0: {error}.") from error

    def handles(self) -> Handles:
        """Return the files and locks of this process; new ones after a fork."""
        if self._closed:
            raise StoreClosed(f"The object store in {self.directory} was closed.")
        return self._by_process.get(os.getpid()) or self._after_fork()

    def _after_fork(self) -> Handles:
        # A lock of the parent may have been copied while held, so there is none to take here:
        # dict.setdefault and dict.pop are atomic, and that is enough.
        pid = os.getpid()
        writer = None
        if not self._read_only:
            from mulligan.objects.pack_writer import PackWriter

            writer = PackWriter(
                self.directory,
                self._store_id,
                self._committed,
                self._last_forgotten,
                self.failpoint,
                self._limit,
            )
        handles = self._by_process.setdefault(pid, Handles(self.directory, writer))
        for other in [key for key in self._by_process if key != pid]:
            inherited = self._by_process.pop(other, None)
            if inherited is not None:
                inherited.abandon()
        return handles


class _Sealed(NamedTuple):
    """A full frame that is being compressed."""

    objects: _Objects
    size: int
    frame: Job[bytes]


class PackBundle:
    """New objects on their way into packs; implements ``Bundle``."""

    def __init__(self, store: PackObjects, handles: Handles) -> None:
        self._store = store
        self._handles = handles
        self._pending: dict[Digest, tuple[int, bytes]] = {}
        self._pending_size = 0
        self._target = FRAME_TARGET
        self._taken: set[Digest] = set()
        self._unchecked: list[Digest] = []
        self._sealed: deque[_Sealed] = deque()
        self._sealed_size = 0
        self._written: dict[Digest, Location] = {}
        self._values: set[Digest] = set()
        self._packs: dict[int, tuple[OwnPack, int]] = {}
        self._size = 0

    def put(self, kind: int, data: bytes) -> Digest:
        """Add an object and return its digest; see ``Bundle.put``."""
        size = len(data)
        if size > MAX_OBJECT:
            raise UnstorableValue(
                f"An object of {size} bytes is larger than {MAX_OBJECT}.",
                hint="Split it into smaller objects.",
            )
        self._check_process()
        digest = codec.digest(kind, data)
        if digest in self._taken:
            return digest
        cost = size + ENTRY_SIZE
        target = FRAME_TARGET if kind == ObjectKind.CHUNK else VALUE_TARGET
        if target != self._target or self._pending_size + cost > target:
            self._make_room(target, cost)
        # A copy: the caller may reuse its buffer before the frame is written.
        self._pending[digest] = (kind, bytes(data))
        self._pending_size += cost
        self._unchecked.append(digest)
        self._taken.add(digest)
        return digest

    def get(self, kind: int, digest: Digest) -> bytes:
        """Return an object of this bundle, or else of the store."""
        held = self._held(digest)
        if held is not None:
            if held[0] != kind:
                raise DamagedObject(f"Object {digest.hex()} is of kind {held[0]}, not {kind}.")
            return held[1]
        location = self._written.get(digest)
        if location is not None:
            return self._store.handles().reader.read(kind, digest, location)
        return self._store.get(kind, digest)

    def flush(self) -> Flushed:
        """Make everything put so far durable and return the locations; idempotent."""
        self._check_process()
        self._drop_known()
        # In the order of arrival: objects that were put together are read together.
        while self._sealed:
            self._write_sealed()
        if self._pending:
            self._write(self._pending, encode_frame(_listed(self._pending)))
            self._pending, self._pending_size = {}, 0
        for pack, end in self._packs.values():
            # After all frames, so that a pack is synced once, and before the journal refers to
            # them.
            pack.sync(end)
        if self._packs:
            self._store.failpoint(Failpoint.PACK_SYNCED)
            self._handles.reader.trim()
        ends = {number: end for number, (_, end) in self._packs.items()}
        return Flushed(dict(self._written), ends, self._size, frozenset(self._values))

    def _check_process(self) -> None:
        if self._handles is not self._store.handles():
            raise StoreClosed(
                "A bundle belongs to the process that started it.",
                hint="Begin a new bundle after a fork.",
            )

    def _held(self, digest: Digest) -> tuple[int, bytes] | None:
        """Return an object that is still in memory."""
        found = self._pending.get(digest)
        if found is None:
            for sealed in self._sealed:
                found = found or sealed.objects.get(digest)
        return found

    def _make_room(self, target: int, cost: int) -> None:
        """Seal the frame if it has no room for this many more bytes, given the target size."""
        # A frame with both values and chunks has the size of a frame of values.
        self._target = min(self._target, target)
        if self._pending_size + cost > self._target:
            self._drop_known()
        if self._pending and self._pending_size + cost > self._target:
            self._seal()
        if not self._pending:
            self._target = target

    def _drop_known(self) -> None:
        """Remove objects that the store already has, with one look-up for all of them."""
        if self._unchecked:
            # Not those that a collection is about to remove: they are stored again instead.
            for digest in self._store.locate_usable(self._unchecked):
                _, data = self._pending.pop(digest)
                self._pending_size -= len(data) + ENTRY_SIZE
            self._unchecked = []

    def _seal(self) -> None:
        """Compress the full frame in the helper thread, unless that is behind."""
        self._check_writable()
        helper = self._handles.helper
        is_behind = self._sealed_size + self._pending_size > MAX_HANDED * FRAME_TARGET
        if (is_behind and self._sealed) or self._pending_size < MIN_HELPER_BYTES:
            frame = helper.done(encode_frame(_listed(self._pending)))
        else:
            frame = helper.do(encode_frame, _listed(self._pending))
        self._sealed.append(_Sealed(self._pending, self._pending_size, frame))
        self._sealed_size += self._pending_size
        self._pending, self._pending_size = {}, 0
        most = MAX_SEALED * FRAME_TARGET
        # Write what is compressed already; wait for more only to limit the memory in use.
        while self._sealed and (self._sealed[0].frame.done() or self._sealed_size > most):
            self._write_sealed()

    def _write_sealed(self) -> None:
        """Write the oldest sealed frame; if that fails, it stays sealed for another attempt."""
        oldest = self._sealed[0]
        self._write(oldest.objects, oldest.frame.result())
        self._sealed.popleft()
        self._sealed_size -= oldest.size

    def _write(self, objects: _Objects, frame: bytes) -> None:
        pack, offset = self._check_writable().append(frame)
        for slot, (digest, (kind, _)) in enumerate(objects.items()):
            self._written[digest] = Location(pack.number, offset, len(frame), slot)
            if kind == ObjectKind.VALUE:
                self._values.add(digest)
        self._packs[pack.number] = (pack, offset + len(frame))
        self._size += len(frame)

    def _check_writable(self) -> PackWriter:
        if self._handles.writer is None:
            raise ReadOnlyStore(f"{self._store.directory} was opened for reading only.")
        return self._handles.writer


def _in_order(places: dict[Digest, Location]) -> list[tuple[Digest, Location]]:
    """Return objects in pack order."""
    order = attrgetter("area", "offset", "slot")
    return sorted(places.items(), key=lambda item: order(item[1]))


def _listed(objects: _Objects) -> list[tuple[int, Digest, bytes]]:
    return [(kind, digest, data) for digest, (kind, data) in objects.items()]
