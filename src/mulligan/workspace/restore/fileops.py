"""What all who write files share: whole writes, extended attributes, and what went wrong."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable, Iterator

from mulligan.errors import DiskFull
from mulligan.workspace.capture.file_reader import read_xattrs
from mulligan.workspace.entries import TreePath, from_name, shown

Failure = tuple[TreePath, str]
"""What could not be done, and why."""

Xattrs = dict[str, bytes]

TOO_MANY_FILES = "too many files are open"
"""How the reason begins when it is no fault of the path."""

_HOLE = bytes(4096)
"""The shortest run of zeros inside of a file that is left out: a block of most filesystems."""

_LOOKED_INTO = 64 << 10
"""Smaller parts are written as they are: there is little to gain."""


def reason(error: Exception) -> str:
    """Return an error as part of a sentence about a path that is named beside it."""
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"{TOO_MANY_FILES} (the limit of this process is {limit})"
    if isinstance(error, OSError) and error.errno == errno.ENFILE:
        return f"{TOO_MANY_FILES} on this machine"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def failure(path: TreePath, error: Exception) -> Failure:
    """Return an error as one path's failure; raise ``DiskFull``, which concerns all that follow."""
    if is_disk_full(error):
        raise DiskFull(f"There is no space left to write {shown(path)}.") from error
    return path, reason(error)


def is_disk_full(error: Exception) -> bool:
    """Whether there is no space left, or none left for this user."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_parts(handle: int, parts: Iterable[bytes]) -> None:
    """Write all of a new file; long runs of zeros become holes, which take no space.

    A checkpoint does not say where a file had holes, so one that held zeros gets some, too.
    """
    size = written = 0
    for data in parts:
        for start, end in _without_holes(data):
            _write_at(handle, memoryview(data)[start:end], size + start)
            written = size + end
        size += len(data)
    if written < size:
        os.ftruncate(handle, size)


def _without_holes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where there is something else than long runs of zeros."""
    if len(data) < _LOOKED_INTO:
        yield 0, len(data)
        return
    # Zeros at the ends may go on in the next part, so that even few of them are left out.
    start, last = len(data) - len(data.lstrip(b"\0")), len(data.rstrip(b"\0"))
    while start < last:
        end = data.find(_HOLE, start, last)
        if end < 0:
            yield start, last
            return
        yield start, end
        start = end + len(_HOLE)
        while data[start : start + len(_HOLE)] == _HOLE:
            start += len(_HOLE)


def _write_at(handle: int, data: memoryview, offset: int) -> None:
    written = os.pwrite(handle, data, offset)
    while written < len(data):
        written += os.pwrite(handle, data[written:], offset + written)


def set_xattrs(handle: int, wanted: Xattrs | None) -> None:
    """Give an open file these extended attributes, and no others of the kinds that are kept."""
    present, wanted = read_xattrs(handle) or {}, wanted or {}
    for name in present.keys() - wanted.keys():
        os.removexattr(handle, from_name(name))
    for name, value in wanted.items():
        if present.get(name) != value:
            os.setxattr(handle, from_name(name), value)


def try_xattrs(handle: int, wanted: Xattrs | None) -> OSError | None:
    """Set extended attributes; without them a file is still worth having, so say what failed."""
    try:
        set_xattrs(handle, wanted)
    except OSError as error:
        if is_disk_full(error):
            raise
        return OSError(error.errno, f"extended attributes: {error.strerror}")
    return None
