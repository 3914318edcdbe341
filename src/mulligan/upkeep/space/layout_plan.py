"""What is dead in an area, and which of its frames are worth moving: pure functions.

A frame is a group of objects that are stored together. It is live while an entry of the index leads
to one of its objects, and its dead objects take their share of it until the live ones move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mulligan.objects.protocol import Extent

LIVE_SHARE = 0.7
"""A frame, or what is left of an area, with a smaller live share is rewritten: 1 / 1.5 and some."""

APPARENT_SHARE = 0.1
"""An area with many holes is rewritten below this live share: copies of it may fill the holes."""

MIN_WASTE = 128 << 10
"""How many bytes an area must waste before anything in it is rewritten."""

BLOCK = 4096
"""The filesystem releases storage in whole blocks."""


class FrameUse(NamedTuple):
    """A live frame: where it is, how many of its objects are live, and the bytes that they need."""

    offset: int
    length: int
    live: int


def dead_extents(frames: Mapping[int, int], end: int) -> list[Extent]:
    """Return the stretches up to ``end`` without a live frame; ``frames`` are offset → length."""
    dead: list[Extent] = []
    at = 0
    for offset in sorted(frames):
        if offset >= end:
            break
        if offset > at:
            dead.append((at, offset - at))
        at = max(at, offset + frames[offset])
    if at < end:
        dead.append((at, end - at))
    return dead


def allocated(frames: Iterable[FrameUse]) -> int:
    """Return the size of the blocks that frames touch, given in the order of their offsets."""
    total, last = 0, -1
    for frame in frames:
        first = max(frame.offset // BLOCK, last + 1)
        last = max(last, (frame.offset + frame.length - 1) // BLOCK)
        total += max(0, last - first + 1)
    return total * BLOCK


def worth_moving(
    frames: list[FrameUse], size: int, *, has_holes: bool, is_owned: bool
) -> list[FrameUse]:
    """Return the frames of an area to move, so that freeing them releases enough.

    ``has_holes``: parts of the area can be released; otherwise only all of it, and not while a
    writer owns it. ``size`` is its length.
    """
    if not has_holes and is_owned:
        return []
    rest = [frame for frame in frames if frame.live >= LIVE_SHARE * frame.length]
    kept = allocated(rest) if has_holes else size
    live = sum(frame.live for frame in rest)
    is_sparse = not is_owned and live < APPARENT_SHARE * size
    if kept - live >= MIN_WASTE and live < LIVE_SHARE * kept:
        return frames
    if is_sparse and size - live >= 64 * MIN_WASTE:
        return frames
    poor = [frame for frame in frames if frame.live < LIVE_SHARE * frame.length]
    waste = sum(frame.length - frame.live for frame in poor)
    return poor if has_holes and waste >= MIN_WASTE else []
