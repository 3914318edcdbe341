"""Objects in a dictionary: the twin of the packs for tests and for stores that need no disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from threading import Lock

from mulligan import codec
from mulligan.errors import (
    DamagedObject,
    DamageError,
    MissingObject,
    StoreClosed,
    UnstorableValue,
)
from mulligan.model import Digest, Location
from mulligan.objects.protocol import MAX_OBJECT, Flushed, Places

_Contents = dict[Digest, tuple[int, bytes]]


class MemoryObjects:
    """Implements ``Objects`` in memory; a bundle becomes visible when it is flushed."""

    def __init__(self) -> None:
        self._contents: _Contents = {}
        self._lock = Lock()
        self._closed = False

    def bundle(self) -> MemoryBundle:
        """Begin a bundle of new objects."""
        self._check_open()
        return MemoryBundle(self)

    def has(self, digest: Digest) -> bool:
        """Whether the object is in the store."""
        return digest in self._contents

    def sort_by_location(self, digests: Iterable[Digest]) -> list[Digest]:
        """Return the digests; here any order is as good."""
        return sorted(digests, key=lambda digest: digest not in self._contents)

    def get(self, kind: int, digest: Digest) -> bytes:
        """Return the object's bytes; see ``Objects.get``."""
        self._check_open()
        return _checked(self._contents, kind, digest)

    def get_all(self, kind: int, digests: Iterable[Digest]) -> Iterator[tuple[Digest, bytes]]:
        """Yield many objects; see ``Objects.get_all``."""
        for digest in dict.fromkeys(digests):
            with suppress(DamageError):
                yield digest, self.get(kind, digest)

    def locate_many(self, digests: Iterable[Digest]) -> None:
        """Return None: no other process can read them."""

    def get_at(self, kind: int, places: Places) -> Iterator[tuple[Digest, bytes]]:
        """Yield many objects; there are no places but their digests."""
        return self.get_all(kind, [digest for digest, _ in places])

    def close(self) -> None:
        """Refuse further use. Idempotent."""
        self._closed = True

    def take_in(self, pending: _Contents) -> _Contents:
        """Make objects visible, all at once, and return those that are new."""
        self._check_open()
        with self._lock:
            new = {key: value for key, value in pending.items() if key not in self._contents}
            self._contents.update(new)
        return new

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("The object store in memory was closed.")


class MemoryBundle:
    """New objects on their way into a ``MemoryObjects``; implements ``Bundle``."""

    def __init__(self, store: MemoryObjects) -> None:
        self._store = store
        self._pending: _Contents = {}
        self._new: _Contents = {}

    def put(self, kind: int, data: bytes) -> Digest:
        """Take in an object and return its digest; see ``Bundle.put``."""
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
        # There are no packs, so a location only says how long the object is.
        entries = {key: Location(0, 0, len(data), 0) for key, (_, data) in self._new.items()}
        return Flushed(entries, {}, sum(len(data) for _, data in self._new.values()))


def _checked(contents: _Contents, kind: int, digest: Digest) -> bytes:
    found = contents.get(digest)
    if found is None:
        raise MissingObject(f"Object {digest.hex()} is not in the store.")
    if found[0] != kind:
        raise DamagedObject(f"Object {digest.hex()} is of kind {found[0]}, not {kind}.")
    return found[1]
