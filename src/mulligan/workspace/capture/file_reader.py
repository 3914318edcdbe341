"""Read files into objects: whole when small, in content-defined chunks when large.

Other programs may write to the files meanwhile; see ``steady_read`` and ``file_copy``.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from typing import IO

import msgspec

from mulligan.errors import StoreUnwritable
from mulligan.model import Digest, ObjectKind
from mulligan.workspace.capture.file_copy import FileCopies
from mulligan.workspace.capture.progress import ObjectSink
from mulligan.workspace.capture.steady_read import MAX_READINGS, Reading, read_steadily, signature
from mulligan.workspace.entries import File, Leaf, Link, to_name
from mulligan.workspace.file_handles import close_file, open_file

SINGLE_CHUNK_BYTES = 1 << 20
"""A file of up to this many bytes is stored as one object."""

CHUNK_MIN, CHUNK_AVERAGE, CHUNK_MAX = 256 << 10, 1 << 20, 4 << 20

_SWAPPED = (errno.ENXIO, errno.ENODEV)
"""Errors from opening a path that was a file and is now a socket or a device."""

_SOMETHING_ELSE = "it became something else while it was read"

_KEPT_XATTRS = ("user.", "system.posix_acl_", "security.capability")
"""Prefixes of the extended attributes that users set; the system manages the rest."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Unreadable(Exception):
    """A file could not be captured; the text says why."""


class TooLarge(Exception):
    """A file exceeds the space left for it."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class _Outgrown(Exception):
    """A small file became a large one while it was read."""


class Read(msgspec.Struct, frozen=True, gc=False):
    """A leaf as it was read, with the stat taken before.

    ``holds`` and ``torn`` are those of ``Reading``.
    """

    leaf: Leaf
    stat: os.stat_result
    holds: bool = True
    torn: bool = False


Chunked = Reading[tuple[Digest, ...]]
"""A file's content as the objects that hold it."""


def read_leaf(directory: int, name: bytes, sink: ObjectSink, room: int, copies: FileCopies) -> Read:
    """Read a file of up to ``room`` bytes, or a symlink, in an open directory.

    A file that changes all the time is read nevertheless; see ``Read``. Raises ``TooLarge``,
    ``Unreadable``, or ``OSError`` if the leaf does not exist. Errors of the store are raised as
    ``StoreError``, because they say nothing about the file.
    """
    # Retry while the name changes between file and symlink; give up after a few attempts.
    for _ in range(MAX_READINGS):
        # No stat before the open: the scan already did one, and fstat on the open file is enough.
        try:
            handle = open_file(name, _OPEN, directory)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            if error.errno in _SWAPPED:
                raise Unreadable(_SOMETHING_ELSE) from error
            if error.errno != errno.ELOOP:
                raise Unreadable(f"it cannot be read: {error.strerror}") from error
            link = _read_link(directory, name)
            if link is not None:
                return link
        else:
            return _read_file(handle, directory, sink, room, copies)
    raise Unreadable(_SOMETHING_ELSE)


def read_snapshot(
    directory: int,
    name: bytes,
    snapshot: IO[bytes],
    before: os.stat_result,
    sink: ObjectSink,
    room: int,
) -> Read:
    """Read a file from its snapshot; ``before`` is its stat from before the snapshot was taken."""
    size = os.fstat(snapshot.fileno()).st_size
    if size > room:
        raise TooLarge(size)
    chunks, size = _chunks(snapshot.fileno(), sink, size)
    handle = open_file(name, _OPEN, directory)
    try:
        holds = signature(before) == signature(os.fstat(handle))
        mode, mtime = stat.S_IMODE(before.st_mode), before.st_mtime_ns
        return Read(File(mode, mtime, size, chunks, read_xattrs(handle)), before, holds)
    finally:
        close_file(handle)


def _read_link(directory: int, name: bytes) -> Read | None:
    before = os.stat(name, dir_fd=directory, follow_symlinks=False)
    try:
        target = os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None  # no longer a symlink; retry
        raise
    # A link has no handle to read from, so its stat is compared around the readlink.
    after = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if signature(before) != signature(after):
        return None
    return Read(Link(after.st_mtime_ns, target), after)


