"""Returning parts of a file to the filesystem, where it supports that."""

from __future__ import annotations

import errno
import os
import sys
from functools import cache
from typing import Any

BLOCK = 4096
"""Storage is released in whole blocks of this many bytes; common to the usual filesystems."""

_ZEROS = 1 << 20
"""How many zeros are written at once."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_FULL = (errno.ENOSPC, errno.EDQUOT)


@cache
def _fallocate() -> Any:
    import ctypes  # only needed to free space

    if sys.platform != "linux":
        return None
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return call


def punch(fd: int, offset: int, length: int) -> bool:
    """Make a stretch of a file read as zeros and release its blocks; False if that is impossible.

    The file's size stays the same. Raises ``OSError``.
    """
    try:
        return _punch(fd, offset, length)
    except OSError as error:
        if error.errno not in _FULL:
            raise
    # A copy-on-write filesystem needs a new block to zero a part of one; whole blocks need none.
    start, end = -(-offset // BLOCK) * BLOCK, (offset + length) // BLOCK * BLOCK
    return start >= end or _punch(fd, start, end - start)


def _punch(fd: int, offset: int, length: int) -> bool:
    import ctypes

    call = _fallocate()
    if call is None:
        return False
    while call(fd, _KEEP_SIZE | _PUNCH_HOLE, offset, length):
        code = ctypes.get_errno()
        # The caller then copies what is alive, or writes zeros, instead.
        if code in _UNSUPPORTED:
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
    return True


def write_zeros(fd: int, offset: int, length: int) -> None:
    """Overwrite a stretch of a file with zeros. Raises ``OSError``."""
    end = offset + length
    while offset < end:
        offset += os.pwrite(fd, bytes(min(_ZEROS, end - offset)), offset)


def next_data(fd: int, offset: int, stop: int) -> int:
    """Return the offset of the next bytes that are not in a hole, at most ``stop``."""
    if not hasattr(os, "SEEK_DATA"):
        return offset
    try:
        # Reads of packs give their offset, so moving the file's position affects no other read.
        return min(os.lseek(fd, offset, os.SEEK_DATA), stop)
    except OSError as error:
        return stop if error.errno == errno.ENXIO else offset
