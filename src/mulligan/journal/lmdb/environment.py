"""The LMDB environment that all handles of a process share: opening, reopening, closing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import lmdb

from mulligan.errors import (
    DamagedJournal,
    StoreClosed,
    StoreGone,
    StoreUnwritable,
)
from mulligan.journal.lmdb import clean_close, layout, leave
from mulligan.journal.lmdb.clean_close import DATA
from mulligan.journal.lmdb.errors import translated, translation
from mulligan.journal.lmdb.examine import Verdict, check_commit, commits_lost, examine
from mulligan.journal.lmdb.lockfile import LockFile
from mulligan.journal.lmdb.map_size import MAP_SIZE, needs_growth, open_map
from mulligan.journal.protocol import ALL_TABLES, LATER_TABLES, TABLES, Examined
from mulligan.journal.records import STORE

CLOSE_WAIT_SECONDS = 5.0
"""Seconds that closing and reopening wait for the transactions of other threads."""

_MAX_EXAMINATIONS = 20
"""How often a check of the newest commit is restarted when writers overtake it."""

_WAY_OUT = (
    "Nothing was changed, and the objects are untouched. `mulligan verify` names what is damaged, "
    "`mulligan verify --repair` rebuilds it."
)

_ACCEPT_HINT = f"delete journal/{clean_close.NAME}"

FORK_WAIT_SECONDS = 5.0
"""Seconds that a fork waits for the transactions of other threads."""

Key = tuple[int, int]


class OpenTables(dict[str, "lmdb._Database | None"]):
    """The tables by name; damaged ones are refused, so that LMDB never reads them.

    A table that a store of an earlier version lacks is None, and is read as an empty one.
    """

    damage: dict[str, str]

    def __missing__(self, name: str) -> lmdb._Database | None:
        raise self.refusal(name)

    def refusal(self, name: str) -> DamagedJournal:
        """Return the error for a table that cannot be read."""
        detail = self.damage.get(name) or self.damage.get(ALL_TABLES) or "it is missing"
        return damaged({name: detail})


def damaged(damage: dict[str, str]) -> DamagedJournal:
    """Return the error for damage to tables."""
    from mulligan.journal.lmdb import pages  # a journal that is intact does not need it

    name, detail = next(iter(damage.items()))
    where = {ALL_TABLES: "", pages.FREE: f", {name}"}.get(name, f", table {name!r}")
    return DamagedJournal(f"The journal is damaged{where}: {detail}.", hint=_WAY_OUT)


class Environment:
    """One LMDB environment, shared by every handle of this process on the same directory.

    With ``salvage``, a damaged one is opened too, to read its intact tables.
    """

    env: lmdb.Environment | None
    tables: OpenTables
    checked: tuple[clean_close.Look, int] | None
    """The fields and the commit of a file in doubt, until :meth:`mark_checked`."""
    _lock_file: LockFile | None

    def __init__(self, directory: Path, *, read_only: bool, salvage: bool = False) -> None:
        self.pid = os.getpid()
        self.users = 1
        self.active = 0
        self._by_thread: dict[int, int] = {}
        self.directory = directory
        self._file = str(directory / DATA)
        self.read_only = read_only
        self.closed = False
        self.env = None
        self._salvage = salvage
        self.renew_lock()
        self._waiting = 0
        self._needs_reopen = False
        self._is_limited = False
        self._left: clean_close.Look | None = None
        self._next_look = 0.0
        self.is_asking = False
        """Whether this process asks others to leave; see ``mulligan.journal.lmdb.leave``."""
        self.replacements: list[tuple[Key, Key]] = []
        """The files that this process replaced by compact copies, and those copies."""
        self._open(may_be_new=not read_only)

    @property
    def opened_environment(self) -> lmdb.Environment:
        """LMDB's environment, for callers inside a transaction."""
        if self.env is None:
            raise damaged(self.tables.damage)
        return self.env

    @property
    def is_used_by_this_thread(self) -> bool:
        """Whether this thread has a transaction open."""
        return threading.get_ident() in self._by_thread

    @property
    def is_used_elsewhere(self) -> bool:
        """Whether another process has the journal open, as far as the lock file shows."""
        return self._lock_file is None or self._lock_file.is_used_elsewhere()

    def lost_commits(self) -> int:
        """Return how many known commits the file lacks: it was restored from an older copy."""
        # Inside a transaction, so that no other thread reopens the environment meanwhile.
        txn = self.begin()
        try:
            newest = self.opened_environment.info()["last_txnid"]
        finally:
            txn.abort()
            del txn
            self.leave()
        return commits_lost(self.directory, newest)

    def other_user(self) -> int | None:
        """Return another process that has the journal open, as far as the lock file shows."""
        return None if self._lock_file is None else self._lock_file.other_user()

    def replace(self, swap: Callable[[LockFile], str | None]) -> tuple[str | None, float]:
        """Let ``swap`` replace the file while no process has it open; return why it was not.

        Other threads wait, and so do processes that open the journal meanwhile; also returned is
        how long, in seconds.
        """
        from mulligan.journal.lmdb import compact  # only upkeep needs it

        with self._lock:
            # Other threads may be inside LMDB; closing it under them would crash the process.
            if not self._wait_for(lambda: self.active == 0):
                return compact.BUSY, 0.0
            if self.closed or self._lock_file is None or self.env is None:
                return compact.IN_USE, 0.0
            started = time.monotonic()
            skipped = self._replaced(swap, self._lock_file, self.env)
            return skipped, time.monotonic() - started

    def _replaced(
        self, swap: Callable[[LockFile], str | None], lock: LockFile, env: lmdb.Environment
    ) -> str | None:
        from mulligan.journal.lmdb import compact

        left, self._left, number = self._left, None, env.info()["last_txnid"]
        env.close()
        self.env = None
        skipped: str | None = compact.IN_USE
        # The lock file stays open until the end: closing the descriptor would drop the lock.
        before = identity(self.directory / DATA)
        try:
            skipped = swap(lock) if lock.lock_alone() else compact.IN_USE
            if skipped is not None and left is not None:
                # Only now: the mark of a file that is replaced would be computed in vain.
                self._mark_if_same(left, number)
            return skipped
        finally:
            self.replacements.append((before, identity(self.directory / DATA)))
            self._needs_reopen = True  # in case that opening it fails
            try:
                # A copy that was put in place was checked page by page before.
                self._open(may_be_new=False, is_checked=skipped is None)
            finally:
                lock.release()
            self._needs_reopen = False

    @property
    def is_lost(self) -> bool:
        """Whether the file is so damaged that LMDB must not open it, not even for reading."""
        return self._salvage and ALL_TABLES in self.tables.damage

    def begin(self, *, write: bool = False) -> lmdb.Transaction[bytes]:
        """Begin a transaction; raises LMDB's errors.

        It ends with ``leave``, after the last reference to it is gone: a forked process can open
        LMDB only if no thread of its parent refers to the parent's environment.
        """
        try:
            return self._begin_once(write)
        except (lmdb.PanicError, lmdb.MapResizedError):
            # A commit failed in another thread, or another process outgrew this map.
            self.require_reopen()
            return self._begin_once(write)

    def _begin_once(self, write: bool) -> lmdb.Transaction[bytes]:
        is_counted = False
        try:
            with self._lock:
                self._prepare(write)
                thread = threading.get_ident()
                # Counted before LMDB is entered: a reopen waits until no thread is inside.
                self._by_thread[thread] = self._by_thread.get(thread, 0) + 1
                self.active += 1
                is_counted = True
            if self.env is None:  # nothing can be salvaged
                raise damaged(self.tables.damage)
            # Without the lock: this may wait for a writer in another process.
            return self.env.begin(write=write)
        except BaseException:  # a signal, too, wherever it arrives
            if is_counted:
                self.leave()
            raise

    def _prepare(self, write: bool) -> None:
        """Reopen the environment before a transaction if that is due; needs the lock."""
        # Waiting inside a transaction would be in vain: what it waits for waits for its end.
        is_inside = self.is_used_by_this_thread
        if self._is_paused and not is_inside:
            # Bounded: the forking thread may in turn be waiting for this one.
            self._idle.wait_for(lambda: not self._is_paused, FORK_WAIT_SECONDS)
        if self.closed:
            raise StoreClosed("This store was closed.")
        if time.monotonic() >= self._next_look and not is_inside:
            self._leave_if_asked()
        if self._needs_reopen or (write and self._is_nearly_full()):
            self._reopen()

    def _leave_if_asked(self) -> None:
        """Close the environment until another process has replaced its file; needs the lock."""
        self._next_look = time.monotonic() + leave.LOOK_SECONDS
        fd = None if self.is_asking or self.env is None else leave.asked(self.directory)
        if fd is None:
            return
        # LMDB must not be closed under a transaction. If a thread reads for long, this process
        # stays, and the one that asks finds the file in use.
        if not self._wait_for(lambda: self.active == 0) or self.closed or self.env is None:
            os.close(fd)
            return
        # Remembered: what is at the path after the wait may be another store that was moved here.
        before, store = identity(self.directory / DATA), self._store()
        self._needs_reopen = True  # in case that opening it fails
        self.shut()
        # After the close: the other process waits until no process has the file open, and both
        # would wait for each other.
        leave.wait(fd)
        self._open(may_be_new=False)
        self._needs_reopen = False
        if self._store() != store:
            raise StoreGone(f"The store at {self.directory.parent} was replaced by another one.")
        self.replacements.append((before, identity(self.directory / DATA)))

    def _store(self) -> bytes | None:
        """Return the record of the store that the journal belongs to."""
        env, table = self.opened_environment, self.tables["meta"]
        with env.begin() as txn:
            return None if table is None else txn.get(STORE, db=table)

    def leave(self, thread: int | None = None) -> None:
        """A transaction has ended, which this thread began, or the one that is given."""
        thread = thread or threading.get_ident()
        with self._lock:
            self.active -= 1
            self._by_thread[thread] -= 1
            if not self._by_thread[thread]:
                del self._by_thread[thread]
                if self._waiting:
                    self._idle.notify_all()

    def require_reopen(self) -> None:
        """Reopen the environment before it is used again.

        After a disk error, LMDB refuses all further work. A second sync on the same descriptor
        would report success for pages that the kernel has already dropped.
        """
        self._needs_reopen = True

    def committed(self) -> None:
        """Remember the file's fields after a commit of this process."""
        try:
            self._left = clean_close.look(self._file)
        except OSError:  # the store was removed while open: there is nothing to mark as clean
            self._left = None

    def mark_checked(self) -> None:
        """Mark a file that was in doubt as checked, if it can be written."""
        if self.checked is not None:
            # Only a hint: if it cannot be written, the next open checks the file again.
            with suppress(OSError):
                clean_close.write(self.directory, *self.checked)
            self.checked = None

    def examine(self) -> Examined:
        """Check every page of the newest commit, and refuse damaged tables from then on."""
        if self.is_lost or not layout.has_known_pages():
            return Examined(dict(self.tables.damage), storage=DATA)
        # None: a writer has made two more commits since, and only the two newest are on record.
        for _ in range(_MAX_EXAMINATIONS):
            found = self._examined()
            if found is not None:
                break
        else:
            raise StoreUnwritable("The journal changes too quickly to be checked.")
        # Damage that was known before stays known: a page that reads well once may fail the next
        # time.
        damage, number = {**self.tables.damage, **found[0]}, found[1]
        self.tables.damage = damage
        for name in TABLES:
            if name in damage or ALL_TABLES in damage:
                self.tables.pop(name, None)
        return Examined(damage, commits_lost(self.directory, number), DATA, _ACCEPT_HINT)

    def _examined(self) -> tuple[dict[str, str], int] | None:
        # While a reader holds a commit, no writer reuses its pages.
        txn = self.begin()
        try:
            found = check_commit(self.directory, txn.id())
            return None if found is None else (found, txn.id())
        finally:
            txn.abort()
            del txn
            self.leave()

    def close(self) -> bool:
        """Close after the transactions of other threads have ended; return whether they did.

        Closing LMDB under an open transaction would crash the process. So if they do not end in
        time, it is left open.
        """
        with self._lock:
            if not self._wait_for(lambda: self.active == 0):
                return False
            self.closed = True
            self.shut()
            return True

    def shut(self) -> None:
        """Close at once: this process has no open transaction here."""
        self.mark_clean()
        # The lock file last: closing its descriptor drops the locks that LMDB has on it.
        if self.env is not None:
            self.env.close()
            self.env = None
        if self._lock_file is not None:
            self._lock_file.release()
            self._lock_file = None

    def renew_lock(self) -> None:
        """Replace the lock with a free one: in a forked process, its owner may not exist."""
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._is_paused = False

    def pause(self) -> bool:
        """Wait for open transactions and start none until ``resume``; return whether they ended.

        A transaction of another thread would never end in a process forked in the meantime.
        """
        # Not forever: the owner may wait for the thread that forks.
        if not self._lock.acquire(timeout=FORK_WAIT_SECONDS):
            return False
        self._is_paused = True  # the wait below releases the lock
        # Those of the thread that forks cannot end before the fork.
        own = {threading.get_ident()}
        try:
            self._wait_for(lambda: self._by_thread.keys() <= own, FORK_WAIT_SECONDS)
        except BaseException:
            # A signal: Python forks nevertheless, and nothing would resume it.
            self.resume()
            raise
        return True

    def resume(self) -> None:
        """Allow new transactions again."""
        self._is_paused = False
        self._idle.notify_all()
        # Still held since ``pause``, so that no transaction started during the fork.
        self._lock.release()

    def abandon(self) -> None:
        """Drop the environment inherited from the parent process.

        Closing it here would remove the parent's readers from the table that keeps writers off
        pages in use, and would wait for threads that do not exist here. So it is only dropped.
        """
        self.env = None
        self.tables = OpenTables()
        self.tables.damage = {}
        if self._lock_file is not None:
            self._lock_file.release()
            self._lock_file = None

    def mark_clean(self) -> None:
        """Write the mark of a clean close, if this process made the last commit."""
        left, self._left = self._left, None
        # A forked process did not make the commit that it inherited.
        if left is None or self.env is None or self.pid != os.getpid():
            return
        # Only a hint, and the store is closing: an environment that failed earlier is checked by
        # the next open anyway.
        with suppress(lmdb.Error):
            self._mark_if_same(left, self.env.info()["last_txnid"])

    def _mark_if_same(self, left: clean_close.Look, number: int) -> None:
        with suppress(OSError):
            # If another process has committed since, the mark is for that process to write.
            if clean_close.look(self.directory / DATA) == left:
                clean_close.write(self.directory, left, number)

    def _reopen(self) -> None:
        """Reopen the environment once no other thread uses it; the caller holds the lock."""
        if not self._wait_for(lambda: self.active == 0 or not self._must_reopen()):
            raise StoreUnwritable(
                "The journal has to be reopened, and another thread is reading it.",
                hint="Everything acknowledged before is safe. Try again.",
            )
        if self.closed:
            raise StoreClosed("This store was closed.")
        if self._must_reopen():
            self._needs_reopen = True
            self.shut()
            # Not new: LMDB would create a missing file, and an empty journal with it.
            self._open(may_be_new=False)
            self._needs_reopen = False
            self._idle.notify_all()  # other threads need not reopen it as well

    def _must_reopen(self) -> bool:
        """Whether it has to be reopened, and no other thread has done so in the meantime."""
        return self._needs_reopen or self._is_nearly_full()

    def _wait_for(self, is_over: Callable[[], bool], seconds: float = CLOSE_WAIT_SECONDS) -> bool:
        """Wait for the transactions of other threads; return whether they ended. Needs the lock."""
        self._waiting += 1
        try:
            return self._idle.wait_for(is_over, seconds)
        finally:
            self._waiting -= 1

    def _is_nearly_full(self) -> bool:
        if self.env is None or not self._is_limited:
            return False
        info = self.env.info()
        used = (info["last_pgno"] + 1) * self.env.stat()["psize"]
        return needs_growth(info["map_size"], used)

    def _open(self, *, may_be_new: bool, is_checked: bool = False) -> None:
        # Before LMDB locks the file and until after it is closed; see ``lockfile``.
        self._lock_file = _hold(self.directory, self.read_only)
        try:
            with translated(f"the journal in {self.directory}"):
                verdict = (
                    Verdict({})
                    if is_checked
                    else examine(self.directory, is_shared=self._is_shared, may_be_new=may_be_new)
                )
            self.checked = verdict.checked
            self.tables = OpenTables()
            self.tables.damage = verdict.damage
            if verdict.damage and not self._salvage:
                raise damaged(verdict.damage)
            if ALL_TABLES not in verdict.damage:
                self._open_environment()
        except BaseException:
            self.shut()
            raise

    def _is_shared(self) -> bool:
        return self._lock_file is not None and self._lock_file.is_used_elsewhere()

    def _open_environment(self) -> None:
        self.env = env = self._environment_of_present_file()
        self._lock_file = self._lock_file or _hold(self.directory, self.read_only)
        with translated(f"the journal in {self.directory}"):
            info = env.info()
            before, self._is_limited = info["last_txnid"], info["map_size"] < MAP_SIZE
            self._open_tables(env)
            if not self.read_only:
                # A killed reader keeps its slot, and with it pages that writers could reuse.
                env.reader_check()
            # Creating the tables was a commit of this process.
            if env.info()["last_txnid"] != before:
                self.committed()

    def _environment_of_present_file(self) -> lmdb.Environment:
        """Open LMDB; again if the file was replaced while this process waited for the lock."""
        while True:
            before = _identity_if_any(self.directory / DATA)
            env = open_map(self.directory, self._lock_file, read_only=self.read_only)
            # An open file keeps its inode number, so equal ones mean the same file.
            if before in (None, _identity_if_any(self.directory / DATA)):
                return env
            env.close()

    def _open_tables(self, env: lmdb.Environment) -> None:
        if not self.read_only:
            # In a transaction of ours: LMDB's own would keep every thread of this process
            # waiting for the current writer, not only this one.
            with env.begin(write=True) as txn:
                self.tables.update({n: env.open_db(n.encode(), txn=txn) for n in TABLES})
            return
        for name in TABLES:
            try:
                if name not in self.tables.damage:
                    self.tables[name] = env.open_db(name.encode(), create=False)
            except lmdb.NotFoundError:
                if name in LATER_TABLES:
                    self.tables[name] = None
                    continue
                if not self._salvage:
                    raise
                self.tables.damage[name] = "it is missing"


def identity(path: Path | str) -> Key:
    """Return the identity of a file or directory, independent of its path."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _identity_if_any(path: Path) -> Key | None:
    try:
        return identity(path)
    except FileNotFoundError:
        return None


def _hold(directory: Path, read_only: bool) -> LockFile | None:
    try:
        return LockFile(directory, create=not read_only)
    except FileNotFoundError:
        return None  # read-only media, without writers
    except OSError as error:
        if read_only:
            return None
        raise translation(error, f"the journal in {directory}") from error
