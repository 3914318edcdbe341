"""Apply changes to a directory: write, then rename, never through a symlink, delete last.

Every path is reached from the root through directory handles opened without following links, so a
directory replaced by a symlink cannot lead a write out of the root. Applying is idempotent: after
an interruption, the changes are computed again and applied again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from mulligan.errors import MulliganError
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.model import Digest, ObjectKind
from mulligan.objects.protocol import Objects
from mulligan.workspace.capture.file_reader import SINGLE_CHUNK_BYTES
from mulligan.workspace.capture.index import Seen, packed_stat
from mulligan.workspace.entries import Directory, File, Link, TreePath, from_name, to_name
from mulligan.workspace.file_handles import close_file, open_file
from mulligan.workspace.fsync import Syncer, by_count, few
from mulligan.workspace.handles import Handles
from mulligan.workspace.restore.caches import Caches, directory_of, remove_cache
from mulligan.workspace.restore.content_check import is_held
from mulligan.workspace.restore.deleter import Deleter
from mulligan.workspace.restore.fileops import Failure, failure, set_xattrs, try_xattrs, write_parts
from mulligan.workspace.restore.plan import TreeChange
from mulligan.workspace.restore.recent import Recent
from mulligan.workspace.restore.swap import Swap, TemporaryNames, discard, sweep, temporary_names
from mulligan.workspace.restore.torn_files import is_remains

_PRESENT = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Known = Callable[[TreePath], Seen | None]
"""Returns what is known of a leaf from its last capture; None if it was not captured."""


class Apply:
    """Bring a directory from one tree to another, one change at a time.

    With ``known`` it touches no leaf that differs from its capture, because no checkpoint holds it.
    The bytes of what it drops are compared with the store's. Exceptions are large files that last
    changed before ``settled``, whose times can be trusted, and files stored as application
    snapshots, for which ``is_snapshot`` returns true. ``token`` distinguishes the temporary files
    of this restore from those of any other. ``mtime`` returns the time to set on a directory that
    is not itself changed, or None. ``caches`` are removed as well.
    """

    def __init__(
        self,
        root: bytes,
        objects: Objects,
        mtime: Callable[[TreePath], int | None],
        *,
        known: Known | None = None,
        settled: int = 0,
        is_snapshot: Callable[[bytes], bool] = lambda _: False,
        failpoint: FailpointHook = ignore,
        token: str = "",
        caches: Caches | None = None,
    ) -> None:
        self._objects = objects
        self._mtime = mtime
        self._known = known
        self._settled = settled
        self._is_snapshot = is_snapshot
        self._failpoint = failpoint
        self._token = token
        self._caches = caches
        self._cleared: dict[TreePath, int] = {}
        self._emptied: set[TreePath] = set()
        self._swap = Swap(failpoint, self._unlink)
        self._deleter: Deleter[TreePath] = Deleter(self._failed)
        self._path: TreePath = ()
        self._handles = Handles(root)
        self._opened: dict[TreePath, int] = {}
        self._linked: set[int] = set()
        self._syncer: Syncer[TreePath] = Syncer(self._failed, few)
        self.failures: list[Failure] = []

    def run(
        self,
        changes: list[TreeChange],
        touch: Sequence[TreeChange] = (),
        recent: Sequence[Recent] = (),
    ) -> list[Failure]:
        """Apply the changes; return what failed. A failure does not stop the rest.

        Files changed by ``touch`` get the present time. ``recent`` is what stays as it is and must
        be made durable as well.
        """
        # Counted together: they are synced together.
        count = len(changes) + sum(1 + len(directory.leaves) for directory in recent)
        self._syncer = Syncer(self._failed, by_count(count))
        try:
            self._run(changes, touch)
            self._make_durable(changes, recent)
        finally:
            self._deleter.close()
            self._syncer.close()
            self._handles.close()
        return self.failures

    def _run(self, changes: list[TreeChange], touch: Sequence[TreeChange]) -> None:
        # Order: clear the way, directories, files, caches, deletions, times, sync. Deletions come
        # late: until then, an interruption leaves too many files rather than too few.
        made = [s for s in changes if s.after is not None]
        deleted = sorted((s for s in changes if s.after is None), key=lambda s: -len(s.path))
        # Paths that get another kind of entry; what is there now must go first.
        taken = {s.path for s in made if not (s.before and _alike(s.before, s.after))}
        in_the_way = [s for s in deleted if _is_in_the_way(s.path, taken)]
        if self._caches is not None:
            self._clear(self._caches.going)  # or rmdir of their directories would fail
        # Only what blocks a new entry goes early, e.g. a file where a directory is needed.
        self._each(in_the_way, self._delete)
        directories = [s for s in made if isinstance(s.after, Directory)]
        # Sorted by path, parents come first, and siblings share an open handle.
        self._each(sorted(directories, key=lambda s: s.path), self._make_directory)
        leaves = [s for s in made if not isinstance(s.after, Directory)]
        self._write_leaves(leaves)
        self._failpoint(Failpoint.RESTORE_WRITTEN)
        if self._caches is not None:
            # Only after the sources are in place: until then, a program may compile the old ones
            # again.
            self._clear(self._caches.stale(self._handles))
        done = set(map(id, in_the_way))
        self._each([s for s in deleted if id(s) not in done], self._delete)
        self._deleter.settle()
        self._failpoint(Failpoint.RESTORE_DELETED)
        failed = {path for path, _ in self.failures}
        self._each([s for s in touch if _is_new(s) and s.path not in failed], self._touch)
        self._directory_attributes(changes)

    def _make_durable(self, changes: list[TreeChange], recent: Sequence[Recent]) -> None:
        """Sync the files and the directories: a rename is only durable with its directory.

        Done once at the end, so that the disk is waited for once. A power cut before that leaves an
        unfinished restore, nothing worse.
        """
        leaves = {directory.path: directory.leaves for directory in recent}
        touched = {s.path[:-1] for s in changes if s.path}
        touched |= {s.path for s in changes if isinstance(s.after, Directory)}
        touched |= self._cleared.keys() | self._emptied | leaves.keys()
        for path in sorted(touched):
            with self._noting(path):
                handle = self._handles.directory(path)
                # One sync of the filesystem covers the leaves as well: no need to open thousands.
                if not self._syncer.add(path, handle):
                    self._add_leaves(path, handle, leaves.get(path, ()))
        # Once, at the end: the files are written by then, and one wait covers all of them.
        self._syncer.finish()

    def _add_leaves(self, directory: TreePath, parent: int, names: Sequence[bytes]) -> None:
        """Have leaves synced that stay as they are."""
        for name in names:
            path = (*directory, to_name(name))
            with self._noting(path):
                handle = open_file(name, _PRESENT, parent)
                try:
                    self._syncer.add(path, handle)
                finally:
                    close_file(handle)

    @contextmanager
    def _noting(self, path: TreePath) -> Iterator[None]:
        """Note an error, unless the path is gone, or a symlink: its directory is synced."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                self._failed(path, error)

    def _failed(self, path: TreePath, error: OSError) -> None:
        self.failures.append(failure(path, error))

    def _unlink(self, parent: int, name: bytes) -> None:
        self._deleter.unlink(self._path, parent, name)

    def _each(self, changes: Iterable[TreeChange], act: Callable[[TreeChange], None]) -> None:
        for change in changes:
            try:
                self._do(change.path, partial(act, change))
            except (OSError, MulliganError) as error:
                self.failures.append(failure(change.path, error))

    def _clear(self, caches: Iterable[TreePath]) -> None:
        """Remove caches; the directories that held them must not show a trace of it."""
        for path in caches:
            try:
                holder = directory_of(path)
                status = os.fstat(self._handles.directory(holder))
                self._cleared.setdefault(holder, status.st_mtime_ns)
                self._emptied.add(path[:-1])
                self._do(path, partial(remove_cache, self._handles, path))
            except FileNotFoundError:
                continue  # already gone
            except OSError as error:
                self.failures.append(failure(path, error))
        self._failpoint(Failpoint.RESTORE_CACHES_REMOVED)

    def _do(self, path: TreePath, act: Callable[[], None]) -> None:
        """Act on a path; if its directory is not writable, make it so and retry once."""
        self._path = path
        try:
            act()
        # Once only: with a writable directory, a second refusal is about the file itself.
        except PermissionError:
            if not self._open_up(path[:-1]):
                raise
            act()

    def _open_up(self, path: TreePath) -> bool:
        """Let the owner write to a directory until the end; return whether its mode changed."""
        handle = self._handles.directory(path)
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        if mode & stat.S_IRWXU == stat.S_IRWXU:
            return False
        # The original mode is set again at the end; see ``_directory_attributes``.
        os.fchmod(handle, mode | stat.S_IRWXU)
        self._opened[path] = mode
        return True

    def _write_leaves(self, changes: list[TreeChange]) -> None:
        """Write files in the order in which their objects lie in the store."""
        by_first: dict[Digest, list[TreeChange]] = {}
        others = []
        for change in changes:
            if (
                isinstance(change.after, File)
                and change.after.chunks
                and change.action != "attributes"
            ):
                by_first.setdefault(change.after.chunks[0], []).append(change)
            else:
                others.append(change)
        # Symlinks, empty files and attributes need no object, so their order does not matter.
        self._each(others, self._write)
        for digest in self._objects.sort_by_location(by_first):
            self._each(by_first[digest], self._write)

    def _write(self, change: TreeChange) -> None:
        parent = self._handles.directory(change.path[:-1])
        name = from_name(change.path[-1])
        status = self._status(parent, name, change.path)
        if change.action == "attributes" and status is not None:
            kind = stat.S_ISREG if isinstance(change.after, File) else stat.S_ISLNK
            # A file that we may not open or change can still be replaced.
            with suppress(PermissionError):
                if kind(status.st_mode):
                    self._leaf_attributes(parent, change.path, change.after)
                    return
        if isinstance(change.after, Link):
            own = temporary_names(name, self._token)
            made = _new_link(parent, own, change.after)
            self._put(parent, change, own, made)
        elif isinstance(change.after, File):
            self._write_file(parent, change, change.after)

    def _status(self, parent: int, name: bytes, path: TreePath) -> os.stat_result | None:
        """Return the stat of a leaf that may be touched, or None if it does not exist."""
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if self._known is not None and status.st_ino not in self._linked:
            _check_captured(status, self._known(path))
        if status.st_nlink > 1:
            self._linked.add(status.st_ino)  # its other names will show our change
        return status

    def _is_held(self, change: TreeChange, parent: int, name: bytes) -> bool:
        """Whether the store holds what is about to be dropped, now under the given name."""
        before = change.before
        if not isinstance(before, File):
            return True  # a symlink cannot be changed in place
        if self._is_snapshot(b"/".join(map(from_name, change.path))):
            return True  # the store holds a snapshot of it, whose bytes differ
        seen = self._known(change.path) if self._known is not None else None
        if before.size > SINGLE_CHUNK_BYTES and seen is not None and seen.ctime < self._settled:
            return True
        return is_held(name, before, self._objects, parent)

    def _write_content(self, handle: int, file: File) -> OSError | None:
        """Write content and attributes to an open file; return an error of the attributes."""
        get = self._objects.get
        write_parts(handle, (get(ObjectKind.CHUNK, digest) for digest in file.chunks))
        self._failpoint(Failpoint.RESTORE_TEMPORARY_WRITTEN)
        trouble = try_xattrs(handle, file.xattrs)
        os.fchmod(handle, file.mode)
        os.utime(handle, ns=(file.mtime, file.mtime))
        return trouble

    def _write_file(self, parent: int, change: TreeChange, file: File) -> None:
        own = temporary_names(from_name(change.path[-1]), self._token)
        handle = _new_file(parent, own)
        try:
            # By inode, not by name: a failed restore must only delete what it made itself.
            made = os.fstat(handle).st_ino
            try:
                trouble = self._write_content(handle, file)
            except BaseException:
                discard(parent, own, made)
                raise
            # Registered before the rename; all syncs happen together at the end.
            self._syncer.add(change.path, handle)
        finally:
            os.close(handle)
        self._put(parent, change, own, made)
        if trouble is not None:
            raise trouble

    def _put(self, parent: int, change: TreeChange, own: TemporaryNames, made: int) -> None:
        """Rename a temporary file into place, after a last check that its target may be touched."""
        name = from_name(change.path[-1])
        held = partial(self._is_held, change, parent)
        try:
            self._swap.put(parent, name, own, self._status(parent, name, change.path), held)
        except BaseException:
            discard(parent, own, made)
            raise
        self._failpoint(Failpoint.RESTORE_RENAMED)

    def _leaf_attributes(self, parent: int, path: TreePath, entry: object) -> None:
        name = from_name(path[-1])
        if isinstance(entry, Link):
            times = (entry.mtime, entry.mtime)
            os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)
        elif isinstance(entry, File):
            handle = open_file(name, _PRESENT, parent)
            try:
                set_xattrs(handle, entry.xattrs)
                os.fchmod(handle, entry.mode)
                os.utime(handle, ns=(entry.mtime, entry.mtime))
                self._syncer.add(path, handle)
            finally:
                close_file(handle)

    def _touch(self, change: TreeChange) -> None:
        """Set a leaf's time to now.

        Only at this point: temporary files carry the time of their entry, which identifies them
        after a crash.
        """
        parent, name = self._handles.directory(change.path[:-1]), from_name(change.path[-1])
        with suppress(FileNotFoundError):
            os.utime(name, dir_fd=parent, follow_symlinks=False)
            if isinstance(change.after, File):
                with suppress(PermissionError):  # unreadable; a power cut may lose its time
                    handle = os.open(name, _PRESENT, dir_fd=parent)
                    try:
                        self._syncer.add(change.path, handle)
                    finally:
                        os.close(handle)

    def _make_directory(self, change: TreeChange) -> None:
        if not change.path:
            return
        parent = self._handles.directory(change.path[:-1])
        name = from_name(change.path[-1])
        try:
            # Private and writable until everything is in it; the mode follows at the end.
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                raise

    def _delete(self, change: TreeChange) -> None:
        parent = self._handles.directory(change.path[:-1])
        name = from_name(change.path[-1])
        try:
            if isinstance(change.before, Directory):
                self._deleter.settle()  # queued deletions may be inside it
                # An open handle would keep the removed directory alive, and a new one of the same
                # name would be written into the old.
                self._handles.forget(change.path)
                os.rmdir(name, dir_fd=parent)
                self._opened.pop(change.path, None)
            elif (status := self._status(parent, name, change.path)) is not None:
                held = partial(self._is_held, change, parent)
                self._swap.remove(parent, name, temporary_names(name, self._token), status, held)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            # It holds files that no checkpoint covers; it stays, with only those in it.

    def _directory_attributes(self, changes: list[TreeChange]) -> None:
        """Set modes and times of all touched directories, deepest first, after everything else."""
        known = {s.path: s.after for s in changes if isinstance(s.after, Directory)}
        gone = {s.path for s in changes if s.after is None} - known.keys()
        touched = {s.path[:-1] for s in changes if s.path} | known.keys()
        for path in sorted(
            (touched | self._cleared.keys()) - (gone - self._opened.keys()), reverse=True
        ):
            entry = known.get(path)
            try:
                if entry is not None:
                    self._set_attributes(path, entry)
                elif path in touched:
                    self._reset_attributes(path, self._mtime(path))
                else:
                    self._reset_attributes(path, self._cleared[path])
            except OSError as error:
                self.failures.append(failure(path, error))

    def _reset_attributes(self, path: TreePath, mtime: int | None) -> None:
        """Remove the traces of our work from a directory that is not itself changed."""
        mode = self._opened.get(path)
        if mode is not None:
            os.fchmod(self._handles.directory(path), mode)
        if mtime is not None:
            os.utime(self._handles.directory(path), ns=(mtime, mtime))

    def _set_attributes(self, path: TreePath, entry: Directory) -> None:
        handle = self._handles.directory(path)
        trouble = try_xattrs(handle, entry.xattrs)
        os.fchmod(handle, entry.mode)
        os.utime(handle, ns=(entry.mtime, entry.mtime))
        if trouble is not None:
            raise trouble


