"""Directories below a root, held open, so that no path leads out of the root.

A path is resolved by the kernel anew at each call, and any directory in it may have been swapped
for a symlink by then. Here a directory is opened from the one that holds it, and a symlink in the
way is an error; what is in the directory is then reached from its handle by one name.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict

MAX_OPEN_DIRECTORIES = 16
"""How many handles are kept: enough for a walk, few beside the limit of open files."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Beneath:
    """Open directories by their paths from a root, which is ``b""`` itself."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def __enter__(self) -> Beneath:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def directory(self, path: bytes) -> int:
        """Return a handle of a directory, valid until the next call.

        Raises ``NotADirectoryError`` when it is none, or a symlink is in the way, or another
        ``OSError``.
        """
        handle = self._open.get(path)
        if handle is not None:
            self._open.move_to_end(path)
            return handle
        return self.renewed(path)

    def renewed(self, path: bytes) -> int:
        """Return a handle of the directory that is at a path now; see :meth:`directory`."""
        handle = self._opened(path)
        before = self._open.pop(path, None)
        if before is not None:
            os.close(before)
        self._open[path] = handle
        while len(self._open) > MAX_OPEN_DIRECTORIES:
            os.close(self._open.popitem(last=False)[1])
        return handle

    def lstat(self, path: bytes) -> os.stat_result:
        """Return the stat of what is at a path, in a directory of which a handle is held."""
        if not path:
            return os.fstat(self.renewed(b""))
        parent, _, name = path.rpartition(b"/")
        return os.stat(name, dir_fd=self.directory(parent), follow_symlinks=False)

    def close(self) -> None:
        """Close everything. Idempotent."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _opened(self, path: bytes) -> int:
        if not path:
            # The root is the caller's word; symlinks on the way to it are theirs as well.
            return os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        parent, _, name = path.rpartition(b"/")
        try:
            return os.open(name, _DIRECTORY, dir_fd=self.directory(parent))
        except OSError as error:
            if error.errno == errno.ELOOP:  # what some systems say of a symlink
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
            raise
