"""Objects in a dictionary: the counterpart of packs, for tests and temporary stores."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from threading import Lock

from mulligan import codec
from mulligan.errors import (
    DamagedObject,
    DamageError,
    MissingObject,
    StoreClosed,
    UnstorableValue,
)
from mulligan.model import Digest, Location, ObjectKind
from mulligan.objects.protocol import (
    MAX_OBJECT,
    Copied,
    Entry,
    Extent,
    Flushed,
    LocateAll,
    Pick,
    Places,
    Replacement,
    StoredGroup,
)

_Contents = dict[Digest, tuple[int, bytes]]

AREA = 0
"""The only area of a store in memory; its objects are in the order of arrival."""


class MemoryObjects:
    """Implements ``Objects`` in memory; a bundle becomes visible when it is flushed."""

    def __init__(
        self,
        locate_usable: LocateAll | None = None,
        replacement: Replacement = lambda _: None,
    ) -> None:
        self._contents: _Contents = {}
        self.damaged: set[Digest] = set()
        # In order; an object that was stored again, after a collection, has several.
        self._places: list[tuple[Digest, Location]] = []
        self._locate_usable = locate_usable
        self._replacement = replacement
        self._size = 0
        self._lock = Lock()
        self._closed = False

    def bundle(self) -> MemoryBundle:
        """Begin a bundle of new objects."""
        self._check_open()
        return MemoryBundle(self)

    def has(self, digest: Digest) -> bool:
        """Whether the object is in the store."""
        return digest in self._contents

    def are_usable(self, digests: Iterable[Digest]) -> bool:
        """Whether new events may refer to all of these."""
        wanted = set(digests)
        return self._usable(wanted) >= wanted

    def _usable(self, digests: Iterable[Digest]) -> set[Digest]:
        if self._locate_usable is None:
            return {digest for digest in digests if digest in self._contents}
        return {*self._locate_usable(digests)}

    def sort_by_location(self, digests: Iterable[Digest]) -> list[Digest]:
        """Return the digests unchanged: every order costs the same here."""
        return sorted(digests, key=lambda digest: digest not in self._contents)

    def get(self, kind: int, digest: Digest) -> bytes:
        """Return the object's bytes; see ``Objects.get``."""
        self._check_open()
        # A purged object stays in memory until its place is freed, and is never returned.
        other = self._replacement(digest)
        return _checked(self._contents, kind, digest if other is None else other)

    def get_all(self, kind: int, digests: Iterable[Digest]) -> Iterator[tuple[Digest, bytes]]:
        """Yield many objects; see ``Objects.get_all``."""
        for digest in dict.fromkeys(digests):
            with suppress(DamageError):
                yield digest, self.get(kind, digest)

    def locate_many(self, digests: Iterable[Digest]) -> None:
        """Return None: no other process can read them."""

    def get_at(self, kind: int, places: Places) -> Iterator[tuple[Digest, bytes]]:
        """Yield many objects; their digests are their only locations."""
        return self.get_all(kind, [digest for digest, _ in places])

    def areas(self) -> list[int]:
        """Return the only area, if it is not empty."""
        return [AREA] if self._contents else []

    def area_name(self, area: int) -> str:
        """Return the name of an area."""
        return "memory"

    def area_size(self, area: int) -> int:
        """Return the total size of the objects in bytes."""
        return self._size

    def written_at(self, area: int) -> datetime:
        """Return the earliest time: nothing in memory is newer than its journal."""
        return datetime.min.replace(tzinfo=UTC)

    def is_foreign(self, area: int) -> bool:
        """Return False: memory belongs to this store."""
        return False

    def enumerate(self, area: int, end: int, *, full: bool | Pick) -> Iterator[StoredGroup]:
        """Yield every object by itself; see ``Objects.enumerate``."""
        for digest, place in list(self._places):
            if place.offset + place.length <= end:
                kind, data = self._contents[digest]
                is_checked = full() if callable(full) else full
                is_damaged = is_checked and codec.digest(kind, data) != digest
                damage = {0: "it is not what was put"} if is_damaged else {}
                yield StoredGroup(area, place.offset, place.length, (digest,), damage, is_checked)

    def values_after(self, area: int, start: int) -> Iterator[bytes]:
        """Yield the values past an offset; see ``Objects.values_after``."""
        for digest, place in list(self._places):
            kind, data = self._contents[digest]
            if place.offset >= start and kind == ObjectKind.VALUE:
                yield data

    def contents(self, area: int) -> Iterator[bytes]:
        """Yield all objects; see ``Objects.contents``."""
        yield from [data for _, data in self._contents.values()]

    def area_usage(self, area: int) -> int:
        """Return the size of the objects that were not removed."""
        return sum(len(data) for _, data in list(self._contents.values()))

    def entries_at(self, location: Location, known: int) -> None:
        """Return None: every object is stored by itself."""

    def own(self, area: int) -> AbstractContextManager[None]:
        """Yield None: the only area is always in use."""
        return nullcontext()

    def free(self, area: int, extents: Iterable[Extent], *, erase: bool = False) -> int:
        """Forget the objects in dead stretches; see ``Objects.free``."""
        freed = 0
        with self._lock:
            dead = sorted(extents)
            before, self._places = self._places, []
            for digest, place in before:
                at = bisect_right(dead, (place.offset, self._size)) - 1
                # An empty object takes no place; it stays, and costs nothing.
                if not place.length or at < 0 or place.offset >= sum(dead[at]):
                    self._places.append((digest, place))
            left = {digest for digest, _ in self._places}
            for digest in {digest for digest, _ in before} - left:
                freed += len(self._contents.pop(digest)[1])
        return freed

    def copy(self, places: Sequence[tuple[Entry, Location]]) -> Copied:
        """Copy nothing: there is nothing to gain."""
        return Copied({}, {})

    def close(self) -> None:
        """Refuse further use. Idempotent."""
        self._closed = True

    def take_in(self, pending: _Contents) -> dict[Digest, Location]:
        """Make objects visible atomically, and return the locations of the new ones."""
        self._check_open()
        new: dict[Digest, Location] = {}
        # Not those that a collection is about to remove: they get a new location instead.
        known = self._usable(pending)
        # Offsets are assigned under the lock, so that no two objects get the same one.
        with self._lock:
            for digest, (kind, data) in pending.items():
                if digest not in known:
                    new[digest] = Location(AREA, self._size, len(data), 0)
                    self._size += len(data)
                    self._contents[digest] = (kind, data)
            self._places.extend(new.items())
        return new

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("The object store in memory was closed.")


