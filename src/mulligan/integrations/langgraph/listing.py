"""Listing the checkpoints of a thread, the newest first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mulligan.integrations.langgraph.layout import Record
from mulligan.integrations.langgraph.thread import Loaded, Thread
from mulligan.integrations.langgraph.values import ValueCodec
from mulligan.integrations.langgraph.writes import PendingWrites

_Lists = dict[str, list[Any]]

FEW = 4
"""The pending writes of this many checkpoints are read one by one; then those of all."""


class Listing:
    """The checkpoints of a thread that match, the newest first, each as it was loaded.

    The list of a checkpoint is most often the beginning of its child's, and the record of the
    child says so. Then it is not read again, and both have the same objects.
    """

    def __init__(
        self,
        thread: Thread,
        codec: ValueCodec,
        *,
        namespace: str | None,
        id: str | None,
        before: str | None,
        filter: dict[str, Any],
    ) -> None:
        self._thread = thread
        self._codec = codec
        self._namespace, self._id, self._before = namespace, id, before
        self._filter = filter
        self._yielded = 0
        self._beginnings: dict[tuple[str, str], _Lists] = {}
        self._all_writes: dict[tuple[str, str], PendingWrites] | None = None

    def __iter__(self) -> Iterator[Loaded]:
        """Yield the checkpoints."""
        for record, seq in self._records():
            if self._matches(record):
                self._yielded += 1
                yield Loaded(record, self._values(record, seq), self._writes(record))
            else:
                self._beginnings.pop((record.namespace, record.id), None)

    def _records(self) -> Iterator[tuple[Record, int]]:
        if self._id is None or self._namespace is None:
            return self._thread.records()
        found = self._thread.record(self._namespace, self._id)
        return iter([] if found is None else [found])

    def _matches(self, record: Record) -> bool:
        if self._namespace is not None and record.namespace != self._namespace:
            return False
        if self._id is not None and record.id != self._id:
            return False
        if self._before is not None and record.id >= self._before:
            return False
        if not self._filter:
            return True
        metadata = self._codec.decode(record.metadata)
        return all(_found(metadata, name) == wanted for name, wanted in self._filter.items())

    def _writes(self, record: Record) -> PendingWrites:
        if self._yielded <= FEW:
            return self._thread.writes.of(record)
        if self._all_writes is None:
            self._all_writes = self._thread.writes.by_checkpoint()
        return self._all_writes.get((record.namespace, record.id)) or PendingWrites()

    def _values(self, record: Record, seq: int) -> dict[str, Any]:
        decode = self._codec.decode
        lists = self._beginnings.pop((record.namespace, record.id), {})
        missing = record.lists.keys() - lists.keys()
        if missing or record.large:
            stored = self._thread.stored(record, seq)
            lists |= {name: self._codec.decode_list(stored["lists"][name]) for name in missing}
            large = {name: decode(stored["values"][name]) for name in record.large}
        else:
            large = {}
        self._share(record, lists)
        small = {name: decode(value) for name, value in record.small.items()}
        return {**small, **large, **lists}

    def _share(self, record: Record, lists: _Lists) -> None:
        """Keep the parent's lists, where this checkpoint's begin with them."""
        if record.parent is not None:
            self._beginnings[record.namespace, record.parent] = {
                name: lists[name][:length]
                for name, (_, length) in record.lists.items()
                if length is not None
            }


def _found(metadata: Any, name: str) -> Any:
    """Return a value of the metadata; ``user.name`` is that of a nested dictionary."""
    first, dot, rest = name.partition(".")
    if name in metadata or not dot:
        return metadata.get(name)
    inside = metadata.get(first)
    return _found(inside, rest) if isinstance(inside, dict) else None
