"""What every object store does: keep immutable bytes under their digest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import NamedTuple, Protocol

import msgspec

from mulligan.model import Digest, Location

MAX_OBJECT = 1 << 30
"""The largest object in bytes; callers split larger content."""

Locate = Callable[[Digest], Location | None]
"""Looks an object up in the journal's index."""

LocateAll = Callable[[Iterable[Digest]], dict[Digest, Location]]
"""Looks many objects up in one snapshot of the index; unknown ones are left out."""

CommittedLength = Callable[[int], int]
"""The acknowledged length of an area by its number; 0 if the journal does not know it."""

Replacement = Callable[[Digest], Digest | None]
"""The object that a purge left in the place of another; None if none was purged.

Raises ``PurgedContent`` if nothing is left of it.
"""

LastForgotten = Callable[[], int]
"""The highest number of an area that was removed; numbers up to it are not used again."""

Pick = Callable[[], bool]
"""Asked for each group of objects in order: whether its bytes are to be checked."""

Extent = tuple[int, int]
"""A stretch of an area: offset and length."""


class Entry(NamedTuple):
    """One object of a group: its kind, its digest and its length."""

    kind: int
    digest: Digest
    length: int


class Copied(msgspec.Struct, frozen=True):
    """Objects that were copied: old and new locations, and the areas' lengths to acknowledge."""

    moves: dict[Digest, tuple[Location, Location]]
    area_lengths: dict[int, int]


class Flushed(msgspec.Struct, frozen=True):
    """What became durable, to be written into the index in the journal's transaction.

    ``values`` are those of the entries that may refer to other objects.
    """

    entries: dict[Digest, Location]
    area_lengths: dict[int, int]
    size: int
    values: frozenset[Digest] = frozenset()


Places = list[tuple[Digest, Location]]
"""Objects in storage order, with their locations."""


class Locations(msgspec.Struct, frozen=True):
    """Locations of objects, for another process to read them.

    ``source`` says how to open them; only the implementation that made it understands it.
    """

    source: bytes
    places: Places


class Stored(msgspec.Struct, frozen=True):
    """A stored object, the location that the index should have, and its damage, if any."""

    digest: Digest
    location: Location
    damage: str | None = None


class StoredGroup(msgspec.Struct, frozen=True):
    """Objects that are stored together, in ``length`` bytes from ``offset`` of an area.

    Their digests are in the order of their slots, and ``damage`` names the damaged ones by slot.
    """

    area: int
    offset: int
    length: int
    digests: tuple[Digest, ...]
    damage: Mapping[int, str] = {}
    is_checked: bool = False
    """Whether its bytes were read and compared."""

    @property
    def objects(self) -> Iterator[Stored]:
        """The objects one by one; a group of small files has thousands."""
        for slot, digest in enumerate(self.digests):
            place = Location(self.area, self.offset, self.length, slot)
            yield Stored(digest, place, self.damage.get(slot))


class StoredGap(msgspec.Struct, frozen=True):
    """A stretch of an area in which nothing can be read, and why."""

    area: int
    offset: int
    length: int
    detail: str


class Bundle(Protocol):
    """New objects that are being stored; they belong to one journal transaction."""

    def put(self, kind: int, data: bytes) -> Digest:
        """Add an object and return its digest.

        Idempotent. Not durable before :meth:`flush` and not findable by others before the
        journal committed what ``flush`` returned. Raises ``UnstorableValue`` above
        ``MAX_OBJECT`` bytes, ``DiskFull`` when a full frame cannot be written out.
        """
        ...

    def get(self, kind: int, digest: Digest) -> bytes:
        """Return an object of this bundle, or else of the store; see :meth:`Objects.get`."""
        ...

    def flush(self) -> Flushed:
        """Make everything put so far durable and return the locations.

        Objects that the store already has are not written again. If the caller's transaction
        fails afterwards, the bytes are unreferenced and harmless. Raises ``DiskFull``.
        """
        ...


class OwnedArea(Protocol):
    """An area that no writer has, and none can get."""

    def cut_tail(self, length: int) -> int:
        """Cut what follows the acknowledged length; return the bytes released."""
        ...

    def remove(self) -> int:
        """Remove the area, after the journal forgot it; return the bytes released."""
        ...


