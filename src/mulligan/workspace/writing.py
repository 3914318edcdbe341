"""What all who write files share: whole writes, extended attributes, and what went wrong."""

from __future__ import annotations

import errno
import os

from mulligan.errors import DiskFull
from mulligan.workspace.content import read_xattrs
from mulligan.workspace.entries import from_name, shown
from mulligan.workspace.plan import TreePath

Failure = tuple[TreePath, str]
"""What could not be done, and why."""

Xattrs = dict[str, bytes]


def reason(error: Exception) -> str:
    """Return an error as part of a sentence about a path that is named beside it."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def failure(path: TreePath, error: Exception) -> Failure:
    """Return an error as one path's failure; raise ``DiskFull``, which concerns all that follow."""
    if is_disk_full(error):
        raise DiskFull(f"There is no space left to write {shown(path)}.") from error
    return path, reason(error)


def is_disk_full(error: Exception) -> bool:
    """Whether there is no space left, or none left for this user."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_all(handle: int, data: bytes) -> None:
    """Write all of the bytes to an open file."""
    written = os.write(handle, data)
    while written < len(data):
        written += os.write(handle, memoryview(data)[written:])


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
