"""The kernel's inotify, called through the C library without further dependencies."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

MODIFY = 0x2
ATTRIB = 0x4
CLOSE_WRITE = 0x8
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
UNMOUNT = 0x2000
Q_OVERFLOW = 0x4000
IGNORED = 0x8000
ONLYDIR = 0x1000000
DONT_FOLLOW = 0x2000000
EXCL_UNLINK = 0x4000000
ISDIR = 0x40000000

Event = tuple[int, int, bytes]
"""A watch descriptor, a mask, and the name in the directory; empty for the directory itself."""

_HEADER = struct.Struct("iIII")
_BUFFER = 1 << 16


def available() -> bool:
    """Whether this system has inotify."""
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "inotify_init1")


class Inotify:
    """One queue of events from any number of watches. Not thread-safe."""

    _handle = -1  # until it is open

    def __init__(self) -> None:
        """Open a queue; raises ``OSError`` when the system allows no more."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._add = libc.inotify_add_watch
        self._add.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        self._remove = libc.inotify_rm_watch
        # O_CLOEXEC: programs that we start must not keep the watches alive.
        self._handle = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._handle < 0:
            raise _error(b"inotify")

    def add(self, path: bytes, mask: int) -> int:
        """Watch a path and return its descriptor, which is the same for the same inode.

        Descriptors are not reused after a removal. Raises ``OSError``.
        """
        descriptor: int = self._add(self._handle, path, mask)
        if descriptor < 0:
            raise _error(path)
        return descriptor

    def remove(self, descriptor: int) -> None:
        """Remove a watch; no error if it no longer exists."""
        self._remove(self._handle, descriptor)

    def read(self) -> list[Event]:
        """Return all events that are queued and unread, without waiting."""
        events: list[Event] = []
        while True:
            try:
                # The buffer must hold at least one event with the longest name, or the read fails.
                data = os.read(self._handle, _BUFFER)
            except BlockingIOError:
                return events
            at, end = 0, len(data)
            while at < end:
                descriptor, mask, _, length = _HEADER.unpack_from(data, at)
                at += 16
                events.append((descriptor, mask, data[at : at + length].rstrip(b"\0")))
                at += length

    def __del__(self) -> None:
        # A session that is dropped without `close` must not use up the user's 128 queues.
        self.close()

    def close(self) -> None:
        """Release the queue and its watches. Idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _error(path: bytes) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), path)
