"""Applying a plan to a directory: write beside and rename, never through a symlink, delete last.

Every path is reached from the root through directory handles opened without following links, so a
directory swapped for a symlink can not lead a write out of the root. Applying is idempotent: a
plan that was interrupted is worked out again and applied again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress

from mulligan.errors import MulliganError
from mulligan.faults import CrashPoint, Reach, pass_by
from mulligan.model import Digest, ObjectKind
from mulligan.objects.protocol import Objects
from mulligan.workspace.entries import Directory, File, Link, from_name
from mulligan.workspace.plan import Step, TreePath

DRAFT = b".mulligan-draft-"
"""How the names of files begin that are still being written; leftovers are safe to delete."""

SYNC_ONE_BY_ONE = 64
"""Up to this many files are synced each; beyond it, all of the filesystem once."""

_MAX_HANDLES = 64
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Failure = tuple[TreePath, str]
Progress = Callable[[int], None]


class Handles:
    """Open directories below a root, reached without following symlinks."""

    def __init__(self, root: bytes) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open: OrderedDict[TreePath, int] = OrderedDict()

    def directory(self, path: TreePath) -> int:
        """Return a handle of a directory; raises ``OSError`` when a symlink is in the way."""
        if not path:
            return self._root
        handle = self._open.get(path)
        if handle is not None:
            self._open.move_to_end(path)
            return handle
        parent = self.directory(path[:-1])
        handle = self._open[path] = os.open(from_name(path[-1]), _DIRECTORY, dir_fd=parent)
        while len(self._open) > _MAX_HANDLES:
            os.close(self._open.popitem(last=False)[1])
        return handle

    def forget(self, path: TreePath) -> None:
        """Close what is open at and below a path that is about to go."""
        for known in [key for key in self._open if key[: len(path)] == path]:
            os.close(self._open.pop(known))

    def close(self) -> None:
        """Close everything."""
        self.forget(())
        os.close(self._root)


class Apply:
    """Brings a directory from one tree to another, step by step."""

    def __init__(
        self,
        root: bytes,
        objects: Objects,
        attributes: Callable[[TreePath], Directory | None],
        *,
        reach: Reach = pass_by,
        sync: bool = True,
    ) -> None:
        self._objects = objects
        self._attributes = attributes
        self._reach = reach
        self._sync = sync
        self._root = root
        self._handles = Handles(root)
        self.failures: list[Failure] = []

    def run(self, steps: list[Step]) -> list[Failure]:
        """Apply the steps; what could not be done is returned and the rest is done."""
        try:
            self._run(steps)
        finally:
            self._handles.close()
        return self.failures

    def _run(self, steps: list[Step]) -> None:
        made = [s for s in steps if s.after is not None]
        deleted = sorted((s for s in steps if s.after is None), key=lambda s: -len(s.path))
        taken = {s.path for s in made if not (s.before and _alike(s.before, s.after))}
        in_the_way = [s for s in deleted if _is_in_the_way(s.path, taken)]
        self._each(in_the_way, self._delete)
        directories = [s for s in made if isinstance(s.after, Directory)]
        self._each(sorted(directories, key=lambda s: len(s.path)), self._make_directory)
        leaves = [s for s in made if not isinstance(s.after, Directory)]
        self._write_leaves(leaves)
        self._reach(CrashPoint.RESTORE_WRITTEN)
        done = set(map(id, in_the_way))
        self._each([s for s in deleted if id(s) not in done], self._delete)
        self._reach(CrashPoint.RESTORE_DELETED)
        self._directory_attributes(steps)
        if self._sync and len(leaves) > SYNC_ONE_BY_ONE:
            os.sync()

    def _each(self, steps: Iterable[Step], act: Callable[[Step], None]) -> None:
        for step in steps:
            try:
                act(step)
            except (OSError, MulliganError) as error:
                if _is_disk_full(error):
                    raise
                self.failures.append((step.path, str(error)))

    def _write_leaves(self, steps: list[Step]) -> None:
        """Write files in the order in which their objects lie in the store."""
        one_by_one = self._sync and len(steps) <= SYNC_ONE_BY_ONE
        by_first: dict[Digest, list[Step]] = {}
        others = []
        for step in steps:
            if isinstance(step.after, File) and step.after.chunks and step.action != "attributes":
                by_first.setdefault(step.after.chunks[0], []).append(step)
            else:
                others.append(step)
        self._each(others, lambda step: self._write(step, one_by_one))
        for digest in self._objects.in_order(by_first):
            self._each(by_first[digest], lambda step: self._write(step, one_by_one))

    def _write(self, step: Step, sync: bool) -> None:
        parent = self._handles.directory(step.path[:-1])
        name = from_name(step.path[-1])
        if step.action == "attributes" and self._is_as_before(parent, name, step):
            self._leaf_attributes(parent, name, step.after)
        elif isinstance(step.after, Link):
            self._write_link(parent, name, step.after)
        elif isinstance(step.after, File):
            self._write_file(parent, name, step.after, sync)

    def _is_as_before(self, parent: int, name: bytes, step: Step) -> bool:
        """Whether the leaf still is of the kind that only needs other attributes."""
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        kind = stat.S_ISREG if isinstance(step.after, File) else stat.S_ISLNK
        return kind(status.st_mode)

    def _write_file(self, parent: int, name: bytes, file: File, sync: bool) -> None:
        draft = DRAFT + name[:200]
        handle = self._new_draft(parent, draft)
        try:
            try:
                for digest in file.chunks:
                    _write_all(handle, self._objects.get(ObjectKind.CHUNK, digest))
                self._reach(CrashPoint.RESTORE_DRAFT_WRITTEN)
                for key, value in (file.xattrs or {}).items():
                    os.setxattr(handle, key, value)
                os.fchmod(handle, file.mode)
                os.utime(handle, ns=(file.mtime, file.mtime))
                if sync:
                    os.fsync(handle)
            finally:
                os.close(handle)
            os.replace(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            _unlink_if_there(draft, parent)
            raise
        self._reach(CrashPoint.RESTORE_RENAMED)

    def _new_draft(self, parent: int, draft: bytes) -> int:
        try:
            return os.open(draft, _NEW, 0o600, dir_fd=parent)
        except FileExistsError:
            os.unlink(draft, dir_fd=parent)  # left by a restore that was killed
            return os.open(draft, _NEW, 0o600, dir_fd=parent)

    def _write_link(self, parent: int, name: bytes, link: Link) -> None:
        draft = DRAFT + name[:200]
        _unlink_if_there(draft, parent)
        os.symlink(link.target, draft, dir_fd=parent)
        os.utime(draft, ns=(link.mtime, link.mtime), dir_fd=parent, follow_symlinks=False)
        os.replace(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
        self._reach(CrashPoint.RESTORE_RENAMED)

    def _leaf_attributes(self, parent: int, name: bytes, entry: object) -> None:
        if isinstance(entry, Link):
            times = (entry.mtime, entry.mtime)
            os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)
        elif isinstance(entry, File):
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                _set_xattrs(handle, entry.xattrs or {})
                os.fchmod(handle, entry.mode)
                os.utime(handle, ns=(entry.mtime, entry.mtime))
            finally:
                os.close(handle)

    def _make_directory(self, step: Step) -> None:
        if not step.path:
            return
        parent = self._handles.directory(step.path[:-1])
        name = from_name(step.path[-1])
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                raise

    def _delete(self, step: Step) -> None:
        parent = self._handles.directory(step.path[:-1])
        name = from_name(step.path[-1])
        try:
            if isinstance(step.before, Directory):
                self._handles.forget(step.path)
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            # It holds what no checkpoint covers, and stays with just that in it.

    def _directory_attributes(self, steps: list[Step]) -> None:
        """Set modes and times of every directory touched, deepest first, after all else."""
        touched = {s.path[:-1] for s in steps if s.path}
        touched |= {s.path for s in steps if isinstance(s.after, Directory)}
        for path in sorted(touched, key=len, reverse=True):
            entry = self._attributes(path)
            if entry is None:
                continue
            try:
                handle = self._handles.directory(path)
                os.fchmod(handle, entry.mode)
                os.utime(handle, ns=(entry.mtime, entry.mtime))
            except OSError as error:
                self.failures.append((path, str(error)))


def _alike(before: object, after: object) -> bool:
    """Whether one can take the other's place without anything having to go first."""
    return isinstance(before, Directory) == isinstance(after, Directory)


def _is_in_the_way(path: TreePath, taken: set[TreePath]) -> bool:
    return any(path[:length] in taken for length in range(1, len(path) + 1))


def _is_disk_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _unlink_if_there(name: bytes, parent: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


def _set_xattrs(handle: int, wanted: dict[str, bytes]) -> None:
    if not hasattr(os, "listxattr"):
        return
    for name in os.listxattr(handle):
        if name not in wanted:
            os.removexattr(handle, name)
    for name, value in wanted.items():
        os.setxattr(handle, name, value)
