"""Make written files durable: one sync per filesystem where that is reliable, else one per file.

One sync of a whole filesystem replaces thousands, but only some filesystems guarantee it
(``syscalls.syncs_as_a_whole``). Elsewhere every file and directory is synced separately, several at
a time, so that they share the waits for the disk.
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
from mulligan.workspace.file_handles import close_file
from mulligan.workspace.handles import room_for

SYNC_THREADS = 2
"""Number of concurrent syncs: the disk does part of their work only once.

On a fast disk, starting more threads costs more than they save.
"""

MAX_UNSYNCED_FILES = 256
"""Maximum number of files held open until they are synced together."""

MAX_FILES_SYNCED_ONE_BY_ONE = 64
"""Up to this many files are synced one by one; above it, their filesystem is, where possible."""

Key = TypeVar("Key")
SyncsFilesystem = Callable[[int], bool]


class Syncer(Generic[Key]):
    """Collect open files and directories and sync them; errors are passed to ``failed``.

    Add a directory after everything that is done in it: only a later sync makes its entries
    durable. ``syncs_filesystem`` decides for an open file whether its filesystem is synced as a
    whole: ``many`` or ``few``, depending on how much there is to sync.
    """

    def __init__(
        self, failed: Callable[[Key, OSError], None], syncs_filesystem: SyncsFilesystem
    ) -> None:
        self._failed = failed
        self._syncs_filesystem = syncs_filesystem
        self._max_waiting = room_for(MAX_UNSYNCED_FILES)
        self._waiting: list[tuple[Key, int]] = []
        self._filesystems: dict[int, tuple[Key, int] | None] = {}
        """By device: the handle used to sync the whole filesystem, or None to sync each file."""

    def add(self, key: Key, handle: int) -> bool:
        """Register an open file or directory; the caller may close it afterwards.

        Return whether all files on its filesystem are synced with it.
        """
        device = os.fstat(handle).st_dev
        if device not in self._filesystems:
            syncs_filesystem = self._syncs_filesystem(handle)
            # Duplicated, because the caller closes its own; one handle per filesystem is enough for
            # syncfs.
            self._filesystems[device] = (key, os.dup(handle)) if syncs_filesystem else None
        if self._filesystems[device] is not None:
            return True
        # Start the write-back now: it runs while more files are written, and the fsync waits less.
        syscalls.start_sync(handle)
        self._waiting.append((key, os.dup(handle)))
        if len(self._waiting) >= self._max_waiting:
            self.flush()
        return False

    def flush(self) -> None:
        """Sync everything that is synced file by file."""
        waiting, self._waiting = self._waiting, []
        try:
            # Not retried: after a failed fsync the kernel may have dropped the dirty pages, and a
            # second call would report success.
            errors = sync_all(handle for _, handle in waiting)
        finally:
            for _, handle in waiting:
                close_file(handle)  # the host program may have locked this file
        for key, handle in waiting:
            if handle in errors:
                self._failed(key, errors[handle])

    def finish(self) -> None:
        """Make everything durable that was added."""
        self.flush()
        for key, handle in filter(None, self._filesystems.values()):
            try:
                # Last, because it covers only what was written before it, including the
                # directories.
                syscalls.sync_filesystem(handle)
            except OSError as error:
                self._failed(key, error)

    def close(self) -> None:
        """Close all handles. Idempotent."""
        for _, handle in [*self._waiting, *filter(None, self._filesystems.values())]:
            close_file(handle)
        self._waiting, self._filesystems = [], {}


def by_count(count: int) -> SyncsFilesystem:
    """Return how to sync this many files and directories: ``few`` or ``many``."""
    return few if count <= MAX_FILES_SYNCED_ONE_BY_ONE else many


def many(handle: int) -> bool:
    """Whether many files on a filesystem are synced by syncing the filesystem."""
    return syscalls.syncs_as_a_whole(handle)


def few(handle: int) -> bool:
    """Whether even a few files are synced by syncing the filesystem.

    Usually not, since that would wait for everything other programs have written. On btrfs they
    are: its log for single files may, when replayed after a power cut, bring back names that were
    deleted before the sync.
    """
    return syscalls.filesystem_type(handle) == syscalls.BTRFS and many(handle)


def sync_all(handles: Iterable[int]) -> dict[int, OSError]:
    """Sync open files and directories, and return the errors by handle."""
    left, lock = iter(list(handles)), Lock()
    errors: dict[int, OSError] = {}

    def rest() -> Iterator[int]:
        while True:
            with lock:
                # The threads take handles from one iterator, which is not thread-safe by itself.
                handle = next(left, None)
            if handle is None:
                return
            yield handle

    def work() -> None:
        for handle in rest():
            try:
                os.fsync(handle)
            except OSError as error:
                # Collected, not raised: the other files still have to be synced, and each failure
                # is reported with its path.
                errors[handle] = error

    others = []
    # Several at once: most of an fsync is waiting, and the disk can combine them.
    for _ in range(SYNC_THREADS - 1):
        thread = Thread(target=work, daemon=True)
        with suppress(RuntimeError):  # no more threads allowed; syncing just takes longer
            thread.start()
            others.append(thread)
    work()
    for thread in others:
        thread.join()
    return errors


def make_directories(path: Path) -> list[Path]:
    """Make a directory and its missing parents; return those created, outermost first.

    Their names are durable after :func:`sync_names`.
    """
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    made = missing[::-1]
    # exist_ok: another process may make the same parents at this moment.
    for directory in made:
        directory.mkdir(exist_ok=True)
    return made


def sync_names(paths: Iterable[Path]) -> None:
    """Make the names of new files or directories durable."""
    # Each parent once; the order of creation is kept, outermost first.
    for directory in dict.fromkeys(path.parent for path in paths):
        sync_directory(directory)
