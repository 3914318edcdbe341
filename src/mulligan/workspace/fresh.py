"""Writing a tree into a new or empty directory, where there is nothing to lose.

Nobody counts on the directory before it is complete, so files are made under their own names, with
their modes, in the order in which their objects lie in the store; directories get their modes
and times when all is in them. What is in the way already is a failure, and stays.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator

from mulligan.errors import MulliganError
from mulligan.faults import CrashPoint, Reach
from mulligan.model import Digest, ObjectKind
from mulligan.objects.protocol import Objects
from mulligan.workspace import syscalls
from mulligan.workspace.content import read_xattrs
from mulligan.workspace.contents import Contents, Place, Whole
from mulligan.workspace.entries import Directory, File, Leaf, Link, to_name
from mulligan.workspace.share import Source
from mulligan.workspace.writing import Failure, failure, try_xattrs, write_all

OPEN_DIRECTORIES = 128
"""How many directories are held open, because files of one come together."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MADE = stat.S_IRWXU
_PERMISSIONS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO


class Fresh:
    """Fills an empty directory with what a tree holds; ``source`` has files to share bytes with."""

    def __init__(
        self,
        root: bytes,
        contents: Contents,
        objects: Objects,
        reach: Reach,
        source: Source | None = None,
    ) -> None:
        self._contents = contents
        self._source = source
        self._objects = objects
        self._reach = reach
        self._open: deque[Place] = deque()
        self._root = contents.root
        self._root.handle = os.open(root, _DIRECTORY & ~os.O_NOFOLLOW)
        self._granted: set[int] = set()
        """The modes that a file has as soon as it is made with them, whatever the umask."""
        self._inherits = read_xattrs(self._root.handle) is not None
        """Whether new files may get extended attributes from the directory, which must go."""
        self.failures: list[Failure] = []

    def run(self, *, durable: bool = False) -> list[Failure]:
        """Write everything and return what could not be; ``durable`` when it must outlive power."""
        directories = self._contents.directories
        try:
            for place, _ in directories:
                self._make_directory(place)
            self._write_wholes()
            for place, name, leaf in self._contents.leaves:
                self._make_leaf(place, name, leaf)
            self._reach(CrashPoint.RESTORE_WRITTEN)
            for place, entry in reversed(directories):
                self._finish_directory(place, entry)
            if durable:
                syscalls.sync_filesystem(self._root.handle)
        finally:
            self._close()
        return self.failures

    def _failed(self, place: Place, name: bytes | None, error: Exception) -> None:
        path = place.path if name is None else (*place.path, to_name(name))
        self.failures.append(failure(path, error))

    def _write_wholes(self) -> None:
        """Write files as their objects come; those that do not come say why one by one."""
        wholes = self._contents.wholes
        if self._source is not None:
            self._share_wholes(self._source)
        for digest, data in self._objects.get_all(ObjectKind.CHUNK, wholes):
            for place, name, mode, mtime in wholes.pop(digest):
                try:
                    self._make_file(place, name, File(mode, mtime, 0, ()), (data,))
                except OSError as error:
                    self._failed(place, name, error)
        for digest in list(wholes):
            self._make_one_by_one(digest)

    def _share_wholes(self, source: Source) -> None:
        """Make the files that are still as they were captured, as long as that can be done."""
        for digest, files in list(self._contents.wholes.items()):
            if not source.is_possible:
                return
            if all(source.has(f.place.path, f.name, _file(f, digest)) for f in files):
                self._make_one_by_one(digest)

    def _make_one_by_one(self, digest: Digest) -> None:
        for whole in self._contents.wholes.pop(digest):
            self._make_leaf(whole.place, whole.name, _file(whole, digest))

    def _make_leaf(self, place: Place, name: bytes, leaf: Leaf) -> None:
        try:
            if isinstance(leaf, Link):
                self._make_link(place, name, leaf)
            else:
                self._make_file(place, name, leaf)
        except (OSError, MulliganError) as error:
            self._failed(place, name, error)

    def _make_file(
        self, place: Place, name: bytes, file: File, parts: Iterable[bytes] | None = None
    ) -> None:
        """Make a file of the parts, or else of what its entry says."""
        parent, mode = self._handle(place), file.mode
        handle = os.open(name, _NEW, mode & _PERMISSIONS, dir_fd=parent)
        try:
            for data in self._bytes(place, name, file, handle) if parts is None else parts:
                write_all(handle, data)
            self._reach(CrashPoint.RESTORE_DRAFT_WRITTEN)
            if mode not in self._granted:
                self._set_mode(handle, mode)
            trouble = None
            if file.xattrs or self._inherits:
                trouble = try_xattrs(handle, file.xattrs)
            os.utime(handle, ns=(file.mtime, file.mtime))
        except BaseException:
            os.unlink(name, dir_fd=parent)
            raise
        finally:
            os.close(handle)
        if trouble is not None:
            raise trouble

    def _bytes(self, place: Place, name: bytes, file: File, handle: int) -> Iterator[bytes]:
        """Yield what is to be written into a new file; nothing once it shares its bytes."""
        source = self._source
        if source is not None and source.is_possible and file.chunks:
            if source.share(place.path, name, file, handle):
                return
            os.ftruncate(handle, 0)
        for digest in file.chunks:
            yield self._objects.get(ObjectKind.CHUNK, digest)

    def _make_directory(self, place: Place) -> None:
        if place.above is None:
            return
        try:
            os.mkdir(place.name, _MADE, dir_fd=self._handle(place.above))
        except OSError as error:
            self._failed(place, None, error)

    def _set_mode(self, handle: int, mode: int) -> None:
        """Give a new file its mode; one that new files have anyhow is not set again."""
        if stat.S_IMODE(os.fstat(handle).st_mode) == mode:
            self._granted.add(mode)
        else:
            os.fchmod(handle, mode)

    def _make_link(self, place: Place, name: bytes, link: Link) -> None:
        parent, times = self._handle(place), (link.mtime, link.mtime)
        os.symlink(link.target, name, dir_fd=parent)
        os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)

    def _finish_directory(self, place: Place, entry: Directory) -> None:
        try:
            handle, trouble = self._handle(place), None
            if entry.xattrs or self._inherits:
                trouble = try_xattrs(handle, entry.xattrs)
            os.fchmod(handle, entry.mode)
            os.utime(handle, ns=(entry.mtime, entry.mtime))
        except OSError as error:
            trouble = error
        if trouble is not None:
            self._failed(place, None, trouble)

    def _handle(self, place: Place) -> int:
        """Return an open handle of a directory; the one opened first gives way."""
        if place.handle < 0 and place.above is not None:
            above = self._handle(place.above)
            place.handle = os.open(place.name, _DIRECTORY, dir_fd=above)
            self._open.append(place)
            if len(self._open) > OPEN_DIRECTORIES:
                _shut(self._open.popleft())
        return place.handle

    def _close(self) -> None:
        for place in (*self._open, self._root):
            _shut(place)


def _file(whole: Whole, digest: Digest) -> File:
    return File(whole.mode, whole.mtime, 0, (digest,))


def _shut(place: Place) -> None:
    os.close(place.handle)
    place.handle = -1
