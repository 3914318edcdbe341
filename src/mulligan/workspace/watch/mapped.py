"""Files that programs have mapped for writing (``mmap``, shared and writable).

The kernel reports no event for such a write. On most filesystems the first write to a page updates
the file's times and later ones do not, until the page has been written back. On tmpfs not even that
happens, and nothing at all if the program read the page first. So these files are read at every
capture while a program has them mapped, and once more after that.

``/proc/PID/maps`` lists the mappings of processes that this user may inspect. Reading all of them
would take longer than a capture with the watcher. So the result for a process is reused while the
size of its memory is unchanged. A few processes are read again each time regardless, in turn; this
finds a program that replaced one mapping by another of the same size. Captures within a few
milliseconds share one result: mappings made in between are found by the next one.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from mulligan import procfs

RESULT_TTL_SECONDS = 0.01
"""Seconds for which a result is reused."""

REREAD_PROCESSES = 2
"""Number of processes read again each time, whatever the size of their memory."""

_PROC = os.fsencode(procfs.PROC)


class _Known(NamedTuple):
    """The size of a process's memory and its mapped files; no size if it cannot be inspected."""

    size: bytes | None
    files: frozenset[bytes]


_OTHER = _Known(None, frozenset())
"""A kernel thread, or a process that cannot be inspected."""


class Mapped:
    """Find the files below a directory that are mapped. Not thread-safe."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._processes: dict[int, _Known] = {}
        self._found: set[bytes] = set()
        self._turn = 0
        self._looked = -RESULT_TTL_SECONDS

    def files(self) -> set[bytes]:
        """Return the paths, relative to the root, of all files mapped for writing."""
        now = time.monotonic()
        if now - self._looked >= RESULT_TTL_SECONDS:
            self._looked = now
            self._look()
            self._found = set().union(*[known.files for known in self._processes.values()])
        return self._found

    def _look(self) -> None:
        pids, before = procfs.pids(), self._processes
        # Forget a few results per call, in turn, to find mappings replaced at the same total size.
        for pid in pids[self._turn : self._turn + REREAD_PROCESSES]:
            before.pop(pid, None)
        self._turn = (
            self._turn + REREAD_PROCESSES if self._turn + REREAD_PROCESSES < len(pids) else 0
        )
        # Permissions of a process rarely change; asking again at each capture would cost more than
        # all others.
        self._processes = {
            pid: _OTHER if (known := before.get(pid)) is _OTHER else self._process(pid, known)
            for pid in pids
        }

    def _process(self, pid: int, known: _Known | None) -> _Known:
        process = b"%b/%d/" % (_PROC, pid)
        try:
            size = _memory_size(process + b"statm")
            # A kernel thread or a zombie has no memory and maps nothing.
            if size == b"0":
                return _OTHER
            if known is not None and known.size == size:
                return known
            start = len(self._root.rstrip(b"/")) + 1
            found = procfs.mapped(process + b"maps", self._root)
            return _Known(size, frozenset(path[start:] for path in found))
        except OSError:
            return _OTHER  # owned by another user, or ended


def _memory_size(statm: bytes) -> bytes:
    handle = os.open(statm, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, 64).split(b" ", 1)[0]
    finally:
        os.close(handle)
