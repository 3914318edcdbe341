"""A bundle that takes no more than a store may grow."""

from __future__ import annotations

from mulligan.model import Digest
from mulligan.objects.protocol import Bundle, Flushed
from mulligan.storage_limit import Allowance, StorageLimit

MAX_MEASUREMENTS = 32
"""How often a capture is measured near the limit; each time, its writes are synced."""


class NoRoom(Exception):
    """The store may not grow as much as a capture needs."""

    def __init__(self, allowance: Allowance) -> None:
        super().__init__(allowance.reason)
        self.allowance = allowance


class LimitedBundle:
    """Passes objects on until the allowance is used up; raises ``NoRoom`` then.

    Objects count uncompressed, even those that the store already has. So it measures what was
    really written before it refuses.
    """

    def __init__(self, bundle: Bundle, storage: StorageLimit, allowance: Allowance) -> None:
        self._bundle = bundle
        self._storage = storage
        self._left = allowance.bytes
        self._measured = 0

    def put(self, kind: int, data: bytes) -> Digest:
        """Add an object; see ``Bundle.put``."""
        size = len(data)
        if size > self._left:
            self._measure(size)
        self._left -= size
        return self._bundle.put(kind, data)

    def get(self, kind: int, digest: Digest) -> bytes:
        """Return an object of the bundle, or else of the store."""
        return self._bundle.get(kind, digest)

    def flush(self) -> Flushed:
        """Make everything durable; see ``Bundle.flush``."""
        return self._bundle.flush()

    def _measure(self, size: int) -> None:
        # Flushed first: objects that still wait in memory would not be measured.
        self._bundle.flush()
        allowance = self._storage.allowance()
        self._measured += 1
        is_near = self._measured > MAX_MEASUREMENTS
        if allowance is not None and (is_near or allowance.bytes < size):
            raise NoRoom(allowance)
        self._left = size if allowance is None else allowance.bytes
