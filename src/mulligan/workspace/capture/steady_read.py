"""Readings of a file that other programs may be writing to: again, until one holds.

A reading holds if the file's stat is the same before and after it. It also holds if the same bytes
are found twice in a row: between the two readings the file had just these bytes. So a file that
only grows, such as a log, is read as the part that was there at the first look. A file that is
rewritten faster than it can be read has no reading that holds; the last one is kept and is torn.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Generic, NamedTuple, TypeVar

MAX_READINGS = 5
"""How many readings a file gets."""

T = TypeVar("T")


class Reading(NamedTuple, Generic[T]):
    """The first ``size`` bytes of a file, and the stat of the file when they were looked for.

    ``holds`` says that the stat belongs to exactly these bytes, ``torn`` that the bytes may be
    from several moments. If neither is so, the file had these bytes, and has changed since.
    """

    content: T
    size: int
    stat: os.stat_result
    holds: bool
    torn: bool = False


Take = Callable[[int], tuple[T, int]]
"""Reads up to so many bytes from the start; returns them, or a digest, and how many they are."""


def read_steadily(
    handle: int,
    take: Take[T],
    attempts: int,
    is_late: Callable[[], bool] = bool,
    before: os.stat_result | None = None,
) -> Reading[T]:
    """Read an open file until a reading holds, or the attempts or the time are used up.

    There are two in any case, for the second one tells whether the file has only grown. ``before``
    is the stat of the open file, if it is known.
    """
    before = before or os.fstat(handle)
    size = before.st_size
    known: T | None = None
    for attempt in count(1):
        content, length = take(size)
        after = os.fstat(handle)
        is_whole = length == size
        if is_whole and signature(before) == signature(after):
            return Reading(content, size, before, holds=True)
        if is_whole and known is not None and content == known:
            return Reading(content, size, before, holds=False)
        if attempt >= attempts or (attempt >= 2 and is_late()):
            return Reading(content, length, before, holds=False, torn=True)
        if is_whole and known is None and after.st_size >= size:
            known = content  # it may have only grown: then it has the same beginning again
        else:
            before, size, known = after, after.st_size, None
    raise AssertionError("the attempts are counted without an end")


def signature(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return what changes in a stat whenever the file does."""
    return (
        status.st_ino,
        status.st_ctime_ns,
        status.st_mtime_ns,
        status.st_size,
        status.st_mode,
    )
