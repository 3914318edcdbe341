"""Share the bytes of unchanged files with a copy, where the filesystem supports FICLONE.

A file of the live workspace can replace what a checkpoint holds if it looks, before and after it is
cloned, exactly as it did when that content was captured. Writes through a mapping show in its times
only once the system has cleaned its pages, so a file that changed shortly before its capture is not
trusted. Anything that cannot be shared is written from the store.
"""

from __future__ import annotations

import errno
import fcntl
import os

from mulligan.codec import value_digest
from mulligan.workspace.capture.index import Index, Seen, packed_stat
from mulligan.workspace.capture.tree import stored_entry
from mulligan.workspace.entries import File, TreePath, from_name
from mulligan.workspace.file_handles import close_file, open_file
from mulligan.workspace.syscalls import FICLONE

_NEVER = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS)
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class ReflinkSource:
    """The files of a workspace as captured, to be shared with a copy."""

    def __init__(self, root: bytes, index: Index) -> None:
        self._root = root
        self._directories = index.directories
        self._mapped = index.mapped
        self._settled = index.settled_until
        leaves = (seen for held in self._directories.values() for seen in held.leaves.values())
        self.is_possible = any(seen.ctime < self._settled for seen in leaves)
        """Whether to try; false once the filesystem has reported that it cannot."""

    def has(self, directory: TreePath, name: bytes, file: File) -> bool:
        """Whether this exact entry was captured from a file that has long been unchanged."""
        return self._seen(directory, name, file) is not None

    def share(self, directory: TreePath, name: bytes, file: File, handle: int) -> bool:
        """Make a new file share the bytes of a captured one; return whether it does.

        If it returns False, discard whatever is in the new file.
        """
        seen = self._seen(directory, name, file)
        if seen is None:
            return False
        path = b"/".join((self._root, *map(from_name, directory), name))
        try:
            source = open_file(path, _OPEN)
        except OSError:
            return False
        try:
            # Check on both sides of the clone: a write in between would be in the clone.
            return _is_as(seen, source) and self._cloned(source, handle) and _is_as(seen, source)
        finally:
            close_file(source)

    def _seen(self, directory: TreePath, name: bytes, file: File) -> Seen | None:
        parent = b"/".join(map(from_name, directory))
        holder = self._directories.get(parent)
        seen = holder.leaves.get(name) if holder else None
        if self._mapped and (parent + b"/" + name if parent else name) in self._mapped:
            return None
        if seen is None or seen.ctime >= self._settled or not _holds(seen, file):
            return None
        return seen

    def _cloned(self, source: int, handle: int) -> bool:
        try:
            fcntl.ioctl(handle, FICLONE, source)
        except OSError as error:
            # Tried no more where the filesystem cannot; other errors concern this file alone.
            self.is_possible = error.errno not in _NEVER
            return False
        return True


def _holds(seen: Seen, file: File) -> bool:
    known = File(file.mode, file.mtime, seen.size, file.chunks, file.xattrs)
    return stored_entry(known, value_digest) == seen.entry


def _is_as(seen: Seen, handle: int) -> bool:
    return seen.stat == packed_stat(os.fstat(handle))
