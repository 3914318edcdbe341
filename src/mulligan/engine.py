"""The engine: joins journal and objects, and owns the order in which they are written.

Objects become durable first; then one journal transaction makes them findable together with
the events that refer to them. A crash at any instruction leaves, at worst, unreferenced bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from mulligan import codec
from mulligan.clock import Clock
from mulligan.journal.protocol import Journal, Txn, View
from mulligan.model import Digest, Environment, ObjectKind
from mulligan.objects.protocol import Bundle, Objects


class Engine:
    """A journal and an object store that belong together."""

    def __init__(
        self, journal: Journal, objects: Objects, clock: Clock, directory: Path | None = None
    ) -> None:
        self.journal = journal
        self.objects = objects
        self.clock = clock
        self.directory = directory
        self.environment = lru_cache(maxsize=64)(self._environment)
        """Returns the environment that an object holds; many checkpoints share one."""

    def read(self) -> AbstractContextManager[View]:
        """Open a snapshot of the journal; keep it short."""
        return self.journal.read()

    @contextmanager
    def write(self, bundle: Bundle) -> Iterator[Txn]:
        """Open the write transaction in which the bundle's objects become part of the store.

        What is put into the bundle inside the transaction becomes durable before the commit.
        """
        early = bundle.flush()
        with self.journal.write() as txn:
            if early.entries:
                txn.index_objects(early.entries, early.packs)
            yield txn
            late = bundle.flush()
            if len(late.entries) > len(early.entries):
                txn.index_objects(late.entries, late.packs)

    def load(self, digest: Digest) -> bytes:
        """Return the bytes of a value's object."""
        return self.objects.get(ObjectKind.VALUE, digest)

    def plain(self, value: Any) -> Any:
        """Return a frozen value, such as an event's payload, as plain Python values."""
        return codec.plain_decoder(self.load)(codec.encode(value))

    def _environment(self, digest: Digest) -> Environment:
        value = codec.plain_decoder(self.load)(self.load(digest))
        return msgspec.convert(value, Environment)

    def close(self) -> None:
        """Release everything. Idempotent."""
        self.objects.close()
        self.journal.close()
