"""Consistent reads of a file that other programs may be writing to, with retries.

A reading holds if the file's stat is the same before and after it. It is also consistent if the
same bytes are read twice in a row: between the two reads the file had exactly these bytes. So a
file that only grows, such as a log, is read up to its length at the first attempt. A file that is
rewritten faster than it can be read has no consistent reading; the last one is kept and marked as
torn.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Generic, NamedTuple, TypeVar

MAX_READINGS = 5
"""Maximum number of attempts per file."""

T = TypeVar("T")


class Reading(NamedTuple, Generic[T]):
    """The first ``size`` bytes of a file, and the stat of the file before they were read.

    ``holds`` means that the stat belongs to exactly these bytes; ``torn`` means that the bytes may
    be from different moments. If neither is set, the file had these bytes and has changed since.
    """

    content: T
    size: int
    stat: os.stat_result
    holds: bool
    torn: bool = False


Take = Callable[[int], tuple[T, int]]
"""Reads up to this many bytes from the start; returns them or a digest, and their count."""


def read_steadily(
    handle: int,
    take: Take[T],
    attempts: int,
    is_late: Callable[[], bool] = bool,
    before: os.stat_result | None = None,
) -> Reading[T]:
    """Read an open file until a reading is consistent, or attempts or time run out.

    It makes at least two attempts, because the second shows whether the file has only grown.
    ``before`` is the stat of the open file, if known.
    """
    before = before or os.fstat(handle)
    size = before.st_size
    known: T | None = None
    for attempt in count(1):
        # Always up to the size at the start of the attempt: a log that grows faster than it is read
        # would never end.
        content, length = take(size)
        after = os.fstat(handle)
        is_complete = length == size
        if is_complete and signature(before) == signature(after):
            return Reading(content, size, before, holds=True)
        if is_complete and known is not None and content == known:
            return Reading(content, size, before, holds=False)
        if attempt >= attempts or (attempt >= 2 and is_late()):
            return Reading(content, length, before, holds=False, torn=True)
        if is_complete and known is None and after.st_size >= size:
            known = content  # if it has only grown, the next attempt reads the same
        else:
            # It was rewritten or truncated: what was read so far proves nothing about its current
            # bytes.
            before, size, known = after, after.st_size, None
    raise AssertionError("unreachable: the loop only ends by returning")


def signature(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return the fields of a stat that change whenever the file does."""
    return (
        status.st_ino,
        status.st_ctime_ns,
        status.st_mtime_ns,
        status.st_size,
        status.st_mode,
    )
