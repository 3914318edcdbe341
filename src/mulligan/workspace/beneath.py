"""Directories below a root, held open, so that no path can escape the root.

The kernel resolves a path again on every call, and any directory in it may have been replaced by a
symlink since the last one. Here each directory is opened relative to its parent, a symlink in the
path is an error, and everything inside a directory is reached from its handle by a single name.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict

MAX_OPEN_DIRECTORIES = 16
"""Maximum number of open handles: enough for a walk, few compared with the open-file limit."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Beneath:
    """Open directories, keyed by path from a root; the root itself is ``b""``."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def __enter__(self) -> Beneath:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def directory(self, path: bytes) -> int:
        """Return a handle to a directory, valid until the next call.

        Raises ``NotADirectoryError`` if the path is not a directory or contains a symlink, or
        another ``OSError``.
        """
        handle = self._open.get(path)
        if handle is not None:
            self._open.move_to_end(path)
            return handle
        return self.renewed(path)

    def renewed(self, path: bytes) -> int:
        """Return a fresh handle to the directory now at a path; see :meth:`directory`."""
        handle = self._opened(path)
        # Opened before the old one is closed, so that a failure leaves the old handle usable.
        before = self._open.pop(path, None)
        if before is not None:
            os.close(before)
        self._open[path] = handle
        while len(self._open) > MAX_OPEN_DIRECTORIES:
            os.close(self._open.popitem(last=False)[1])
        return handle

    def lstat(self, path: bytes) -> os.stat_result:
        """Return the stat of a path, resolved from the open handle of its parent."""
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
            # The caller chose the root, including any symlinks on the way to it.
            return os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        parent, _, name = path.rpartition(b"/")
        try:
            return os.open(name, _DIRECTORY, dir_fd=self.directory(parent))
        except OSError as error:
            if error.errno == errno.ELOOP:  # some systems report a symlink this way
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
            raise
