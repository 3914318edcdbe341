"""What a power cut leaves of a recorded disk.

Writes before the last flush survive. Of those after it, all, none or some survive, in any order; a
write that survives in part is torn between two blocks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from mulligan.testing.power.disk import Record, Write

BLOCK = 4096
"""The unit that a disk writes atomically."""

FATES = ("lost", "kept", "some", "torn")
"""What happens to the writes after the last flush."""


def images(
    base: bytes, record: Sequence[Record], positions: Sequence[int], rng: random.Random
) -> Iterator[tuple[int, str, bytes]]:
    """Yield position, fate and image for each cut; a position counts records, ascending."""
    durable = bytearray(base)
    flushed = 0
    for position in sorted(positions):
        last_flush = _last_flush(record, flushed, position)
        for write in record[flushed:last_flush]:
            _apply(durable, write)
        flushed = last_flush
        fate = rng.choice(FATES)
        image = bytearray(durable)
        for write in survivors(record[flushed:position], fate, rng):
            _apply(image, write)
        yield position, fate, bytes(image)


def survivors(after: Sequence[Record], fate: str, rng: random.Random) -> list[Write]:
    """Return what is left of the writes after the last flush."""
    writes = [write for write in after if write is not None]
    if fate == "lost":
        return []
    if fate == "kept":
        return writes
    chosen = [write for write in writes if rng.random() < 0.5]
    return chosen if fate == "some" else [_torn(write, rng) for write in chosen]


def _torn(write: Write, rng: random.Random) -> Write:
    """Return the first or last part of a write, in whole blocks."""
    blocks = len(write.data) // BLOCK
    if blocks < 2:
        return write
    middle = rng.randrange(1, blocks) * BLOCK
    if rng.random() < 0.5:
        return Write(write.offset, write.data[:middle])
    return Write(write.offset + middle, write.data[middle:])


def _last_flush(record: Sequence[Record], start: int, position: int) -> int:
    """Return the position of the last flush before a position, or ``start`` if there is none."""
    return next((n for n in range(position - 1, start - 1, -1) if record[n] is None), start)


def _apply(image: bytearray, record: Record) -> None:
    if record is not None:
        image[record.offset : record.offset + len(record.data)] = record.data
