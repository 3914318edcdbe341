"""Reading files into objects: whole when small, in content-defined chunks when large."""

from __future__ import annotations

import os
import stat

import msgspec
from pyfastcdc import FastCDC

from mulligan.model import Digest, ObjectKind
from mulligan.objects.protocol import Bundle
from mulligan.workspace.entries import File, Leaf, Link

WHOLE = 1 << 20
"""A file of up to this many bytes is one object."""

CHUNK_MIN, CHUNK_AVERAGE, CHUNK_MAX = 256 << 10, 1 << 20, 4 << 20

ATTEMPTS = 5
"""How often a file that changes while it is read is read again."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Unreadable(Exception):
    """A file that could not be captured; the text says why."""


class Read(msgspec.Struct, frozen=True, gc=False):
    """A leaf as it was read, and the stat that belongs to exactly those bytes."""

    leaf: Leaf
    stat: os.stat_result


def read_leaf(path: bytes, bundle: Bundle) -> Read:
    """Read a file or symlink; raises ``Unreadable`` or ``FileNotFoundError``."""
    for _ in range(ATTEMPTS):
        status = os.lstat(path)
        read = _read_link(path) if stat.S_ISLNK(status.st_mode) else _read_file(path, bundle)
        if read is not None:
            return read
    raise Unreadable("it keeps changing while it is read")


def _read_link(path: bytes) -> Read | None:
    before = os.lstat(path)
    target = os.readlink(path)
    after = os.lstat(path)
    if signature(before) != signature(after):
        return None
    return Read(Link(after.st_mtime_ns, target), after)


def _read_file(path: bytes, bundle: Bundle) -> Read | None:
    try:
        handle = os.open(path, _OPEN)
    except PermissionError as error:
        raise Unreadable(f"it cannot be read: {error.strerror}") from error
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        return None  # swapped for something else; look again
    try:
        return _read_open(handle, bundle)
    except OSError as error:
        raise Unreadable(f"it cannot be read: {error.strerror}") from error
    finally:
        os.close(handle)


def _read_open(handle: int, bundle: Bundle) -> Read | None:
    before = os.fstat(handle)
    if not stat.S_ISREG(before.st_mode):
        return None
    size, chunks = _read_chunks(handle, before.st_size, bundle)
    after = os.fstat(handle)
    if signature(before) != signature(after) or size != after.st_size:
        return None
    mode = stat.S_IMODE(after.st_mode)
    return Read(File(mode, after.st_mtime_ns, size, chunks, _xattrs(handle)), after)


def _read_chunks(handle: int, size: int, bundle: Bundle) -> tuple[int, tuple[Digest, ...]]:
    if size <= WHOLE:
        data = os.read(handle, size + 1) if size else os.read(handle, 1)
        while len(data) < size and (more := os.read(handle, size + 1 - len(data))):
            data += more
        return len(data), (bundle.put(ObjectKind.CHUNK, data),) if data else ()
    chunks = []
    total = 0
    cutter = FastCDC(avg_size=CHUNK_AVERAGE, min_size=CHUNK_MIN, max_size=CHUNK_MAX)
    with os.fdopen(os.dup(handle), "rb", buffering=0) as stream:
        for chunk in cutter.cut_stream(stream):
            chunks.append(bundle.put(ObjectKind.CHUNK, bytes(chunk.data)))
            total += chunk.length
    return total, tuple(chunks)


def _xattrs(handle: int) -> dict[str, bytes] | None:
    if not hasattr(os, "listxattr"):
        return None
    try:
        names = os.listxattr(handle)
        return {name: os.getxattr(handle, name) for name in sorted(names)} or None
    except OSError:
        return None  # the filesystem has none


def signature(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return what changes in a stat whenever the file does."""
    return (
        status.st_ino,
        status.st_ctime_ns,
        status.st_mtime_ns,
        status.st_size,
        status.st_mode,
    )
