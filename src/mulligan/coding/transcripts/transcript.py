"""A transcript that a coding agent writes, line by line, read incrementally.

The agent writes JSON lines, some time after the events that they tell of. So a reader takes the
complete lines that are there, and continues from there the next time. Most of the time, lines are
appended. An agent may also shorten, rewrite or replace the file: then the beginning is not what was
read before, and everything is read again.
"""

from __future__ import annotations

import os
import stat
from typing import Any

import msgspec
from blake3 import blake3

from mulligan.document.values import freeze
from mulligan.errors import UnstorableValue

BLOCK = 1 << 20
"""How many bytes are read into memory at once to compare them."""

MAX_BYTES = 64 << 20
"""How many bytes are read at once; the next reader continues."""


class Progress(msgspec.Struct, frozen=True):
    """How far a transcript was read: bytes, their digest, and entries."""

    offset: int = 0
    digest: str = ""
    entries: int = 0


START = Progress()

Stamp = tuple[int, int, int]
"""By what a file is known to have changed: its inode, size and time."""


class NewEntries(msgspec.Struct, frozen=True):
    """What a transcript has beyond some progress.

    ``is_whole`` means that the entries are all of the file, because it is not a continuation of
    what was read before. ``has_more``: there may be more, although the file does not change.
    """

    entries: list[Any]
    progress: Progress
    is_whole: bool = False
    has_more: bool = True


def read_new(path: str | os.PathLike[str], since: Progress = START) -> NewEntries:
    """Return the complete lines of a transcript after ``since``, parsed.

    A line that is no JSON, or that cannot be stored, is returned as its text. A file that is not
    there (yet), or is no regular file, has no new entries, and what was read before stays.
    """
    try:
        # O_NONBLOCK: a FIFO in its place must not block the agent.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return NewEntries([], since)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return NewEntries([], since)
        hasher = blake3()
        # All of it: a line in the middle may have been replaced by one of the same length.
        if _hashed(handle, since.offset, hasher) and hasher.hexdigest() == since.digest:
            return _read(handle, since, hasher, is_whole=False)
        return _read(handle, START, blake3(), is_whole=since != START)
    finally:
        os.close(handle)


def stamp(path: str | os.PathLike[str]) -> Stamp | None:
    """Return the stamp of a file; None if it is not there."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _hashed(handle: int, length: int, hasher: blake3) -> bool:
    """Hash the first bytes of a file; False if it has fewer."""
    at = 0
    while at < length:
        block = os.pread(handle, min(BLOCK, length - at), at)
        if not block:
            return False
        hasher.update(block)
        at += len(block)
    return True


def _read(handle: int, since: Progress, hasher: blake3, *, is_whole: bool) -> NewEntries:
    data = os.pread(handle, MAX_BYTES, since.offset)
    complete = data[: data.rfind(b"\n") + 1]
    lines = [line for line in complete.split(b"\n") if line.strip()]
    hasher.update(complete)
    progress = Progress(
        since.offset + len(complete), hasher.hexdigest(), since.entries + len(lines)
    )
    has_more = len(data) == MAX_BYTES
    return NewEntries([entry(line) for line in lines], progress, is_whole, has_more)


def entry(line: bytes) -> Any:
    """Return a line of a transcript as a value that can be stored: parsed, or as its text."""
    try:
        value = msgspec.json.decode(line)
        freeze(value)
    except (msgspec.DecodeError, UnicodeDecodeError, UnstorableValue, RecursionError):
        return line.decode("utf-8", "backslashreplace")
    return value