def remove_temporary_files(
    root: bytes, changes: Iterable[TreeChange], token: str, objects: Objects
) -> None:
    """Remove temporary files that an interrupted run of these changes left behind."""
    handles = Handles(root)
    try:
        for change in changes:
            if not change.path:
                continue
            # What cannot be looked at or removed stays, under a name that the next restore knows.
            with suppress(OSError):
                parent = handles.directory(change.path[:-1])
                own = temporary_names(from_name(change.path[-1]), token)
                sweep(parent, own, objects, change.before, change.after)
                if is_remains(own.swap, parent, change.after, objects):
                    os.unlink(own.swap, dir_fd=parent)
    finally:
        handles.close()


def _is_new(change: TreeChange) -> bool:
    """Whether a change brings new content to a leaf."""
    return isinstance(change.after, File | Link) and change.action != "attributes"


def _alike(before: object, after: object) -> bool:
    """Whether one can replace the other without a deletion first."""
    return isinstance(before, Directory) == isinstance(after, Directory)


def _new_file(parent: int, own: TemporaryNames) -> int:
    """Create a temporary file; one that a killed restore left behind is removed."""
    try:
        return os.open(own.new, _NEW, 0o600, dir_fd=parent)
    except FileExistsError:
        # The directory's lock is held, so no other restore is writing it.
        os.unlink(own.new, dir_fd=parent)
        return os.open(own.new, _NEW, 0o600, dir_fd=parent)


def _new_link(parent: int, own: TemporaryNames, link: Link) -> int:
    """Create a symlink under the temporary name and return its inode number."""
    _unlink_if_there(own.new, parent)
    os.symlink(link.target, own.new, dir_fd=parent)
    os.utime(own.new, ns=(link.mtime, link.mtime), dir_fd=parent, follow_symlinks=False)
    return os.stat(own.new, dir_fd=parent, follow_symlinks=False).st_ino


def _is_in_the_way(path: TreePath, taken: set[TreePath]) -> bool:
    return any(path[:length] in taken for length in range(1, len(path) + 1))


def _check_captured(status: os.stat_result, seen: Seen | None) -> None:
    """Refuse to touch a leaf that was not captured, or has changed since."""
    if seen is None:
        raise FileExistsError(errno.EEXIST, "something is there that no checkpoint holds")
    if packed_stat(status) != seen.stat:
        raise FileExistsError(errno.EEXIST, "it was changed while the restore was under way")


def _unlink_if_there(name: bytes, parent: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)
