"""System calls that Python does not expose: safe renames and opens, filesystem sync."""

from __future__ import annotations

import errno
import os
import re
import struct
import sys
from functools import cache
from typing import Any

NO_REPLACE, EXCHANGE = 1, 2
"""How to rename: fail if the new name is taken, or exchange the two names."""
FICLONE = 0x40049409
"""The ioctl that makes a file share the blocks of another."""

_WRITE = 2
"""Flag of ``sync_file_range``: start writing and do not wait."""

_OPENAT2 = 437
"""The number of ``openat2``, identical on all architectures."""

_RESOLVE_BENEATH, _RESOLVE_NO_MAGICLINKS = 0x08, 0x02

_OPEN_HOW = struct.Struct("=QQQ")
"""Flags, mode, and how to resolve the path."""

_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)

BTRFS = 0x9123683E
_SYNCED_AS_A_WHOLE = {
    0xEF53: "ext2, ext3, ext4",
    0x58465342: "xfs",
    BTRFS: "btrfs",
    0xF2F52010: "f2fs",
    0x01021994: "tmpfs, which does not survive a power cut anyway",
}
"""Filesystems, by ``f_type``, whose ``syncfs`` is known to write everything and wait for it.

FUSE is not listed: its kernel side returns at once unless the server is virtiofs. Neither are
network filesystems, nor overlayfs, which passes the call on to a filesystem that cannot be seen
from here.
"""

_REPORTS_ERRORS = (5, 8)
"""The Linux version from which ``syncfs`` reports write errors."""

_STATFS_SIZE = 256
"""Larger than ``struct statfs`` on any system."""


@cache
def _libc() -> Any:
    import ctypes  # only needed to write files

    return ctypes.CDLL(None, use_errno=True)


def rename(old: bytes, new: bytes, parent: int, how: int, to: int | None = None) -> bool:
    """Rename within a directory and return True, or False if the system has no such rename.

    ``to`` is the directory of the new name if it differs. Raises ``FileExistsError``,
    ``FileNotFoundError`` or another ``OSError``.
    """
    if not hasattr(_libc(), "renameat2"):
        return False
    if _libc().renameat2(parent, old, parent if to is None else to, new, how) == 0:
        return True
    code = _errno()
    # The caller falls back to a rename that replaces, and checks for itself.
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code))


def open_beneath(directory: int, path: bytes, flags: int) -> int:
    """Open a path in a directory, following symlinks only while they stay inside the directory.

    Raises ``OSError``: ``EXDEV`` if a symlink leads outside, ``ENOSYS`` where the call is missing.
    """
    how = _OPEN_HOW.pack(flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    handle: int = -1
    if sys.platform == "linux":
        # As 64-bit arguments: ctypes would pass plain ints as 32-bit ones to a variadic function.
        numbers = map(_long, (_OPENAT2, directory))
        handle = _libc().syscall(*numbers, path, how, _long(len(how)))
    if handle < 0:
        code = _errno() if sys.platform == "linux" else errno.ENOSYS
        raise OSError(code, os.strerror(code))
    return handle


def start_sync(handle: int) -> None:
    """Start writing a file to disk in the background, where supported, ahead of a sync."""
    if hasattr(_libc(), "sync_file_range"):
        _libc().sync_file_range(handle, _long(0), _long(0), _WRITE)


def sync_filesystem(handle: int) -> None:
    """Make everything durable that was written to the filesystem of an open file.

    Only where :func:`syncs_as_a_whole` is true; elsewhere it may silently do nothing.
    """
    if _libc().syncfs(handle):
        code = _errno()
        raise OSError(code, os.strerror(code))


def filesystem_type(handle: int) -> int:
    """Return the ``f_type`` of an open file's filesystem, or 0 if the system does not report it."""
    import ctypes

    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    if os.uname().sysname != "Linux" or _libc().fstatfs(handle, buffer):
        return 0
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF


def syncs_as_a_whole(handle: int) -> bool:
    """Whether :func:`sync_filesystem` is reliable on the filesystem of an open file."""
    # Before Linux 5.8 syncfs returned success after a write error.
    known = filesystem_type(handle) in _SYNCED_AS_A_WHOLE
    return known and hasattr(_libc(), "syncfs") and _kernel() >= _REPORTS_ERRORS


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


def _long(number: int) -> Any:
    import ctypes

    return ctypes.c_longlong(number)


def _errno() -> int:
    import ctypes

    return ctypes.get_errno()
