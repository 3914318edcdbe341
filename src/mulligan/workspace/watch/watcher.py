"""Watching: find what changed in a workspace without a scan.

Every directory has a watch, and the kernel queues its events. The result of :meth:`Watcher.drain`
includes everything that happened before the call, by any process, as far as the kernel reports it.
The kernel does not report:

- writes through a shared mapping (``mmap``) as they happen; the file is reported when the mapping
  ends. Until then ``mulligan.workspace.watch.mapped`` finds it;
- writes through another name (hard link) that was made outside the workspace after the last look at
  the file, or that was made, written through and removed between two drains;
- writes by other machines or other kernels, so a workspace on such a filesystem is not watched.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping

import msgspec

from mulligan.workspace.capture.ignore import FILE_NAME, Rules
from mulligan.workspace.watch import inotify
from mulligan.workspace.watch.hardlinks import HardLinks
from mulligan.workspace.watch.inotify import Event, Inotify, available
from mulligan.workspace.watch.mounts import Mounts

__all__ = ["Drained", "Watcher", "available"]

_NAMES = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO
_WATCH = (
    _NAMES
    | inotify.MODIFY
    | inotify.ATTRIB
    | inotify.CLOSE_WRITE  # the only event for mappings and some asynchronous writes
    | inotify.ONLYDIR
    | inotify.EXCL_UNLINK
)
_BELOW = _WATCH | inotify.DONT_FOLLOW
_ROOT = _WATCH | inotify.MOVE_SELF | inotify.DELETE_SELF
_RULES = os.fsencode(FILE_NAME)

_PASSING = (FileNotFoundError, NotADirectoryError, PermissionError)
"""Errors for a directory that vanished or changed its attributes; its parent reports that."""


class Drained(msgspec.Struct, frozen=True):
    """What may have changed, as paths from the root; the root itself is ``b""``.

    ``paths`` are files, symlinks, and directories whose own attributes may have changed.
    ``renewed`` are paths where a directory appeared or vanished: nothing known below them is valid,
    so they must be scanned in full.
    """

    paths: set[bytes]
    renewed: set[bytes]


class _Lost(Exception):
    """The watcher cannot know what changed; the text says why."""


class Watcher:
    """Report what changed in a workspace since the last drain. Not thread-safe.

    Start it, then capture everything. For each further capture: take the time, drain, and scan what
    was drained. After each capture pass its ``linked`` to :meth:`follow`. After a drain that
    returned None, or one whose result did not reach the index, start over with a new watcher.
    """

    def __init__(self, root: bytes, rules: Rules) -> None:
        self._root = root
        self._rules = rules
        self._pid = os.getpid()
        self._identity = (0, 0)
        self._inotify: Inotify | None = None
        self._mounts: Mounts | None = None
        self._links: HardLinks | None = None
        self._watched = _Watched()
        self._denied: set[bytes] = set()
        self.reason: str | None = "the watcher was not started"
        """Why nothing is known, or None while the watcher works."""

    def start(self) -> None:
        """Watch every directory that the rules do not leave out.

        Call it before the scan that the watcher continues from, so that nothing is missed in
        between. Does not raise: where the system does not allow watching, ``reason`` says so.
        """
        if self._inotify is not None:
            return
        try:
            self._watch(self._open(), [b""])
            self.reason = None
        except _Lost as lost:
            self._give_up(str(lost))
        except OSError as error:
            self._give_up(_explained(error))

    def drain(self) -> Drained | None:
        """Return everything that may have changed since the last drain, or None if unknown.

        Does not wait. After the first None every later call returns None, and everything must be
        scanned; ``reason`` says why. In a forked process it returns None and consumes nothing.
        """
        # A forked child shares the queue: reading it there would steal the parent's events.
        if self._inotify is None or os.getpid() != self._pid:
            return None
        try:
            return self._drain(self._inotify)
        except _Lost as lost:
            self._give_up(str(lost))
        except OSError as error:
            self._give_up(_explained(error))
        return None

    def follow(self, linked: Mapping[bytes, int]) -> None:
        """Watch files that a scan found to have several names; see ``Changes.linked``."""
        if not linked or self._inotify is None or os.getpid() != self._pid:
            return
        try:
            if self._links is None:
                self._links = HardLinks(self._root)
            self._links.follow(linked)
        except OSError as error:
            self._give_up(_explained(error))

    def close(self) -> None:
        """Release all watches. Idempotent."""
        self._give_up("the watcher was closed")

    def _open(self) -> Inotify:
        if not available():
            raise _Lost("this system has no inotify")
        self._pid = os.getpid()
        self._inotify = Inotify()
        # Read after the queue is open, so that a mount in between is seen by one of the two.
        self._mounts = Mounts(self._root)
        if shared := self._mounts.shared():
            raise _Lost(f"the workspace is on {shared}, which others may change unseen")
        self._identity = _identity(self._root)
        return self._inotify

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        for part in (self._inotify, self._mounts, self._links):
            if part is not None:
                part.close()
        self._inotify = self._mounts = self._links = None

    def _drain(self, queue: Inotify) -> Drained:
        drained = Drained(set(), set())
        # Read the queue before the checks below: they must not miss what happens meanwhile.
        for event in queue.read():
            self._note(event, drained)
        if self._links is not None:
            linked = self._links.drain()
            if linked is None:
                raise _Lost("there were more changes than the kernel's queue holds")
            drained.paths.update(linked)
        if self._mounts is not None and self._mounts.changed():
            raise _Lost("a filesystem in the workspace was mounted or unmounted")
        # After the events were read: whatever replaces the root later is in the next drain.
        if _identity(self._root) != self._identity:
            raise _Lost("the workspace was moved or replaced")
        # Before the caller scans: what is created after the watch is in the next drain.
        if drained.renewed:
            self._watch(queue, _topmost(drained.renewed))
        return drained

    def _note(self, event: Event, drained: Drained) -> None:
        """Record an event.

        The paths are those of the last drain. A directory that has moved since is renewed as a
        whole, so a stale path does no harm.
        """
        descriptor, mask, name = event
        if mask & (inotify.Q_OVERFLOW | inotify.UNMOUNT):
            raise _Lost(
                "there were more changes than the kernel's queue holds"
                if mask & inotify.Q_OVERFLOW
                else "the workspace was unmounted"
            )
        path = self._watched.path(descriptor)
        if path is None:
            return  # a late event of a removed watch
        if mask & (inotify.IGNORED | inotify.MOVE_SELF | inotify.DELETE_SELF):
            if path == b"":
                raise _Lost("the workspace was moved or removed")
            self._watched.drop(descriptor)
        elif not name:
            self._note_attributes(path, drained)
        else:
            self._note_entry(path, name, mask, drained)

    def _note_entry(self, path: bytes, name: bytes, mask: int, drained: Drained) -> None:
        entry = path + b"/" + name if path else name
        # New rules may include what was never watched, so everything must be scanned.
        if entry == _RULES:
            raise _Lost(f"{FILE_NAME} was changed")
        if mask & _NAMES:
            drained.paths.add(path)
        if not mask & inotify.ISDIR:
            drained.paths.add(entry)
        elif mask & _NAMES:
            drained.renewed.add(entry)
        else:
            self._note_attributes(entry, drained)

    def _note_attributes(self, path: bytes, drained: Drained) -> None:
        drained.paths.add(path)
        if any(_is_within(denied, path) for denied in self._denied):
            drained.renewed.add(path)  # more may be readable now

    def _watch(self, queue: Inotify, tops: list[bytes]) -> None:
        """Watch what is now at and below some paths, and stop watching what was there before.

        A directory is watched before it is listed, so nothing is missed: later events are in the
        next drain. Directories that were moved keep their watches under the new paths.
        """
        stale: set[int] = set()
        # Detach all of them before watching any: a directory moved between two of them keeps its
        # watch only if its old path was forgotten first.
        for top in tops:
            stale |= self._watched.detach(top)
            self._denied = {path for path in self._denied if not _is_within(path, top)}
        for top in tops:
            name = top.rpartition(b"/")[2]
            if not top or self._rules.rule(top, name, is_directory=True) is None:
                self._watch_below(queue, top, stale)
        # Last, so that a directory that only moved has got its watch under the new path.
        for descriptor in stale:
            queue.remove(descriptor)

    def _watch_below(self, queue: Inotify, top: bytes, stale: set[int]) -> None:
        pending = [top]
        while pending:
            path = pending.pop()
            try:
                # Watch first, then list: an entry made after the listing shows up as an event.
                self._add(queue, path, stale)
                pending += self._directories(path)
            except OSError as error:
                # A directory may be gone or closed again by now; only the root must be there.
                if not path or not isinstance(error, _PASSING):
                    raise
                if isinstance(error, PermissionError):
                    self._denied.add(path)  # not capturable either, until its mode changes

    def _add(self, queue: Inotify, path: bytes, stale: set[int]) -> None:
        place = self._root + b"/" + path
        descriptor = queue.add(place, _BELOW if path else _ROOT)
        other = self._watched.path(descriptor)
        if other is not None and other != path:
            if _is_same_place(self._root + b"/" + other, place):
                raise _Lost(f"{os.fsdecode(path)} and {os.fsdecode(other)} are one directory")
            stale |= self._watched.detach(other)  # just moved; its parent reports that
        stale.discard(descriptor)
        stale |= self._watched.add(descriptor, path)

    def _directories(self, path: bytes) -> list[bytes]:
        base = path + b"/" if path else b""
        rule = self._rules.rule
        with os.scandir(self._root + b"/" + path) as listing:
            return [
                base + entry.name
                for entry in listing
                if entry.is_dir(follow_symlinks=False)
                and rule(base + entry.name, entry.name, is_directory=True) is None
            ]


class _Watched:
    """One-to-one map between descriptors and directories."""

    def __init__(self) -> None:
        self._paths: dict[int, bytes] = {}
        self._descriptors: dict[bytes, int] = {}
        self._children: dict[bytes, dict[bytes, None]] = {}  # no sets: see SeenDirectory

    def path(self, descriptor: int) -> bytes | None:
        return self._paths.get(descriptor)

    def add(self, descriptor: int, path: bytes) -> set[int]:
        """Map a descriptor to a path; return any descriptor it replaces."""
        before = {self._descriptors.get(path, descriptor)} - {descriptor}
        for other in before:
            del self._paths[other]
        self._paths[descriptor] = path
        self._descriptors[path] = descriptor
        if path:
            self._children.setdefault(path.rpartition(b"/")[0], {})[path] = None
        return before

    def drop(self, descriptor: int) -> None:
        """Forget one directory that is gone, but not what is below it."""
        path = self._paths.pop(descriptor)
        del self._descriptors[path]

    def detach(self, top: bytes) -> set[int]:
        """Forget a directory and everything below it; return their descriptors."""
        siblings = self._children.get(top.rpartition(b"/")[0])
        if top and siblings is not None:
            siblings.pop(top, None)
        found = set()
        pending = [top]
        while pending:
            path = pending.pop()
            descriptor = self._descriptors.pop(path, None)
            if descriptor is not None:
                del self._paths[descriptor]
                found.add(descriptor)
            pending += self._children.pop(path, ())
        return found


def _topmost(paths: Iterable[bytes]) -> list[bytes]:
    """Return the paths that are not below any other of them."""
    found: list[bytes] = []
    for path in sorted(paths, key=lambda path: path.split(b"/")):
        if not found or not _is_within(path, found[-1]):
            found.append(path)
    return found


def _is_within(path: bytes, top: bytes) -> bool:
    return not top or path == top or path.startswith(top + b"/")


def _identity(path: bytes) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _is_same_place(one: bytes, other: bytes) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def _explained(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the system allows no more watches (fs.inotify.max_user_watches)"
    if error.errno == errno.EMFILE:
        return "the system allows no more watchers (fs.inotify.max_user_instances)"
    return f"the workspace cannot be watched: {error.strerror}"
