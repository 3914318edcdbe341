"""The identity of a directory: device, inode, and creation time where available.

A rename keeps all three; a copy, a clone or an unpacked archive has none of them. The inode alone
is not enough, because filesystems reuse the numbers of deleted directories.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec

_AT_FDCWD = -100
_BIRTH_TIME = 0x800
_STATX_SIZE = 256
_MASK = struct.Struct("=I")
_TIMESTAMP = struct.Struct("=qI")
_BIRTH_OFFSET = 80


class Identity(msgspec.Struct, frozen=True):
    """A directory as the kernel identifies it; ``born`` is in nanoseconds, 0 if unknown."""

    device: int
    inode: int
    born: int = 0

    def matches(self, other: Identity) -> bool:
        """Whether both may be the same directory: everything known of both is equal."""
        if (self.device, self.inode) != (other.device, other.inode):
            return False
        return not self.born or not other.born or self.born == other.born

    def proves(self, other: Identity) -> bool:
        """Whether both are certainly the same directory, because the creation times agree."""
        return self.matches(other) and bool(self.born and other.born)


def identity_of(path: Path) -> Identity:
    """Return the identity of the directory at a path; symlinks are followed."""
    status = path.stat()
    return Identity(status.st_dev, status.st_ino, _born(path))


def _born(path: Path) -> int:
    """Return the creation time of a file, or 0 if the system does not report it."""
    import ctypes  # slow to import, and only needed when pointers are read or written

    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if statx is None:
        return 0
    buffer = ctypes.create_string_buffer(_STATX_SIZE)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _BIRTH_TIME, buffer) != 0:
        return 0
    [mask] = _MASK.unpack_from(buffer)
    seconds, nanoseconds = _TIMESTAMP.unpack_from(buffer, _BIRTH_OFFSET)
    return seconds * 10**9 + nanoseconds if mask & _BIRTH_TIME else 0
