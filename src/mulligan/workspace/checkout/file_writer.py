"""Create files in directories where nothing is in the way, under their final names."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable, Iterable

from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.model import Digest
from mulligan.workspace.checkout.checkout_plan import DirectoryNode, Made, SingleChunkFile
from mulligan.workspace.fsync import Syncer
from mulligan.workspace.handles import room_for
from mulligan.workspace.restore.fileops import Xattrs, try_xattrs, write_parts

OPEN_DIRECTORIES = 128
"""Maximum number of open directories; files of one directory tend to come together."""

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_PERMISSIONS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO

Parts = Callable[[int], Iterable[bytes]]
"""Returns what to write into a file, given its handle."""


class FileWriter:
    """Create files and hold their directories open; the caller owns the root's handle."""

    def __init__(self, failpoint: FailpointHook, syncer: Syncer[Made], *, inherits: bool) -> None:
        """``inherits`` if new files may get extended attributes that they must not keep."""
        self._failpoint = failpoint
        self._syncer = syncer
        self.inherits = inherits
        self._max_open = room_for(OPEN_DIRECTORIES)
        self._open: deque[DirectoryNode] = deque()
        self._granted: set[int] = set()
        """Modes that a file has as soon as it is created with them, despite the umask."""

    def handle(self, node: DirectoryNode) -> int:
        """Return an open handle to a directory; the oldest handle is closed to make room."""
        if node.handle < 0 and node.above is not None:
            above = self.handle(node.above)
            node.handle = os.open(node.name, DIRECTORY, dir_fd=above)
            self._open.append(node)
            if len(self._open) > self._max_open:
                _shut(self._open.popleft())
        return node.handle

    def make(self, target: SingleChunkFile, parts: Parts, xattrs: Xattrs | None = None) -> None:
        """Create a file; on ``OSError`` nothing is left of it, unless it existed before."""
        node, name, mode, mtime = target
        parent = self.handle(node)
        # O_EXCL: an existing file is never overwritten, not even through a symlink.
        handle = os.open(name, _NEW, mode & _PERMISSIONS, dir_fd=parent)
        try:
            write_parts(handle, parts(handle))
            self._failpoint(Failpoint.RESTORE_TEMPORARY_WRITTEN)
            if mode not in self._granted:
                self._set_mode(handle, mode)
            trouble = None
            if xattrs or self.inherits:
                trouble = try_xattrs(handle, xattrs)
            # After the last write, which would move the time again.
            os.utime(handle, ns=(mtime, mtime))
            # Only a complete file is synced, and only what is synced counts as written.
            self._syncer.add(target, handle)
        except BaseException:
            # Created by this call, thanks to O_EXCL, so it is ours to remove: a partial file must
            # not look like a restored one.
            os.unlink(name, dir_fd=parent)
            raise
        finally:
            os.close(handle)
        if trouble is not None:
            raise trouble

    def make_all(
        self,
        found: Iterable[tuple[Digest, bytes]],
        files_by_digest: dict[Digest, list[SingleChunkFile]],
        failed: Callable[[SingleChunkFile, OSError], None],
    ) -> None:
        """Create the files of the objects that are found, and drop them from the dict."""
        for digest, data in found:
            for target in files_by_digest.pop(digest):
                try:
                    self.make(target, lambda _, data=data: (data,))  # type: ignore[misc]
                except OSError as error:
                    failed(target, error)

    def remove_partial(self, target: SingleChunkFile, data: bytes) -> None:
        """Remove the partial file of a worker that died; anything else stays."""
        parent = self.handle(target.node)
        try:
            handle = os.open(target.name, _READ, dir_fd=parent)
        except FileNotFoundError:
            return
        try:
            seen = os.fstat(handle)
            is_file = stat.S_ISREG(seen.st_mode) and seen.st_size <= len(data)
            is_partial = is_file and data.startswith(os.read(handle, len(data) + 1))
        finally:
            os.close(handle)
        if is_partial:
            os.unlink(target.name, dir_fd=parent)

    def remove(self, target: SingleChunkFile) -> None:
        """Remove a file that was written and cannot be relied on."""
        os.unlink(target.name, dir_fd=self.handle(target.node))

    def close(self) -> None:
        """Close all directories."""
        for node in self._open:
            _shut(node)
        self._open.clear()

    def _set_mode(self, handle: int, mode: int) -> None:
        """Set the mode of a new file; a mode that new files get anyway is not set again."""
        if stat.S_IMODE(os.fstat(handle).st_mode) == mode:
            self._granted.add(mode)
        else:
            os.fchmod(handle, mode)


def _shut(node: DirectoryNode) -> None:
    os.close(node.handle)
    node.handle = -1
