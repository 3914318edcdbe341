"""Ordered tables in memory: the counterpart of ``lmdb`` for tests and temporary stores."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from mulligan.errors import StoreClosed
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.journal.protocol import TABLES, Compacted, Examined, Presence


class _Table:
    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: dict[bytes, bytes] = {}


class MemoryTables:
    """Ordered tables of one process; readers and the writer take turns."""

    def __init__(self, *, failpoint: FailpointHook = ignore) -> None:
        self._tables = {name: _Table() for name in TABLES}
        # Reentrant: a thread may read while it has the write transaction open.
        self._lock = threading.RLock()
        self._failpoint = failpoint
        self._closed = False

    @contextmanager
    def read(self) -> Iterator[MemoryReader]:
        """Open a snapshot."""
        with self._lock:
            self._check_open()
            # Under the lock: without copies, a writer would change the snapshot.
            yield MemoryReader(self._tables)

    @contextmanager
    def write(self) -> Iterator[MemoryWriter]:
        """Open the write transaction; undo all of it on an exception."""
        with self._lock:
            self._check_open()
            writer = MemoryWriter(self._tables)
            try:
                self._failpoint(Failpoint.JOURNAL_TRANSACTION_STARTED)
                yield writer
                self._failpoint(Failpoint.JOURNAL_BEFORE_COMMIT)
            except BaseException:
                # Also for KeyboardInterrupt: a transaction that did not reach its end must leave
                # nothing.
                writer.undo()
                raise
            self._failpoint(Failpoint.JOURNAL_COMMITTED)

    def presence(self) -> Presence:
        """Return that it is present: nothing outside this process can remove it."""
        return Presence.PRESENT

    def examine(self) -> Examined:
        """Return no damage: memory is not checked."""
        return Examined({})

    def compact(self, *, patience: float | None = None) -> Compacted:
        """Do nothing: Python frees what is removed."""
        return Compacted()

    def lost_commits(self) -> int:
        """Return 0: nothing can be put back."""
        return 0

    def other_user(self) -> int | None:
        """Return None: no other process can have it."""
        return None

    def close(self) -> None:
        """Refuse further use."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("This store was closed.")


class MemoryReader:
    """The tables under the lock."""

    def __init__(self, tables: dict[str, _Table]) -> None:
        self._tables = tables

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of a key."""
        return self._tables[table].values.get(key)

    def get_all(self, table: str, keys: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
        """Return the keys that have a value, with their values."""
        values = self._tables[table].values
        return [(key, values[key]) for key in keys if key in values]

    def scan(
        self, table: str, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys in ``start <= key < stop`` and their values, in order or backwards."""
        content = self._tables[table]
        first = bisect_left(content.keys, start)
        last = len(content.keys) if stop is None else bisect_left(content.keys, stop)
        found = content.keys[first:last]
        for key in reversed(found) if reverse else found:
            yield key, content.values[key]


class MemoryWriter(MemoryReader):
    """The tables inside the write transaction, with an undo log."""

    def __init__(self, tables: dict[str, _Table]) -> None:
        super().__init__(tables)
        self._before: list[tuple[str, bytes, bytes | None]] = []

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        self._before.append((table, key, self.get(table, key)))
        self._set(table, key, value)

    def add_all(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of the keys that have none."""
        for key, value in items:
            if self.get(table, key) is None:
                self.put(table, key, value)

    def delete(self, table: str, key: bytes) -> None:
        """Remove a key, if it is there."""
        if (value := self.get(table, key)) is not None:
            self._before.append((table, key, value))
            self._set(table, key, None)

    def undo(self) -> None:
        """Undo all changes of the transaction."""
        # Newest first: a key that was put twice gets its oldest value back.
        for table, key, value in reversed(self._before):
            self._set(table, key, value)

    def _set(self, table: str, key: bytes, value: bytes | None) -> None:
        content = self._tables[table]
        if value is None:
            del content.values[key]
            del content.keys[bisect_left(content.keys, key)]
            return
        if key not in content.values:
            insort(content.keys, key)
        content.values[key] = value
