"""System calls that Python has no name for: renames that lose nothing, one filesystem's sync."""

from __future__ import annotations

import errno
import os
from functools import cache
from typing import Any

NO_REPLACE, EXCHANGE = 1, 2
"""How to rename: refuse when the new name is taken, or let the two names change places."""

_WRITE = 2
"""Of ``sync_file_range``: begin to write, and do not wait."""

_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


@cache
def _libc() -> Any:
    import ctypes  # only those who write files need it

    return ctypes.CDLL(None, use_errno=True)


def rename(old: bytes, new: bytes, parent: int, how: int) -> bool:
    """Rename within a directory and return True, or False where the system has no such rename.

    Raises ``FileExistsError``, ``FileNotFoundError`` or another ``OSError``.
    """
    if not hasattr(_libc(), "renameat2"):
        return False
    if _libc().renameat2(parent, old, parent, new, how) == 0:
        return True
    code = _errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code))


def start_sync(handle: int) -> None:
    """Have a file's bytes written in the background, where the system can, to be synced soon."""
    if hasattr(_libc(), "sync_file_range"):
        _libc().sync_file_range(handle, _long(0), _long(0), _WRITE)


def sync_filesystem(handle: int) -> None:
    """Make everything durable that was written to the filesystem of an open file."""
    if not hasattr(_libc(), "syncfs"):
        os.sync()
    elif _libc().syncfs(handle):
        code = _errno()
        raise OSError(code, os.strerror(code))


def _long(number: int) -> Any:
    import ctypes

    return ctypes.c_longlong(number)


def _errno() -> int:
    import ctypes

    return ctypes.get_errno()
