"""What the storage below a journal does: ordered tables of bytes, in transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from mulligan.journal.protocol import Compacted, Examined, Presence


class TableReader(Protocol):
    """Ordered tables of bytes as they are at one moment."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of a key."""
        ...

    def get_all(self, table: str, keys: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
        """Return the keys that have a value, with their values."""
        ...

    def scan(
        self, table: str, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys in ``start <= key < stop`` and their values, in order or backwards."""
        ...


class TableWriter(TableReader, Protocol):
    """Ordered tables of bytes inside a write transaction."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        ...

    def add_all(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of the keys that have none."""
        ...

    def delete(self, table: str, key: bytes) -> None:
        """Remove a key, if it is there."""
        ...


class Tables(Protocol):
    """A small ordered key-value store with transactions, the base of ``KvJournal``."""

    def read(self) -> AbstractContextManager[TableReader]:
        """Open a snapshot."""
        ...

    def write(self) -> AbstractContextManager[TableWriter]:
        """Open the exclusive write transaction; commit durably on a clean exit."""
        ...

    def presence(self) -> Presence:
        """Return whether the opened storage is still at its path; cheap."""
        ...

    def examine(self) -> Examined:
        """Check the storage below the tables; damaged ones are refused afterwards."""
        ...

    def compact(self, *, patience: float | None = None) -> Compacted:
        """Release free space inside the storage; see ``Journal.compact``."""
        ...

    def lost_commits(self) -> int:
        """Return how many known commits are missing; see ``Journal.lost_commits``."""
        ...

    def other_user(self) -> int | None:
        """Return another process that has it open; see ``Journal.other_user``."""
        ...

    def close(self) -> None:
        """Release the handle. Idempotent."""
        ...
