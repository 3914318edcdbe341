"""The pending writes of checkpoints: saved in the order of their coming, read in LangGraph's."""

from __future__ import annotations

import threading
from typing import Any

from langgraph.checkpoint.base import writes_sort_key

from mulligan.integrations.langgraph.changes import length_at
from mulligan.integrations.langgraph.layout import WRITES, Record
from mulligan.integrations.langgraph.values import ValueCodec
from mulligan.session import Session

NEAR = 256
"""Up to this many calls after a checkpoint, its writes are searched there; else in an index."""


class PendingWrites:
    """The pending writes of one checkpoint, as they were saved."""

    def __init__(self) -> None:
        self._writes: dict[tuple[str, int], tuple[str, str, Any]] = {}

    def add(self, task: str, path: str, writes: list[list[Any]]) -> None:
        """Add the writes of a call: the first of each place counts, the last of special ones."""
        for index, channel, stored in writes:
            if index < 0 or (task, index) not in self._writes:
                self._writes[task, index] = (path, channel, stored)

    def stored(self) -> list[tuple[str, str, Any]]:
        """Return task, channel and stored value of each, in the order of a super-step."""
        ordered = sorted(
            self._writes.items(), key=lambda item: writes_sort_key(item[1][0], *item[0])
        )
        return [(task, channel, stored) for (task, _), (_, channel, stored) in ordered]

    def decoded(self, codec: ValueCodec) -> list[tuple[str, str, Any]]:
        """Return task, channel and value of each, in the order of a super-step."""
        decode = codec.decode_write
        return [(task, channel, decode(stored)) for task, channel, stored in self.stored()]


class StoredWrites:
    """The pending writes of all checkpoints of a thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # Listings and delta channels read in several threads, without the lock of the thread.
        self._lock = threading.Lock()
        self._positions: dict[tuple[str, str], list[int]] = {}
        self._seen: list[tuple[str, str] | None] = []

    def of(self, record: Record) -> PendingWrites:
        """Return the writes of a checkpoint."""
        found = PendingWrites()
        document = self._session.internal.document()
        count = length_at(document, WRITES)
        if count == record.first_write:
            return found
        state = self._session.state
        if count - record.first_write <= NEAR:
            calls = state.slice(WRITES, record.first_write)
        else:
            positions = self.positions((record.namespace, record.id))
            calls = [state.get((*WRITES, position)) for position in positions]
        for call in calls:
            if call is not None and (call[0], call[1]) == (record.namespace, record.id):
                found.add(*call[2:])
        return found

    def by_checkpoint(self, first: int = 0) -> dict[tuple[str, str], PendingWrites]:
        """Return all writes from a position on, by namespace and id of their checkpoint."""
        found: dict[tuple[str, str], PendingWrites] = {}
        for call in self._session.state.slice(WRITES, first):
            if call is not None:
                found.setdefault((call[0], call[1]), PendingWrites()).add(*call[2:])
        return found

    def positions(self, checkpoint: tuple[str, str]) -> list[int]:
        """Return where the writes of a checkpoint are, by its namespace and id."""
        with self._lock:
            self._read_index()
            return [*self._positions.get(checkpoint, ())]

    def _read_index(self) -> None:
        """Read the places of all writes; later only those that were added since."""
        count = len(self._seen)
        calls = self._session.state.slice(WRITES, max(count - 1, 0))
        owners = [None if call is None else (call[0], call[1]) for call in calls]
        if count and (not owners or owners[0] != self._seen[-1]):
            # The state was restored, or writes were removed.
            self._seen, self._positions = [], {}
            self._read_index()
            return
        for owner in owners[1:] if count else owners:
            if owner is not None:
                self._positions.setdefault(owner, []).append(len(self._seen))
            self._seen.append(owner)
