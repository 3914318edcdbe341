"""What delta channels are built from: the nearest stored value, and the writes since.

A delta channel stores its value only now and then. In between, its value is that of an ancestor
of the checkpoint, with all writes to the channel between the two applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mulligan.integrations.langgraph.layout import Record
from mulligan.integrations.langgraph.thread import Thread
from mulligan.integrations.langgraph.values import ValueCodec

COUNTERS = "counters_since_delta_snapshot"
"""The metadata of a checkpoint that names the delta channels whose values it does not have."""


def delta_history(
    thread: Thread, namespace: str, id: str | None, channels: Sequence[str], codec: ValueCodec
) -> dict[str, Any]:
    """Return the writes to each channel, the oldest first, and its stored value, if there is one.

    Only ancestors of the checkpoint count, not the checkpoint itself.
    """
    found: dict[str, Any] = {channel: {"writes": []} for channel in channels}
    remaining = set(channels)
    for record, seq in ancestors(thread, namespace, id):
        if not remaining:
            break
        here = thread.writes.of(record).stored()
        for task, channel, stored in reversed(here):
            if channel in remaining:
                found[channel]["writes"].append((task, channel, codec.decode_write(stored)))
        for channel in remaining & channels_of(record):
            found[channel]["seed"] = _value(thread, record, seq, channel, codec)
            remaining.discard(channel)
    for history in found.values():
        history["writes"].reverse()
    return found


def ancestors(thread: Thread, namespace: str, id: str | None) -> Iterator[tuple[Record, int]]:
    """Yield the ancestors of a checkpoint with their seqs, the nearest first."""
    found = thread.record(namespace, id)
    parent = None if found is None else found[0].parent
    passed = set()
    # A checkpoint that was saved again may have become a descendant of itself.
    while parent is not None and parent not in passed:
        passed.add(parent)
        found = thread.record(namespace, parent)
        if found is None:
            return
        yield found
        parent = found[0].parent


def channels_of(record: Record) -> set[str]:
    """Return the channels whose values a checkpoint has."""
    return {*record.small, *record.large, *record.lists}


def needed_by(thread: Thread, record: Record, codec: ValueCodec) -> Iterator[str]:
    """Yield the ids of the ancestors that the delta channels of a checkpoint are built from."""
    missing = set(codec.decode(record.metadata).get(COUNTERS) or {}) - channels_of(record)
    for ancestor, _ in ancestors(thread, record.namespace, record.id):
        if not missing:
            return
        yield ancestor.id
        missing -= channels_of(ancestor)


def _value(thread: Thread, record: Record, seq: int, channel: str, codec: ValueCodec) -> Any:
    if channel in record.small:
        return codec.decode(record.small[channel])
    stored = thread.stored(record, seq)
    if channel in record.lists:
        return codec.decode_list(stored["lists"][channel])
    return codec.decode(stored["values"][channel])
