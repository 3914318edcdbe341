"""Making what was written durable: filesystem by filesystem where that can be relied on, else each.

One sync of a whole filesystem takes the place of thousands, but only some filesystems keep that
promise (``syscalls.syncs_as_a_whole``). Elsewhere every file and directory is synced by itself,
several at a time: they share what one alone would have to wait for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Generic, TypeVar

from mulligan.layout import sync_directory
from mulligan.workspace import syscalls
from mulligan.workspace.handles import room_for

SYNC_THREADS = 2
"""How many syncs are under way together: the disk does some of their work once.

More would take longer to start than they save where the disk is quick.
"""

MAX_UNSYNCED_FILES = 256
"""How many files are held open at most until they are synced together."""

MAX_FILES_SYNCED_ONE_BY_ONE = 64
"""Up to this many files are synced each; beyond it, their filesystem once, if that can be."""

Key = TypeVar("Key")
IsWhole = Callable[[int], bool]


class Syncer(Generic[Key]):
    """Collects open files and directories, and syncs them; ``failed`` is told of errors.

    A directory has to be added after everything that is done in it: its entries are durable only
    by a sync that follows. ``is_whole`` tells of an open file whether its filesystem is to be
    synced as a whole: ``many`` or ``few``, by how much there is to sync.
    """

    def __init__(self, failed: Callable[[Key, OSError], None], is_whole: IsWhole) -> None:
        self._failed = failed
        self._is_whole = is_whole
        self._most = room_for(MAX_UNSYNCED_FILES)
        self._waiting: list[tuple[Key, int]] = []
        self._wholes: dict[int, tuple[Key, int] | None] = {}
        """By device: what stands for a filesystem to be synced as a whole; None for no such one."""

    def add(self, key: Key, handle: int) -> None:
        """Take note of an open file or directory, which may be closed from now on."""
        device = os.fstat(handle).st_dev
        if device not in self._wholes:
            is_whole = self._is_whole(handle)
            self._wholes[device] = (key, os.dup(handle)) if is_whole else None
        if self._wholes[device] is not None:
            return
        syscalls.start_sync(handle)
        self._waiting.append((key, os.dup(handle)))
        if len(self._waiting) >= self._most:
            self.flush()

    def flush(self) -> None:
        """Sync all that is to be synced by itself."""
        waiting, self._waiting = self._waiting, []
        try:
            errors = sync_all(handle for _, handle in waiting)
        finally:
            for _, handle in waiting:
                os.close(handle)
        for key, handle in waiting:
            if handle in errors:
                self._failed(key, errors[handle])

    def finish(self) -> None:
        """Make everything durable that was added."""
        self.flush()
        for key, handle in filter(None, self._wholes.values()):
            try:
                syscalls.sync_filesystem(handle)
            except OSError as error:
                self._failed(key, error)

    def close(self) -> None:
        """Let go of all files. Idempotent."""
        for _, handle in [*self._waiting, *filter(None, self._wholes.values())]:
            os.close(handle)
        self._waiting, self._wholes = [], {}


def by_count(count: int) -> IsWhole:
    """Return how to sync so many files and directories: ``few`` or ``many``."""
    return few if count <= MAX_FILES_SYNCED_ONE_BY_ONE else many


def many(handle: int) -> bool:
    """Whether many files on a filesystem are synced with it as a whole."""
    return syscalls.syncs_as_a_whole(handle)


def few(handle: int) -> bool:
    """Whether even few are, which else need not wait for all that others have written.

    On btrfs they are: the log that it writes for single files may, when it is replayed after a
    power cut, bring back names that were deleted before the sync.
    """
    return syscalls.filesystem_type(handle) == syscalls.BTRFS and many(handle)


def sync_all(handles: Iterable[int]) -> dict[int, OSError]:
    """Sync open files and directories, and return the errors of those where it failed."""
    left, lock = iter(list(handles)), Lock()
    errors: dict[int, OSError] = {}

    def rest() -> Iterator[int]:
        while True:
            with lock:
                handle = next(left, None)
            if handle is None:
                return
            yield handle

    def work() -> None:
        for handle in rest():
            try:
                os.fsync(handle)
            except OSError as error:
                errors[handle] = error

    others = []
    for _ in range(SYNC_THREADS - 1):
        thread = Thread(target=work, daemon=True)
        with suppress(RuntimeError):  # the system allows no more: then it takes longer
            thread.start()
            others.append(thread)
    work()
    for thread in others:
        thread.join()
    return errors


def make_directories(path: Path) -> list[Path]:
    """Make a directory and those above it that are missing; return them, outermost first.

    Their names are durable after :func:`sync_names`.
    """
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    made = missing[::-1]
    for directory in made:
        directory.mkdir(exist_ok=True)
    return made


def sync_names(paths: Iterable[Path]) -> None:
    """Make the names of new files or directories durable."""
    for directory in dict.fromkeys(path.parent for path in paths):
        sync_directory(directory)
