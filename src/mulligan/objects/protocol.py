"""What every object store does: keep immutable bytes under their digest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from mulligan.model import Digest, Location

MAX_OBJECT = 1 << 30
"""The largest object in bytes; callers split larger content."""

Locate = Callable[[Digest], Location | None]
"""Looks an object up in the journal's index."""

LocateAll = Callable[[Iterable[Digest]], dict[Digest, Location]]
"""Looks many objects up in one snapshot of the index; unknown ones are left out."""

CommittedLength = Callable[[int], int]
"""The acknowledged length of a pack by its number; 0 if the journal does not know it."""


class Flushed(msgspec.Struct, frozen=True):
    """What became durable, to be written into the index in the journal's transaction."""

    entries: dict[Digest, Location]
    packs: dict[int, int]
    size: int


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
    """Objects that are stored together, in ``length`` bytes from ``offset`` of an area."""

    area: int
    offset: int
    length: int
    objects: tuple[Stored, ...]


class StoredGap(msgspec.Struct, frozen=True):
    """A stretch of an area in which nothing can be read, and why."""

    area: int
    offset: int
    length: int
    detail: str


class Bundle(Protocol):
    """New objects on their way into the store; they belong to one journal transaction."""

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


class Objects(Protocol):
    """Content-addressed storage of bytes."""

    def bundle(self) -> Bundle:
        """Begin a bundle of new objects."""
        ...

    def has(self, digest: Digest) -> bool:
        """Whether the object is in the store (its bytes are not read)."""
        ...

    def sort_by_location(self, digests: Iterable[Digest]) -> list[Digest]:
        """Return the digests in the order in which reading them is cheapest.

        Unknown ones come last.
        """
        ...

    def get(self, kind: int, digest: Digest) -> bytes:
        """Return the object's bytes after checking them against the digest.

        Raises ``MissingObject`` when the index does not know it or its pack is gone, and
        ``DamagedObject`` when the stored bytes are not what was put. Never returns wrong bytes.
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

    # For verify. A store keeps its objects in numbered areas, ``Location.pack``, each of which
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

    def is_foreign(self, area: int) -> bool:
        """Whether an area belongs to another store."""
        ...

    def enumerate(self, area: int, end: int, *, full: bool) -> Iterator[StoredGroup | StoredGap]:
        """Yield everything in an area up to ``end``, in order, and continue after damage.

        With ``full``, every object is checked against its digest; otherwise only the locations are
        read. Raises ``DamageError`` when the area cannot be read at all.
        """
        ...

    def values_after(self, area: int, start: int) -> Iterator[bytes]:
        """Yield the intact values past ``start``, which no journal acknowledged."""
        ...

    def close(self) -> None:
        """Release files and locks. Idempotent."""
        ...
