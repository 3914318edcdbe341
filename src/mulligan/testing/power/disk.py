"""A disk image whose every write and flush is recorded.

The image is the only file of a small FUSE filesystem that this process serves. A loop device on top
of it turns it into a block device, so that ext4, xfs or btrfs can be mounted there. The kernel's
own block layer then decides which writes and flushes reach the disk, and in which order.

Only the requests that a loop device makes are answered; see ``include/uapi/linux/fuse.h``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

NAME = b"disk"
ROOT, FILE = 1, 2
"""The two inodes: the directory of the mount, and the image in it."""

MAX_WRITE = 1 << 20
SECTOR = 512

LOOKUP, FORGET, GETATTR, SETATTR = 1, 2, 3, 4
OPEN, READ, WRITE, STATFS, RELEASE, FSYNC = 14, 15, 16, 17, 18, 20
FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = 25, 26, 27, 28, 29, 36, 42

DIRECT_IO = 1
"""Open flag: bypass the page cache of the image, so that each write is seen at once."""

BIG_WRITES = 1 << 5
MAX_PAGES = 1 << 22

_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<QQQQQQ10I")
_TRANSFER = struct.Struct("<QQIIQII")

MS_NOSUID, MS_NODEV, MNT_DETACH = 2, 4, 2


class Write(NamedTuple):
    """A write that the disk has accepted, which does not mean that it survives a power cut."""

    offset: int
    data: bytes


Record = Write | None
"""One entry of the record; None is a flush: all writes before it survive."""


class RecordedDisk:
    """Serve an image as ``DIRECTORY/disk`` and record what is done to it.

    Use it as a context manager; ``record`` grows while the disk is in use. The serving thread must
    never wait for the disk itself, so this process must not touch anything mounted on it.
    """

    def __init__(self, image: bytes, directory: Path) -> None:
        self._image = bytearray(image)
        self._directory = directory
        self._handle = -1
        self._thread: threading.Thread | None = None
        self.record: list[Record] = []
        self.failure: Exception | None = None
        """Why the disk stopped answering, if it did."""

    @property
    def path(self) -> Path:
        """The file for the loop device."""
        return self._directory / os.fsdecode(NAME)

    def __enter__(self) -> Self:
        self._handle = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._handle},rootmode=40755,user_id=0,group_id=0"
        _mount(b"recorded", os.fsencode(self._directory), b"fuse", options.encode())
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _unmount(os.fsencode(self._directory))
        if self._thread is not None:
            self._thread.join()
        os.close(self._handle)

    def _serve(self) -> None:
        try:
            while True:
                try:
                    request = os.read(self._handle, MAX_WRITE + (64 << 10))
                except OSError as error:
                    if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                        continue  # ENOENT: the request was withdrawn before it was read
                    if error.errno == errno.ENODEV:
                        return  # unmounted
                    raise
                self._answer(request)
        except Exception as error:
            self.failure = error

    def _answer(self, request: bytes) -> None:
        _, opcode, unique, node, *_ = _IN.unpack_from(request)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return  # these have no answer
        try:
            status, body = 0, self._done(opcode, node, request[_IN.size :])
        except OSError as error:
            status, body = -(error.errno or errno.EIO), b""
        os.write(self._handle, _OUT.pack(_OUT.size + len(body), status, unique) + body)

    def _done(self, opcode: int, node: int, body: bytes) -> bytes:
        if opcode == WRITE:
            return self._write(body)
        if opcode == READ:
            _, offset, size, *_ = _TRANSFER.unpack_from(body)
            return bytes(self._image[offset : offset + size])
        if opcode == FSYNC:
            self.record.append(None)
            return b""
        if opcode == INIT:
            return _init_reply(body)
        if opcode == LOOKUP:
            if body.rstrip(b"\0") != NAME:
                raise OSError(errno.ENOENT, "no such file")
            return struct.pack("<QQQQII", FILE, 0, 3600, 3600, 0, 0) + self._attributes(FILE)
        if opcode in (GETATTR, SETATTR):
            return struct.pack("<QII", 3600, 0, 0) + self._attributes(node)
        if opcode in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, DIRECT_IO if opcode == OPEN else 0, 0)
        if opcode == STATFS:
            return struct.pack("<QQQQQIIII6I", 0, 0, 0, 0, 0, 4096, 255, 4096, 0, *[0] * 6)
        if opcode in (FLUSH, RELEASE, RELEASEDIR, READDIR):
            return b""
        raise OSError(errno.ENOSYS, "not needed")

    def _write(self, body: bytes) -> bytes:
        _, offset, size, *_ = _TRANSFER.unpack_from(body)
        data = body[_TRANSFER.size : _TRANSFER.size + size]
        self._image[offset : offset + size] = data
        self.record.append(Write(offset, data))
        return struct.pack("<II", size, 0)

    def _attributes(self, node: int) -> bytes:
        size = len(self._image) if node == FILE else 0
        mode = stat.S_IFREG | 0o600 if node == FILE else stat.S_IFDIR | 0o755
        return _ATTRIBUTES.pack(
            node, size, size // SECTOR, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0
        )


def _init_reply(body: bytes) -> bytes:
    major, minor = struct.unpack_from("<II", body)
    flags = BIG_WRITES | MAX_PAGES
    pages = MAX_WRITE // 4096
    return struct.pack(
        "<IIIIHHIIHHI7I",
        major, min(minor, 31), 0, flags, 16, 12, MAX_WRITE, 1, pages, 0, 0, *[0] * 7,
    )  # fmt: skip


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _mount(source: bytes, target: bytes, kind: bytes, options: bytes) -> None:
    if _libc().mount(source, target, kind, MS_NOSUID | MS_NODEV, options):
        number = ctypes.get_errno()
        raise OSError(number, f"mount: {os.strerror(number)}")


def _unmount(target: bytes) -> None:
    if _libc().umount2(target, MNT_DETACH):
        number = ctypes.get_errno()
        raise OSError(number, f"unmount: {os.strerror(number)}")
