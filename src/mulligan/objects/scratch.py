"""Objects that are never stored: how a read-only store compares new content."""

from __future__ import annotations

from mulligan import codec
from mulligan.model import Digest, ObjectKind
from mulligan.objects.protocol import Flushed, Objects


class Scratch:
    """New objects that are dropped with it; implements ``Bundle``.

    For the contents of files, only the digests are kept: that is enough to compare them.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._values: dict[Digest, bytes] = {}

    def put(self, kind: int, data: bytes) -> Digest:
        """Return the digest of an object, and keep it if it is a value."""
        digest = codec.digest(kind, data)
        if kind == ObjectKind.VALUE:
            self._values[digest] = bytes(data)
        return digest

    def get(self, kind: int, digest: Digest) -> bytes:
        """Return a value that was put, or else an object of the store."""
        known = self._values.get(digest) if kind == ObjectKind.VALUE else None
        return self._objects.get(kind, digest) if known is None else known

    def load(self, digest: Digest) -> bytes:
        """Return the bytes of a value's object."""
        return self.get(ObjectKind.VALUE, digest)

    def flush(self) -> Flushed:
        """Return that nothing became durable."""
        return Flushed({}, {}, 0)
