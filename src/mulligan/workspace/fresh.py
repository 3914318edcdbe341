"""Writing a tree into a new or empty directory, where there is nothing to lose.

Nobody counts on the directory before it is complete, so files are made under their own names, with
their modes, in the order in which their objects lie in the store; directories get their modes
and times when all is in them. What is in the way already is a failure, and stays.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain

from mulligan.errors import MulliganError
from mulligan.faults import CrashPoint, Reach, pass_by
from mulligan.model import Digest, ObjectKind
from mulligan.objects.protocol import Objects
from mulligan.workspace import syscalls
from mulligan.workspace.content import read_xattrs
from mulligan.workspace.entries import Directory, File, Link, from_name
from mulligan.workspace.plan import Step, TreePath
from mulligan.workspace.writing import Failure, failure, try_xattrs, write_all

OPEN_DIRECTORIES = 128
"""How many directories are held open, because files of one come together."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MADE = stat.S_IRWXU
_PERMISSIONS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO


class Place:
    """A directory that is being filled; it is opened when it is needed."""

    __slots__ = ("above", "handle", "name")

    def __init__(self, above: Place | None, name: bytes, handle: int = -1) -> None:
        self.above = above
        self.name = name
        self.handle = handle


class Fresh:
    """Fills an empty directory by the steps that lead from nothing to a tree."""

    def __init__(self, root: bytes, objects: Objects, reach: Reach = pass_by) -> None:
        self._objects = objects
        self._reach = reach
        self._root = Place(None, b"", os.open(root, _DIRECTORY & ~os.O_NOFOLLOW))
        self._places: dict[TreePath, Place] = {(): self._root}
        self._open: deque[Place] = deque()
        self._granted: set[int] = set()
        """The modes that a file has as soon as it is made with them, whatever the umask."""
        self._inherits = read_xattrs(self._root.handle) is not None
        """Whether new files may get extended attributes from the directory, which must go."""
        self.failures: list[Failure] = []

    def run(self, steps: list[Step], *, durable: bool = False) -> list[Failure]:
        """Write everything and return what could not be; ``durable`` when it must outlive power.

        The steps are those that lead from nothing to a tree, each after those above it.
        """
        directories = [step for step in steps if isinstance(step.after, Directory)]
        try:
            for step in directories:
                self._attempt(step, self._make_directory)
            self._write_leaves(steps)
            self._reach(CrashPoint.RESTORE_WRITTEN)
            for step in reversed(directories):
                self._attempt(step, self._finish_directory)
            if durable:
                syscalls.sync_filesystem(self._root.handle)
        finally:
            self._close()
        return self.failures

    def _attempt(self, step: Step, act: Callable[[Step], None]) -> None:
        try:
            act(step)
        except (OSError, MulliganError) as error:
            self.failures.append(failure(step.path, error))

    def _make_directory(self, step: Step) -> None:
        path = step.path
        if path:
            above, name = self._place(path[:-1]), from_name(path[-1])
            os.mkdir(name, _MADE, dir_fd=self._handle(above))
            self._places[path] = Place(above, name)

    def _write_leaves(self, steps: list[Step]) -> None:
        """Write files as their objects come; those of several objects, and all else, one by one."""
        coming: dict[Digest, list[Step]] = {}
        others = []
        for step in steps:
            entry = step.after
            if isinstance(entry, File) and len(entry.chunks) == 1:
                coming.setdefault(entry.chunks[0], []).append(step)
            elif not isinstance(entry, Directory):
                others.append(step)
        for digest, data in self._objects.get_all(ObjectKind.CHUNK, coming):
            for step in coming.pop(digest):
                self._attempt(step, partial(self._make_file, data=data))
        for step in chain(others, *coming.values()):
            self._attempt(
                step, self._make_link if isinstance(step.after, Link) else self._make_file
            )

    def _make_file(self, step: Step, data: bytes | None = None) -> None:
        """Make a file, of the bytes if they are at hand."""
        file = step.after
        assert isinstance(file, File)  # noqa: S101 -- nothing else comes here
        parent, name = self._handle(self._place(step.path[:-1])), from_name(step.path[-1])
        handle = os.open(name, _NEW, file.mode & _PERMISSIONS, dir_fd=parent)
        try:
            if data is None:
                self._write_chunks(handle, file)
            elif os.write(handle, data) != len(data):
                os.lseek(handle, 0, os.SEEK_SET)
                write_all(handle, data)
            self._reach(CrashPoint.RESTORE_DRAFT_WRITTEN)
            if file.mode not in self._granted:
                self._set_mode(handle, file.mode)
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

    def _write_chunks(self, handle: int, file: File) -> None:
        for digest in file.chunks:
            write_all(handle, self._objects.get(ObjectKind.CHUNK, digest))

    def _set_mode(self, handle: int, mode: int) -> None:
        """Give a new file its mode; one that new files have anyhow is not set again."""
        if stat.S_IMODE(os.fstat(handle).st_mode) == mode:
            self._granted.add(mode)
        else:
            os.fchmod(handle, mode)

    def _make_link(self, step: Step) -> None:
        link = step.after
        assert isinstance(link, Link)  # noqa: S101 -- nothing else comes here
        parent, name = self._handle(self._place(step.path[:-1])), from_name(step.path[-1])
        os.symlink(link.target, name, dir_fd=parent)
        os.utime(name, ns=(link.mtime, link.mtime), dir_fd=parent, follow_symlinks=False)

    def _finish_directory(self, step: Step) -> None:
        entry = step.after
        assert isinstance(entry, Directory)  # noqa: S101 -- nothing else comes here
        handle = self._handle(self._place(step.path))
        trouble = None
        if entry.xattrs or self._inherits:
            trouble = try_xattrs(handle, entry.xattrs)
        os.fchmod(handle, entry.mode)
        os.utime(handle, ns=(entry.mtime, entry.mtime))
        if trouble is not None:
            raise trouble

    def _place(self, path: TreePath) -> Place:
        place = self._places.get(path)
        if place is None:
            raise FileNotFoundError(errno.ENOENT, "the directory it belongs to is not there")
        return place

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


def _shut(place: Place) -> None:
    os.close(place.handle)
    place.handle = -1
