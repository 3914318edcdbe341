"""Directories below a root, held open and reached without following symlinks."""

from __future__ import annotations

import os
import resource
from collections import OrderedDict

from mulligan.workspace.entries import TreePath, from_name

_MAX_HANDLES = 64
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_FRACTION_OF_LIMIT = 8
"""Each of several holders takes at most this fraction of the open-file limit."""

_MIN_HANDLES = 4


def room_for(wanted: int) -> int:
    """Return how many files may be held open at once: as many as wanted, unless the limit is low.

    With ``ulimit -n 64`` this is 8: other holders, the journal and the packs need some too.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return wanted
    return max(_MIN_HANDLES, min(wanted, limit // _FRACTION_OF_LIMIT))


class Handles:
    """Open directories below a root, reached without following symlinks."""

    def __init__(self, root: bytes) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open: OrderedDict[TreePath, int] = OrderedDict()
        self._max_open = room_for(_MAX_HANDLES)

    def directory(self, path: TreePath) -> int:
        """Return a handle to a directory; raises ``OSError`` if a symlink is in the path."""
        if not path:
            return self._root
        handle = self._open.get(path)
        if handle is not None:
            self._open.move_to_end(path)
            return handle
        # One name at a time with O_NOFOLLOW: a parent that was swapped for a symlink is an error.
        parent = self.directory(path[:-1])
        handle = self._open[path] = os.open(from_name(path[-1]), _DIRECTORY, dir_fd=parent)
        # The least recently used goes; the new handle is the last, so it stays open.
        while len(self._open) > self._max_open:
            os.close(self._open.popitem(last=False)[1])
        return handle

    def forget(self, path: TreePath) -> None:
        """Close all handles at and below a path that is about to be removed."""
        for known in [key for key in self._open if key[: len(path)] == path]:
            os.close(self._open.pop(known))

    def close(self) -> None:
        """Close everything."""
        self.forget(())
        os.close(self._root)
