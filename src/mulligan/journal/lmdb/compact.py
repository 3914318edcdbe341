"""Releasing LMDB's free pages: a compacting copy takes the place of the file.

LMDB never shrinks its file. The copy is written under a temporary name, checked page by page and
synced. Then this process closes its environment, locks the lock file's first byte exclusively, as a
move of the store does, and renames the copy into place. Every process that has the journal open
holds that byte shared, so no process uses the old file any more; those that open it meanwhile wait.

``lock.mdb`` stays, because waiting processes have it open already. It records the newest commit, so
it is invalidated before the rename, and initialised by the process that opens the journal next. The
copy's commits continue the numbers of the original: an older copy is recognised by them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import lmdb

from mulligan.errors import DiskFull
from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.journal.lmdb import clean_close, layout, leave, pages
from mulligan.journal.lmdb.clean_close import DATA
from mulligan.journal.lmdb.errors import translation
from mulligan.journal.protocol import Compacted
from mulligan.owner import open_as_owner

if TYPE_CHECKING:
    from mulligan.journal.lmdb.environment import Environment
    from mulligan.journal.lmdb.lockfile import LockFile

MIN_FREE_BYTES, MIN_FREE_SHARE = 8 << 20, 0.25
"""How much of the file must be free pages for a copy to be worthwhile."""

PREFIX = "compact-"

IN_USE = "the journal: other processes have it open"
BUSY = "the journal: it is being written"
UNKNOWN_PAGES = "the journal: its pages are not those of this version of LMDB"
NO_ROOM = "the journal: there is no room for a copy of it"


def compact(
    shared: Environment, failpoint: FailpointHook, *, patience: float | None = None
) -> Compacted:
    """Replace the file by a compact copy, if that is worthwhile and no other process has it open.

    The caller holds the upkeep lock: one process at a time compacts.
    """
    for abandoned in shared.directory.glob(f"{PREFIX}*"):
        # Left by compactions that were killed. The upkeep lock makes sure that none is running.
        abandoned.unlink(missing_ok=True)
    if not layout.has_known_pages():
        return Compacted(skipped=None if patience is None else UNKNOWN_PAGES)
    if patience is None and not _is_worthwhile(shared):
        return Compacted()
    if not patience:
        return _compact_alone(shared, failpoint)
    # Otherwise this process would see its own request, and leave as well.
    shared.is_asking = True
    try:
        with leave.asking(shared.directory, lambda: shared.is_used_elsewhere, patience):
            return _compact_alone(shared, failpoint)
    finally:
        shared.is_asking = False


def _compact_alone(shared: Environment, failpoint: FailpointHook) -> Compacted:
    if shared.is_used_elsewhere:
        return Compacted(skipped=IN_USE)
    return _Compaction(shared, failpoint).run()


def _is_worthwhile(shared: Environment) -> bool:
    used, size, page = _pages_used(shared)
    free = size - used
    return free * page > MIN_FREE_BYTES and free > MIN_FREE_SHARE * size


def _pages_used(shared: Environment) -> tuple[int, int, int]:
    """Return how many pages are in use, how many the file has, and the size of one."""
    txn = shared.begin()
    try:
        env = shared.opened_environment
        stats = [txn.stat(db) for db in shared.tables.values() if db is not None]
        stats.append(env.stat())
        used = sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)
        return used + layout.META_PAGES, env.info()["last_pgno"] + 1, env.stat()["psize"]
    finally:
        txn.abort()
        del txn
        shared.leave()


class _Compaction:
    def __init__(self, shared: Environment, failpoint: FailpointHook) -> None:
        self._shared = shared
        self._failpoint = failpoint
        self._file = shared.directory / DATA
        self._draft = shared.directory / f"{PREFIX}{uuid4().hex}"
        self._copied = self._number = 0
        self._digest = ""

    def run(self) -> Compacted:
        before = os.stat(self._file).st_blocks
        try:
            # A name of its own: never write through a file or link that is there already.
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            fd = open_as_owner(self._draft, flags)
            try:
                self._copy(fd)
            finally:
                os.close(fd)
            self._failpoint(Failpoint.COMPACT_COPIED)
            skipped, held = self._shared.replace(self._swap)
        except (lmdb.Error, OSError) as error:
            if not _is_full(error):
                raise
            return Compacted(skipped=NO_ROOM)
        finally:
            with suppress(OSError):  # the next compaction deletes it
                self._draft.unlink(missing_ok=True)
        if skipped is not None:
            return Compacted(skipped=skipped, held=held)
        self._failpoint(Failpoint.COMPACT_REOPENED)
        return Compacted(max(0, before - os.stat(self._file).st_blocks) * 512, held=held)

    def _copy(self, fd: int) -> None:
        """Write the copy, with commit numbers that follow those of the original, and check it."""
        # Inside a transaction, so that no other thread reopens the environment meanwhile.
        txn = self._shared.begin()
        try:
            self._copied = txn.id()
            self._shared.opened_environment.copyfd(fd, compact=True)
        finally:
            txn.abort()
            del txn
            self._shared.leave()
        self._number = layout.renumber(fd, self._copied)
        newest = layout.commits(fd)[0]
        damage = pages.check(fd, newest)
        if damage or newest.number != self._number:
            raise layout.Unreadable(f"the compact copy of the journal is damaged: {damage}")
        # Before the rename: the name must never lead to bytes that a power cut can take away.
        os.fsync(fd)
        # Before the swap, during which all threads of this process wait.
        self._digest = clean_close.digest(fd, os.fstat(fd).st_size)

    def _swap(self, lock: LockFile) -> str | None:
        """Put the copy in place; return why not. No process has the journal open, nor this one."""
        # Compared under the lock: a process that committed after the copy was made has put events
        # into the old file that the copy lacks.
        if _newest(self._file) != self._copied:
            return BUSY
        # Before the rename: a process that waits for the lock would otherwise look for the newest
        # commit where the old file had it.
        lock.invalidate()
        self._failpoint(Failpoint.COMPACT_LOCKED)
        os.replace(self._draft, self._file)
        # Before the file is opened again: a commit to the copy must not be lost with its name.
        _sync(self._shared.directory)
        self._failpoint(Failpoint.COMPACT_SWAPPED)
        # Only saves the next open a check of all pages, which were just checked.
        with suppress(OSError):
            look = clean_close.look(self._file)
            clean_close.write(self._shared.directory, look, self._number, self._digest)
        return None


def _newest(file: Path) -> int:
    with _opened(file) as fd:
        return layout.commits(fd)[0].number


def _sync(directory: Path) -> None:
    """Make renames in a directory durable: the sync of a file does not cover its name."""
    with _opened(directory) as fd:
        os.fsync(fd)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_full(error: Exception) -> bool:
    return isinstance(translation(error, DATA), DiskFull)