def _read_file(
    handle: int, directory: int, sink: ObjectSink, room: int, copies: FileCopies
) -> Read:
    """Read an open file and close it."""
    try:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode):
            raise Unreadable(_SOMETHING_ELSE)
        # Before anything is read: a huge file must not fill the store before it is refused.
        if before.st_size > room:
            raise TooLarge(before.st_size)
        reading = None
        if before.st_size <= SINGLE_CHUNK_BYTES:
            reading = _read_small(handle, directory, before, sink, copies)
        if reading is None:
            reading = _read_large(handle, directory, before, sink, copies)
        mode, mtime = stat.S_IMODE(reading.stat.st_mode), reading.stat.st_mtime_ns
        file = File(mode, mtime, reading.size, reading.content, read_xattrs(handle))
        return Read(file, reading.stat, reading.holds, reading.torn)
    except OSError as error:
        raise Unreadable(f"it cannot be read: {error.strerror}") from error
    finally:
        close_file(handle)


def _read_small(
    handle: int, directory: int, before: os.stat_result, sink: ObjectSink, copies: FileCopies
) -> Chunked | None:
    """Read a small file into one object, or none if it is empty; None if it outgrew the limit."""
    try:
        reading = read_steadily(handle, partial(_bytes, handle), MAX_READINGS, before=before)
    except _Outgrown:
        return None
    # No attempt was consistent; a clone is atomic where the filesystem has it.
    if reading.torn and (clone := copies.clone(handle, directory)):
        with clone.content as file:
            if clone.size > SINGLE_CHUNK_BYTES:
                return None
            data, size = _bytes(file.fileno(), clone.size)
        reading = Reading(data, size, clone.stat, clone.holds)
    chunks = (_put(sink, reading.content),) if reading.content else ()
    return Reading(chunks, reading.size, reading.stat, reading.holds, reading.torn)


def _bytes(handle: int, size: int) -> tuple[bytes, int]:
    if size > SINGLE_CHUNK_BYTES:
        raise _Outgrown
    data = os.pread(handle, size, 0)
    while len(data) < size and (more := os.pread(handle, size - len(data), len(data))):
        data += more
    return data, len(data)


def _read_large(
    handle: int, directory: int, before: os.stat_result, sink: ObjectSink, copies: FileCopies
) -> Chunked:
    """Read a large file in chunks, from a copy if it is being written to."""
    if not copies.is_hot(before):
        chunks, size = _chunks(handle, sink, before.st_size)
        if size == before.st_size and signature(before) == signature(os.fstat(handle)):
            return Reading(chunks, size, before, holds=True)
    # The file changed while it was chunked, or is likely to: chunk a stable copy instead.
    copy = copies.copy(handle, directory)
    if copy is None:
        # Each attempt leaves its chunks in the store, so make only two: the second shows whether
        # the file has merely grown.
        return read_steadily(handle, partial(_chunks, handle, sink), 2)
    with copy.content as file:
        chunks, size = _chunks(file.fileno(), sink, copy.size)
    return Reading(chunks, size, copy.stat, copy.holds, copy.torn)


def _chunks(handle: int, sink: ObjectSink, size: int) -> tuple[tuple[Digest, ...], int]:
    """Store the first bytes of a file; return their chunks and how many bytes there were.

    The same bytes always give the same chunks, however they were read, so a small file is a single
    chunk here too.
    """
    if size <= SINGLE_CHUNK_BYTES:
        data, length = _bytes(handle, size)
        return (_put(sink, data),) if data else (), length
    from pyfastcdc import FastCDC  # only large files need it

    cutter = FastCDC(avg_size=CHUNK_AVERAGE, min_size=CHUNK_MIN, max_size=CHUNK_MAX)
    part = _Part(handle, size)
    chunks = tuple(_put(sink, bytes(chunk.data)) for chunk in cutter.cut_stream(part))
    return chunks, part.at


class _Part:
    """The first bytes of an open file, as a sequential stream."""

    def __init__(self, handle: int, size: int) -> None:
        self._handle = handle
        self._size = size
        self.at = 0

    def readinto(self, buffer: memoryview) -> int:
        room = min(len(buffer), self._size - self.at)
        read = os.preadv(self._handle, [buffer[:room]], self.at) if room else 0
        self.at += read
        return read


def _put(sink: ObjectSink, data: bytes) -> Digest:
    """Store bytes of a file; an error of the store must not look like an error of the file."""
    try:
        return sink.put(ObjectKind.CHUNK, data)
    except OSError as error:
        raise StoreUnwritable(f"The store cannot be written: {error.strerror}.") from error


def read_xattrs(handle: int) -> dict[str, bytes] | None:
    """Return the user-set extended attributes of an open file or directory."""
    if not hasattr(os, "listxattr"):
        return None
    try:
        names = os.listxattr(handle)
        if not names:
            return None  # the usual case
        kept = [name for name in names if name.startswith(_KEPT_XATTRS)]
        return {
            to_name(os.fsencode(name)): os.getxattr(handle, name) for name in sorted(kept)
        } or None
    except OSError:
        return None  # not supported by the filesystem
