"""Replacing a damaged journal by a rebuilt one, while no process has it open.

The rebuilt file is made in a directory of its own, checked page by page and synced. Then it takes
the place of ``data.mdb`` by one rename, under the lock that a compaction takes as well. The damaged
file is linked to another name before, so it is never without one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from uuid import uuid4

import lmdb

from mulligan.errors import ReadOnlyStore, StoreInUse
from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.journal.lmdb import clean_close, compact, layout, pages
from mulligan.journal.lmdb.clean_close import DATA
from mulligan.journal.lmdb.errors import translated
from mulligan.journal.lmdb.examine import commits_lost
from mulligan.journal.lmdb.lockfile import LockFile
from mulligan.journal.lmdb.map_size import map_sizes, named
from mulligan.journal.lmdb.salvage import PAGE_SIZES
from mulligan.journal.protocol import TABLES
from mulligan.owner import make_directory, open_as_owner

PREFIX = "repair-"

SLICE_RECORDS = 10_000
"""How many records one transaction writes, which bounds the memory."""


@contextmanager
def locked(directory: Path) -> Iterator[LockFile]:
    """Keep every other process from opening a journal; raises ``StoreInUse`` if one has it open.

    Raises ``ReadOnlyStore`` if the journal cannot be written. This process must not have it open,
    either, until the end of the block.
    """
    lock = LockFile(directory, create=True)
    try:
        if not lock.lock_alone():
            if lock.is_read_only:
                raise ReadOnlyStore(f"The store at {directory.parent} cannot be written.")
            raise StoreInUse(f"Another process has the store {directory.parent} open.")
        yield lock
    finally:
        # Closes the descriptor, which releases the lock.
        lock.release()


def damage_of(directory: Path) -> dict[str, str]:
    """Return what is wrong with the pages of a journal, by table; the caller has it locked."""
    try:
        fd = os.open(directory / DATA, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        return {DATA: f"it cannot be opened: {error.strerror}"}
    try:
        newest, before = layout.commits(fd)
        if newest.number - before.number not in ((1,) if newest.number else (0,)):
            return {DATA: "its newest commits do not follow each other"}
        return pages.check(fd, newest)
    except (layout.Unreadable, OSError) as error:
        return {DATA: str(error)}
    finally:
        os.close(fd)


def is_older_copy(directory: Path) -> bool:
    """Whether a journal lacks commits that it is known to have had."""
    try:
        fd = os.open(directory / DATA, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return commits_lost(directory, layout.commits(fd)[0].number) > 0
    # Damage is for ``damage_of`` to report; here only the number of a readable commit counts.
    except layout.Unreadable:
        return False
    finally:
        os.close(fd)


def remove_rebuilt(directory: Path) -> None:
    """Remove what killed repairs left; the caller has the journal locked."""
    for abandoned in directory.glob(f"{PREFIX}*"):
        # What cannot be removed now is removed by the next repair; no reader looks at it.
        shutil.rmtree(abandoned, ignore_errors=True)


Content = Mapping[str, Iterable[tuple[bytes, bytes]]]
"""The records of tables by name, each table's in any order."""


class RebuiltJournal:
    """A rebuilt journal on its way into place; ``discard`` removes what is left of it."""

    def __init__(self, directory: Path, failpoint: FailpointHook) -> None:
        self._directory = directory
        self._failpoint = failpoint
        self._home = directory / f"{PREFIX}{uuid4().hex}"
        self._number = 0

    def write(self, content: Content) -> None:
        """Write all tables, check the result and make it durable; raises ``DiskFull``."""
        make_directory(self._home)
        with translated(f"the journal in {self._directory}"):
            env = self._opened()
            try:
                # LMDB's own file has free pages and low commit numbers, so a compact and renumbered
                # copy of it is what takes the place of the journal.
                _fill(env, content)
                self._copy(env)
            finally:
                env.close()
        self._failpoint(Failpoint.REPAIR_JOURNAL_WRITTEN)

    def put_in_place(self, lock: LockFile, aside: Path | None) -> None:
        """Replace the journal's file; the old one is kept under the name ``aside``."""
        file = self._directory / DATA
        if aside is not None and file.exists() and not aside.exists():
            # A link needs no space, and the file is never without a name.
            os.link(file, aside, follow_symlinks=False)
            # Before the rename below: after it, this link is the only name of the damaged file.
            _sync(aside.parent)
        # See ``compact``: who waits for the lock must not trust what it says of the old file.
        lock.invalidate()
        self._failpoint(Failpoint.REPAIR_LOCKED)
        os.replace(self._home / compact.PREFIX, file)
        # The rename is durable before the store is used: otherwise a power cut could bring back the
        # damaged file after commits to the new one.
        _sync(self._directory)
        self._failpoint(Failpoint.REPAIR_SWAPPED)
        # Only saves the next open a check of all pages, which were just checked.
        with suppress(OSError):
            clean_close.write(self._directory, clean_close.look(file), self._number)
        self.discard()

    def discard(self) -> None:
        """Remove what is left of it."""
        shutil.rmtree(self._home, ignore_errors=True)

    def _opened(self) -> lmdb.Environment:
        size = next(iter(map_sizes(self._home / DATA, read_only=False)))
        # Not synced: nothing of it counts before the copy of it is.
        with named(self._home) as name:
            return lmdb.open(name, map_size=size, max_dbs=32, mode=0o600, sync=False)

    def _copy(self, env: lmdb.Environment) -> None:
        """Write the compact file that takes the place of the old one."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = open_as_owner(self._home / compact.PREFIX, flags)
        try:
            env.copyfd(fd, compact=True)
            # Numbers go on from those of the damaged file: a lower one would look like an older
            # copy.
            self._number = layout.renumber(fd, _last_commit(self._directory))
            newest = layout.commits(fd)[0]
            if damage := pages.check(fd, newest):
                raise layout.Unreadable(f"the rebuilt journal is damaged: {damage}")
            # Before the rename: the name must never lead to bytes that a power cut can take away.
            os.fsync(fd)
        finally:
            os.close(fd)


def _fill(env: lmdb.Environment, content: Content) -> None:
    databases = {name: env.open_db(name.encode()) for name in TABLES}
    for name, database in databases.items():
        records = iter(sorted(content.get(name, ())))
        while part := list(islice(records, SLICE_RECORDS)):
            with env.begin(write=True) as txn, txn.cursor(db=database) as cursor:
                # In order, so that pages are filled completely.
                cursor.putmulti(part, append=True)


def _last_commit(directory: Path) -> int:
    """Return the highest number of a commit that the journal is known to have had."""
    mark = clean_close.read(directory)
    numbers = [mark.highest if mark else 0]
    with suppress(OSError):
        fd = os.open(directory / DATA, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            numbers += [commit.number for commit in layout.single_commits(fd, PAGE_SIZES)]
        finally:
            os.close(fd)
    # A flipped bit in a number must not use up all numbers.
    return max(number for number in numbers if number < 1 << 48)


def _sync(directory: Path) -> None:
    """Make names in a directory durable: the sync of a file does not cover them."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