class Objects(Protocol):
    """Content-addressed storage of bytes."""

    damaged: set[Digest]
    """Objects that reads through this handle found damaged; the next write notes them.

    They are not usable any more, so a bundle stores them again.
    """

    def bundle(self) -> Bundle:
        """Begin a bundle of new objects."""
        ...

    def has(self, digest: Digest) -> bool:
        """Whether the object is in the store (its bytes are not read)."""
        ...

    def are_usable(self, digests: Iterable[Digest]) -> bool:
        """Whether new events may refer to all of these: none is missing or about to be removed."""
        ...

    def sort_by_location(self, digests: Iterable[Digest]) -> list[Digest]:
        """Return the digests in the order in which reading them is cheapest.

        Unknown ones come last.
        """
        ...

    def get(self, kind: int, digest: Digest) -> bytes:
        """Return the object's bytes after checking them against the digest.

        Raises ``MissingObject`` when the index does not know it or its area is gone, and
        ``DamagedObject`` when the stored bytes are not what was put. Never returns wrong bytes.
        Of a purged object, returns what took its place, or raises ``PurgedContent``.
        """
        ...

    def get_all(self, kind: int, digests: Iterable[Digest]) -> Iterator[tuple[Digest, bytes]]:
        """Yield many objects, each once and checked as by :meth:`get`, in the cheapest order.

        Unreadable ones are left out; ``get`` raises the reason.
        """
        ...

    def locate_many(self, digests: Iterable[Digest]) -> Locations | None:
        """Return the locations of many objects, in the order of :meth:`get_all`; None in memory.

        Unknown ones are left out. Objects may be moved at any time afterwards.
        """
        ...

    def get_at(self, kind: int, places: Places) -> Iterator[tuple[Digest, bytes]]:
        """Yield objects as :meth:`get_all` does, at locations from :meth:`locate_many`.

        Objects that are no longer there are left out.
        """
        ...

    # For verify. A store keeps its objects in numbered areas, ``Location.area``, each of which
    # grows at its end; the journal knows how much of each was acknowledged.

    def areas(self) -> list[int]:
        """Return the numbers of the existing areas, in order."""
        ...

    def area_name(self, area: int) -> str:
        """Return the name of an area for messages, whether it exists or not."""
        ...

    def area_size(self, area: int) -> int:
        """Return the length of an area in bytes; raises ``DamageError`` when it is missing."""
        ...

    def written_at(self, area: int) -> datetime:
        """Return when an area was last written to; raises ``DamageError`` when it is missing."""
        ...

    def is_foreign(self, area: int) -> bool:
        """Whether an area belongs to another store."""
        ...

    def enumerate(
        self, area: int, end: int, *, full: bool | Pick
    ) -> Iterator[StoredGroup | StoredGap]:
        """Yield everything in an area up to ``end``, in order, and continue after damage.

        With ``full``, the stored bytes of every group are checked, or of those that it picks;
        otherwise only the locations are read. Raises ``DamageError`` when the area cannot be read
        at all.
        """
        ...

    def values_after(self, area: int, start: int) -> Iterator[bytes]:
        """Yield the intact values past ``start``, which no journal acknowledged."""
        ...

    def contents(self, area: int) -> Iterator[bytes]:
        """Yield all that can be read in an area, also what no index leads to, uncompressed.

        For the proof of a purge. Raises ``DamageError`` when the area cannot be read at all.
        """
        ...

    # For upkeep, which decides from the index what is dead; see ``mulligan.upkeep.space.free``.

    def area_usage(self, area: int) -> int:
        """Return how many bytes an area takes, without its holes; 0 if it is missing."""
        ...

    def entries_at(self, location: Location, known: int) -> Sequence[Entry] | None:
        """Return the objects that are stored together at a location, in the order of slots.

        None if there are exactly ``known`` of them: the caller then knows all. Raises
        ``DamageError``.
        """
        ...

    def own(self, area: int) -> AbstractContextManager[OwnedArea | None]:
        """Lock writers out of an area; None if one has it, or if it belongs to another store."""
        ...

    def free(self, area: int, extents: Iterable[Extent], *, erase: bool = False) -> int | None:
        """Release the storage of dead stretches; return how many bytes that was.

        Needs no new storage, and works beside a writer of the area. None if parts of an area
        cannot be released; then only :meth:`OwnedArea.remove` releases its storage. With
        ``erase``, their bytes are gone on return, whether storage was released or not.
        """
        ...

    def copy(self, places: Sequence[tuple[Entry, Location]]) -> Copied:
        """Copy objects, in the order of their locations, to new ones that are durable on return.

        Each is checked; those that cannot be read are left out. Raises ``DiskFull``.
        """
        ...

    def close(self) -> None:
        """Release files and locks. Idempotent."""
        ...