class MemoryBundle:
    """New objects on their way into a ``MemoryObjects``; implements ``Bundle``."""

    def __init__(self, store: MemoryObjects) -> None:
        self._store = store
        self._pending: _Contents = {}
        self._new: dict[Digest, Location] = {}

    def put(self, kind: int, data: bytes) -> Digest:
        """Add an object and return its digest; see ``Bundle.put``."""
        if len(data) > MAX_OBJECT:
            raise UnstorableValue(
                f"An object of {len(data)} bytes is larger than {MAX_OBJECT}.",
                hint="Split it into smaller objects.",
            )
        digest = codec.digest(kind, data)
        self._pending[digest] = (kind, bytes(data))
        return digest

    def get(self, kind: int, digest: Digest) -> bytes:
        """Return an object of this bundle, or else of the store."""
        if digest in self._pending:
            return _checked(self._pending, kind, digest)
        return self._store.get(kind, digest)

    def flush(self) -> Flushed:
        """Make everything put so far visible; idempotent."""
        self._new |= self._store.take_in(self._pending)
        self._pending = {}
        ends = [place.offset + place.length for place in self._new.values()]
        size = sum(place.length for place in self._new.values())
        values = frozenset(self._new)  # chunks among them refer to nothing, which is harmless
        return Flushed(dict(self._new), {AREA: max(ends)} if ends else {}, size, values)


def _checked(contents: _Contents, kind: int, digest: Digest) -> bytes:
    found = contents.get(digest)
    if found is None:
        raise MissingObject(f"Object {digest.hex()} is not in the store.")
    if found[0] != kind:
        raise DamagedObject(f"Object {digest.hex()} is of kind {found[0]}, not {kind}.")
    return found[1]
