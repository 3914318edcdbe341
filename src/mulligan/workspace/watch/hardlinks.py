"""Hard links: a write through one name of a file is reported for its other names too.

A watched directory reports a change only under the name through which the file was opened. So a
file with several names is watched itself, and changes through any name are seen, inside the
workspace or outside.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from mulligan.workspace.capture.index import TIMESTAMP_GRAIN_NS
from mulligan.workspace.watch import inotify
from mulligan.workspace.watch.inotify import Inotify

_MASK = (
    inotify.MODIFY
    | inotify.ATTRIB
    | inotify.CLOSE_WRITE
    | inotify.DONT_FOLLOW  # a symlink may have several names too
)


class HardLinks:
    """Watch inodes, and map each to its names in the workspace."""

    def __init__(self, root: bytes) -> None:
        """Open a queue of its own; raises ``OSError``."""
        self._prefix = root + b"/"
        self._inotify = Inotify()
        self._names: dict[int, set[bytes]] = {}
        self._unsure: set[bytes] = set()

    def follow(self, linked: Mapping[bytes, int]) -> None:
        """Watch files by path; each comes with the ctime at which it was last looked at.

        Idempotent. Raises ``OSError`` when the system allows no more watches.
        """
        recent = time.time_ns() - TIMESTAMP_GRAIN_NS
        for path, ctime in linked.items():
            try:
                # Watch before the stat: a change after the watch is an event, one before it shows
                # in the ctime.
                descriptor = self._inotify.add(self._prefix + path, _MASK)
                now = os.lstat(self._prefix + path).st_ctime_ns
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue  # moved or unreadable now; its directory reports that
            if now != ctime or now >= recent:
                self._unsure.add(path)  # may have changed before the watch was set
            names = self._names.setdefault(descriptor, set())
            if names and path not in names:
                self._names[descriptor] = names = self._still_there(names, path)
            names.add(path)

    def drain(self) -> set[bytes] | None:
        """Return the names of all files that may have changed, or None after an overflow."""
        paths, self._unsure = self._unsure, set()
        for descriptor, mask, _ in self._inotify.read():
            # Events were dropped, so any file may have changed: the caller scans everything.
            if mask & (inotify.Q_OVERFLOW | inotify.UNMOUNT):
                return None
            # The kernel removed the watch with the last name; the descriptor is never reused.
            if mask & inotify.IGNORED:
                self._names.pop(descriptor, None)
            else:
                paths |= self._names.get(descriptor, set())
        return paths

    def close(self) -> None:
        """Release the queue. Idempotent."""
        self._inotify.close()

    def _still_there(self, names: set[bytes], path: bytes) -> set[bytes]:
        """Return the names that still refer to the same file as a path."""
        inode = _inode(self._prefix + path)
        return {name for name in names if _inode(self._prefix + name) == inode}


def _inode(path: bytes) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
