"""Shared file operations: complete writes, extended attributes, and error reasons."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable, Iterator

from mulligan.errors import DiskFull
from mulligan.workspace.capture.file_reader import read_xattrs
from mulligan.workspace.entries import TreePath, from_name, shown

Failure = tuple[TreePath, str]
"""A path that failed, and why."""

Xattrs = dict[str, bytes]

TOO_MANY_FILES = "too many files are open"
"""Prefix of the reason when the open-file limit is the cause, not the path."""

_HOLE = bytes(4096)
"""The shortest run of zeros turned into a hole: the block size of most filesystems."""

_LOOKED_INTO = 64 << 10
"""Smaller parts are written as they are: there is little to gain."""


def reason(error: Exception) -> str:
    """Return an error as a phrase about a path named beside it."""
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"{TOO_MANY_FILES} (the limit of this process is {limit})"
    if isinstance(error, OSError) and error.errno == errno.ENFILE:
        return f"{TOO_MANY_FILES} on this machine"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def failure(path: TreePath, error: Exception) -> Failure:
    """Return an error as the failure of one path; raise ``DiskFull``, which affects all others."""
    if is_disk_full(error):
        raise DiskFull(f"There is no space left to write {shown(path)}.") from error
    return path, reason(error)


def is_disk_full(error: Exception) -> bool:
    """Whether the disk or this user's quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_parts(handle: int, parts: Iterable[bytes]) -> None:
    """Write a new file completely; long runs of zeros become holes, which take no space.

    A checkpoint does not record holes, so files with zeros get some too.
    """
    size = written = 0
    for data in parts:
        for start, end in _without_holes(data):
            _write_at(handle, memoryview(data)[start:end], size + start)
            written = size + end
        size += len(data)
    # A hole at the end exists only by the file's length.
    if written < size:
        os.ftruncate(handle, size)


def _without_holes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the ranges that are not long runs of zeros."""
    if len(data) < _LOOKED_INTO:
        yield 0, len(data)
        return
    # Zeros at either end may continue in the next part, so even short runs are skipped.
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
    """Give an open file exactly these extended attributes, among the kinds that are kept."""
    present, wanted = read_xattrs(handle) or {}, wanted or {}
    for name in present.keys() - wanted.keys():
        os.removexattr(handle, from_name(name))
    for name, value in wanted.items():
        if present.get(name) != value:
            os.setxattr(handle, from_name(name), value)


def try_xattrs(handle: int, wanted: Xattrs | None) -> OSError | None:
    """Set extended attributes; return the error, since the file is useful without them."""
    try:
        set_xattrs(handle, wanted)
    except OSError as error:
        # A full disk ends the whole restore; other errors concern this file only.
        if is_disk_full(error):
            raise
        return OSError(error.errno, f"extended attributes: {error.strerror}")
    return None
