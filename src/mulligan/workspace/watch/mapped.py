"""Files that programs have in their memory to write to (``mmap``, shared and writable).

The kernel reports no such write. On most filesystems the first write to a page moves the file's
times and later ones do not, until the page was written to disk; on tmpfs not even then, and not at
all if the program has read the page before. So these files are read at every capture while a
program has them mapped, and once more after that.

``/proc/PID/maps`` tells of the processes that this user may look at. Reading all of them would take
longer than a step of the watcher. So what is known of a process is kept while the size of its
memory is the same; a few are read anew at each look all the same, in turn, which finds a program
that has replaced one mapping by another of the same size. Steps that follow each other within a few
milliseconds share one look: what was mapped in between is found by the next one.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from mulligan import procfs

RESULT_TTL_SECONDS = 0.01
"""Seconds for which the result of a look is good."""

REREAD_PROCESSES = 2
"""How many processes are read anew at each look, whatever the size of their memory."""

_PROC = os.fsencode(procfs.PROC)


class _Known(NamedTuple):
    """The size of a process's memory, and the files it has mapped; no size if it has none."""

    size: bytes | None
    files: frozenset[bytes]


_OTHER = _Known(None, frozenset())
"""A thread of the kernel, or a process that cannot be looked at."""


class Mapped:
    """Knows which files below a directory are mapped. Not for several threads at once."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._processes: dict[int, _Known] = {}
        self._found: set[bytes] = set()
        self._turn = 0
        self._looked = -RESULT_TTL_SECONDS

    def files(self) -> set[bytes]:
        """Return the paths, from the root, of all files that are mapped to be written to."""
        now = time.monotonic()
        if now - self._looked >= RESULT_TTL_SECONDS:
            self._looked = now
            self._look()
            self._found = {path for known in self._processes.values() for path in known.files}
        return self._found

    def _look(self) -> None:
        pids, before = list(procfs.pids()), self._processes
        for pid in pids[self._turn : self._turn + REREAD_PROCESSES]:
            before.pop(pid, None)
        self._turn = (
            self._turn + REREAD_PROCESSES if self._turn + REREAD_PROCESSES < len(pids) else 0
        )
        self._processes = {pid: self._process(pid, before.get(pid)) for pid in pids}

    def _process(self, pid: int, known: _Known | None) -> _Known:
        if known is not None and known.size is None:
            return known
        process = b"%b/%d/" % (_PROC, pid)
        try:
            size = _memory_size(process + b"statm")
            if size == b"0":
                return _OTHER
            if known is not None and known.size == size:
                return known
            start = len(self._root.rstrip(b"/")) + 1
            found = procfs.mapped(process + b"maps", self._root)
            return _Known(size, frozenset(path[start:] for path in found))
        except OSError:
            return _OTHER  # another user's, or it has ended


def _memory_size(statm: bytes) -> bytes:
    handle = os.open(statm, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, 64).split(b" ", 1)[0]
    finally:
        os.close(handle)
