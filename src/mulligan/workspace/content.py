"""Reading files into objects: whole when small, in content-defined chunks when large."""

from __future__ import annotations

import errno
import os
import stat

import msgspec

from mulligan.errors import StoreUnwritable
from mulligan.model import Digest, ObjectKind
from mulligan.objects.protocol import Bundle
from mulligan.workspace.entries import File, Leaf, Link, to_name

WHOLE = 1 << 20
"""A file of up to this many bytes is one object."""

CHUNK_MIN, CHUNK_AVERAGE, CHUNK_MAX = 256 << 10, 1 << 20, 4 << 20

ATTEMPTS = 5
"""How often a file that changes while it is read is read again."""

_SWAPPED = (errno.ENXIO, errno.ENODEV)
"""How opening what was a file ends when it is a socket or a device by now."""

_SOMETHING_ELSE = "it became something else while it was read"

_KEPT_XATTRS = ("user.", "system.posix_acl_", "security.capability")
"""How the names of extended attributes begin that people set; the system sees to the rest."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Unreadable(Exception):
    """A file that could not be captured; the text says why."""


class TooLarge(Exception):
    """A file for which there is no room."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class Read(msgspec.Struct, frozen=True, gc=False):
    """A leaf as it was read, and the stat that belongs to exactly those bytes."""

    leaf: Leaf
    stat: os.stat_result


def read_leaf(directory: int, name: bytes, bundle: Bundle, room: int) -> Read:
    """Read a file of up to ``room`` bytes, or a symlink, in an open directory.

    Raises ``TooLarge``, ``Unreadable``, or an ``OSError`` when it is not there; what goes wrong in
    the store is a ``StoreError``, for it says nothing about the file.
    """
    for _ in range(ATTEMPTS):
        read = _read_file(directory, name, bundle, room)
        if read is not None:
            return read
    raise Unreadable("it keeps changing while it is read")


def _read_file(directory: int, name: bytes, bundle: Bundle, room: int) -> Read | None:
    # Opened without a look before: the scan has looked, and the open file tells all we need.
    try:
        handle = os.open(name, _OPEN, dir_fd=directory)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            return _read_link(directory, name)
        if error.errno in _SWAPPED:
            raise Unreadable(_SOMETHING_ELSE) from error
        raise Unreadable(f"it cannot be read: {error.strerror}") from error
    try:
        return _read_open(handle, bundle, room)
    except OSError as error:
        raise Unreadable(f"it cannot be read: {error.strerror}") from error
    finally:
        os.close(handle)


def _read_link(directory: int, name: bytes) -> Read | None:
    before = os.stat(name, dir_fd=directory, follow_symlinks=False)
    try:
        target = os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None  # no symlink any more; look again
        raise
    after = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if signature(before) != signature(after):
        return None
    return Read(Link(after.st_mtime_ns, target), after)


def _read_open(handle: int, bundle: Bundle, room: int) -> Read | None:
    before = os.fstat(handle)
    if not stat.S_ISREG(before.st_mode):
        raise Unreadable(_SOMETHING_ELSE)
    if before.st_size > room:
        raise TooLarge(before.st_size)
    size, chunks = _read_chunks(handle, before.st_size, bundle)
    after = os.fstat(handle)
    if signature(before) != signature(after) or size != after.st_size:
        return None
    mode = stat.S_IMODE(after.st_mode)
    return Read(File(mode, after.st_mtime_ns, size, chunks, read_xattrs(handle)), after)


def _read_chunks(handle: int, size: int, bundle: Bundle) -> tuple[int, tuple[Digest, ...]]:
    if size <= WHOLE:
        data = os.read(handle, size + 1) if size else os.read(handle, 1)
        while len(data) < size and (more := os.read(handle, size + 1 - len(data))):
            data += more
        return len(data), (_put(bundle, data),) if data else ()
    chunks = []
    total = 0
    from pyfastcdc import FastCDC  # only large files need it

    cutter = FastCDC(avg_size=CHUNK_AVERAGE, min_size=CHUNK_MIN, max_size=CHUNK_MAX)
    with os.fdopen(os.dup(handle), "rb", buffering=0) as stream:
        for chunk in cutter.cut_stream(stream):
            chunks.append(_put(bundle, bytes(chunk.data)))
            total += chunk.length
    return total, tuple(chunks)


def _put(bundle: Bundle, data: bytes) -> Digest:
    """Store bytes of a file; an error of the store must not look like one of the file."""
    try:
        return bundle.put(ObjectKind.CHUNK, data)
    except OSError as error:
        raise StoreUnwritable(f"The store cannot be written: {error.strerror}.") from error


def read_xattrs(handle: int) -> dict[str, bytes] | None:
    """Return the extended attributes that people set, of an open file or directory."""
    if not hasattr(os, "listxattr"):
        return None
    try:
        names = os.listxattr(handle)
        if not names:
            return None  # as almost always
        kept = [name for name in names if name.startswith(_KEPT_XATTRS)]
        return {
            to_name(os.fsencode(name)): os.getxattr(handle, name) for name in sorted(kept)
        } or None
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
