"""Ordered tables in LMDB: many processes, one writer at a time, every commit synced."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING

import lmdb

from mulligan.errors import ReadOnlyStore, StoreClosed
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.journal.lmdb.clean_close import DATA
from mulligan.journal.lmdb.environment import Environment, OpenTables, damaged, identity
from mulligan.journal.lmdb.errors import commit_failure, translated, translation
from mulligan.journal.lmdb.examine import NO_FILE
from mulligan.journal.lmdb.open_environments import acquire, drop, release
from mulligan.journal.protocol import Presence

if TYPE_CHECKING:
    from mulligan.journal.lmdb.write_lock import LockWaitMonitor
    from mulligan.journal.lock_owner import OnWait
    from mulligan.journal.protocol import Compacted, Examined


def require_file(directory: Path) -> None:
    """Raise ``DamagedJournal`` if the file of an existing journal is gone or empty."""
    try:
        size = os.stat(directory / DATA).st_size
    except FileNotFoundError:
        size = 0
    if not size:
        raise damaged(NO_FILE.damage)


class LmdbTables:
    """Ordered tables in the LMDB environment of a directory.

    Opening raises ``DamagedJournal`` for a file that LMDB must not open. With ``salvage``, which is
    read-only, intact tables are read and only the damaged ones are refused.
    """

    def __init__(
        self,
        directory: Path,
        *,
        read_only: bool = False,
        salvage: bool = False,
        failpoint: FailpointHook = ignore,
        on_wait: OnWait | None = None,
    ) -> None:
        self._directory = directory
        self._read_only = read_only or salvage
        self._failpoint = failpoint
        self._monitor: LockWaitMonitor | None = None
        if on_wait is not None and not self._read_only:
            from mulligan.journal.lmdb.write_lock import LockWaitMonitor  # readers never wait

            self._monitor = LockWaitMonitor(directory, on_wait)
        # A text: every write looks at the file, and a path is converted at every call.
        self._file = str(directory / DATA)
        self._key = identity(directory)
        self._is_dropped = False
        with self._monitor or nullcontext():  # even opening waits for the current writer
            self._shared: Environment | None = acquire(
                self._key, directory, read_only=self._read_only, salvage=salvage
            )
        # After opening: an open file keeps its inode number, so another file cannot get it.
        self._opened = self._file_identity()
        self._replacements = 0

    def read(self) -> AbstractContextManager[LmdbReader | RefusingReader]:
        """Open a snapshot."""
        shared = self._environment()
        return nullcontext(RefusingReader(shared)) if shared.is_lost else _Read(shared)

    def write(self) -> _Write:
        """Open the write transaction; commit durably on a clean exit."""
        shared = self._environment()
        if self._read_only:
            raise ReadOnlyStore(f"The store at {self._directory.parent} was opened for reading.")
        return _Write(shared, self._failpoint, self._monitor)

    def presence(self) -> Presence:
        """Return whether the opened file is still at its path, with one ``stat``.

        The file is open, so no other file can get its inode number. Without this check, writes
        would go to a deleted file and be acknowledged.
        """
        now = self._file_identity()
        if now == self._opened or now == self._compacted():
            return Presence.PRESENT
        return Presence.MISSING if now is None else Presence.REPLACED

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            return identity(self._file)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _compacted(self) -> tuple[int, int] | None:
        """Return the identity of the opened file, or of the copy that took its place."""
        shared = self._environment()
        for before, after in shared.replacements[self._replacements :]:
            if self._opened == before:
                self._opened = after
        self._replacements = len(shared.replacements)
        return self._opened

    def compact(self, *, patience: float | None = None) -> Compacted:
        """Return free pages to the filesystem; see ``Journal.compact``."""
        shared = self._environment()
        if self._read_only:
            raise ReadOnlyStore(f"The store at {self._directory.parent} was opened for reading.")
        from mulligan.journal.lmdb.compact import compact  # only upkeep needs it

        with translated(f"the journal in {self._directory}"):
            return compact(shared, self._failpoint, patience=patience)

    def lost_commits(self) -> int:
        """Return how many known commits are missing; see ``Journal.lost_commits``."""
        return self._environment().lost_commits()

    def other_user(self) -> int | None:
        """Return another process that has the journal open; see ``Journal.other_user``."""
        return self._environment().other_user()

    def examine(self) -> Examined:
        """Check every page of the file; damaged tables are refused from then on."""
        return self._environment().examine()

    @property
    def damage(self) -> dict[str, str]:
        """The refused tables, each with its damage."""
        return dict(self._environment().tables.damage)

    @property
    def is_unproven(self) -> bool:
        """Whether the file did not match its clean-close mark; see ``mark_checked``."""
        return self._environment().checked is not None

    def mark_checked(self) -> None:
        """Record that the content of the tables was checked too: the next open can skip it."""
        self._environment().mark_checked()

    def close(self) -> None:
        """Release the environment; the last handle in the process closes it."""
        if self._monitor is not None:
            self._monitor.stop()
        if self._shared is not None:
            if not self._is_dropped:
                release(self._key, self._shared)
            self._shared = None

    def __del__(self) -> None:
        # A program dropped its store without closing it: each has a map of a terabyte.
        shared = getattr(self, "_shared", None)
        if shared is not None:
            # Noted: the ``__del__`` of another object that is garbage, too, may close this one.
            self._is_dropped = True
            drop(self._key, shared)

    def _environment(self) -> Environment:
        shared = self._shared
        if shared is None:
            raise StoreClosed("This store was closed.")
        if shared.pid != os.getpid():
            # In a fork: the environment belongs to the parent, so this process opens its own.
            shared = acquire(self._key, self._directory, read_only=self._read_only)
            self._shared = shared
            self._replacements = 0
        return shared


# Transactions are classes, not generators, which are slower: every look-up begins one.


class _Read:
    """A snapshot as a context manager."""

    __slots__ = ("_reader", "_shared", "_thread")

    def __init__(self, shared: Environment) -> None:
        self._shared = shared

    def __enter__(self) -> LmdbReader:
        self._thread, txn = get_ident(), None
        try:
            txn = self._shared.begin()
            self._reader = LmdbReader(txn, self._shared.tables)
        except BaseException as error:
            if txn is not None:  # a signal
                txn.abort()
                del txn
                self._shared.leave()
            if isinstance(error, lmdb.Error):
                raise translation(error, "the journal") from error
            raise
        return self._reader

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        txn = self._reader.end()
        # In a process forked since, the transaction belongs to the parent.
        if self._shared.pid == os.getpid():
            txn.abort()
        del txn
        # A snapshot of a generator may end in another thread, with the generator.
        self._shared.leave(self._thread)
        if isinstance(error, lmdb.Error):
            raise translation(error, "the journal") from error


class _Write:
    """The write transaction as a context manager."""

    __slots__ = ("_failpoint", "_monitor", "_shared", "_txn", "_writer")

    def __init__(
        self, shared: Environment, failpoint: FailpointHook, monitor: LockWaitMonitor | None
    ) -> None:
        self._shared = shared
        self._failpoint = failpoint
        self._monitor = monitor

    def __enter__(self) -> LmdbWriter:
        txn = None
        try:
            with self._monitor or nullcontext():
                self._txn = txn = self._shared.begin(write=True)
            self._pass_or_abort(Failpoint.JOURNAL_TRANSACTION_STARTED)
            self._writer = LmdbWriter(txn, self._shared.tables)
        except BaseException as error:
            if txn is not None:
                # A signal, too: otherwise every writer waits until nothing refers to the error.
                txn.abort()
                del txn, self._txn
                self._shared.leave()
            if isinstance(error, lmdb.Error):
                raise translation(error, "the journal") from error
            raise
        return self._writer

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._end(error)
        finally:
            self._writer.end()
            # A forked process can open LMDB only when nothing refers to the parent's transactions.
            del self._txn
            self._shared.leave()

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self._txn.abort()
            if isinstance(error, lmdb.MapFullError):
                self._shared.require_reopen()  # the next open takes a larger map
            if isinstance(error, lmdb.Error):
                raise translation(error, "the journal") from error
            return
        self._pass_or_abort(Failpoint.JOURNAL_BEFORE_COMMIT)
        try:
            self._txn.commit()
        except lmdb.Error as failure:
            # Whether the commit reached the disk is unknown; only a reopened file shows it.
            self._shared.require_reopen()
            raise commit_failure(failure, str(self._shared.directory)) from failure
        self._shared.committed()
        self._failpoint(Failpoint.JOURNAL_COMMITTED)

    def _pass_or_abort(self, point: Failpoint) -> None:
        try:
            self._failpoint(point)
        except BaseException as error:
            self._txn.abort()
            if isinstance(error, OSError):
                raise translation(error, "the journal") from error
            raise


class LmdbReader:
    """A snapshot of the tables."""

    def __init__(self, txn: lmdb.Transaction[bytes], tables: OpenTables) -> None:
        self._txn = txn
        self._tables = tables

    def end(self) -> lmdb.Transaction[bytes]:
        """Return the transaction and forget it.

        A reader that outlives its block must not keep the environment alive: a forked process can
        open LMDB again only when nothing refers to the parent's environment.
        """
        txn = self._txn
        del self._txn, self._tables
        return txn

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of a key."""
        db = self._tables[table]
        return None if db is None else self._txn.get(key, db=db)

    def get_all(self, table: str, keys: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
        """Return the keys that have a value, with their values."""
        db = self._tables[table]
        if db is None:
            return ()
        with self._txn.cursor(db=db) as cursor:
            return cursor.getmulti(keys)

    def scan(
        self, table: str, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys in ``start <= key < stop`` and their values, in order or backwards."""
        db = self._tables[table]
        if db is None:
            return
        with self._txn.cursor(db=db) as cursor:
            if reverse:
                yield from _backwards(cursor, start, stop)
            elif cursor.set_range(start):
                for key, value in cursor:
                    if stop is not None and key >= stop:
                        return
                    yield key, value


class RefusingReader:
    """A snapshot of tables that cannot be read at all."""

    def __init__(self, shared: Environment) -> None:
        self._tables = shared.tables

    def get(self, table: str, key: bytes) -> bytes | None:
        """Raise ``DamagedJournal``."""
        raise self._tables.refusal(table)

    def get_all(self, table: str, keys: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
        """Raise ``DamagedJournal``."""
        raise self._tables.refusal(table)

    def scan(
        self, table: str, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Raise ``DamagedJournal``."""
        raise self._tables.refusal(table)


class LmdbWriter(LmdbReader):
    """The tables inside the write transaction."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        db = self._tables[table]
        # Append mode fills pages completely, and events of the newest session come after all
        # others. For any other key, LMDB refuses it and leaves the table untouched.
        if table == "events" and self._txn.put(key, value, db=db, append=True):
            return
        self._txn.put(key, value, db=db)

    def add_all(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of the keys that have none."""
        with self._txn.cursor(db=self._tables[table]) as cursor:
            cursor.putmulti(items, overwrite=False)

    def delete(self, table: str, key: bytes) -> None:
        """Remove a key, if it is there."""
        self._txn.delete(key, db=self._tables[table])


def _backwards(
    cursor: lmdb.Cursor[bytes], start: bytes, stop: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    found = cursor.last() if stop is None or not cursor.set_range(stop) else cursor.prev()
    while found:
        key, value = cursor.item()
        if key < start:
            return
        yield key, value
        found = cursor.prev()
