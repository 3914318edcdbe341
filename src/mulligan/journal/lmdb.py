"""Ordered tables in LMDB: many processes, one writer at a time, every commit synced."""

from __future__ import annotations

import errno
import os
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import lmdb

from mulligan.errors import (
    DamagedJournal,
    DiskFull,
    MulliganError,
    ReadOnlyStore,
    StoreClosed,
    StoreOpenedTwice,
)
from mulligan.faults import CrashPoint, Reach, pass_by
from mulligan.journal.lockfile import LockFile
from mulligan.journal.protocol import TABLES
from mulligan.journal.waiting import Tell, Waits

MAP_SIZE = 1 << 40
"""The address space reserved for the journal; the file only grows as it is used."""

MAX_READERS = 1022

Key = tuple[int, int]


class _Environment:
    """One LMDB environment, shared by every handle of this process on the same directory."""

    def __init__(self, directory: Path, *, read_only: bool) -> None:
        self.pid = os.getpid()
        self.users = 1
        self.active = 0
        self.lock = threading.Lock()
        self.closed = False
        self.read_only = read_only
        # Before LMDB locks the file and until after it is closed; see ``lockfile``.
        self._lock_file = _hold(directory, read_only)
        try:
            self.env = _open_environment(directory, read_only=read_only)
        except BaseException:
            self._let_go()
            raise
        self._lock_file = self._lock_file or _hold(directory, read_only)
        try:
            _check_length(self.env, directory)
            _check_metas(self.env, directory)
            self.tables = self._tables()
            if not read_only:
                self.env.reader_check()
        except lmdb.Error as error:
            self.shut()
            raise _translation(error, f"the journal in {directory}") from error
        except BaseException:
            self.shut()
            raise

    def shut(self) -> None:
        """Close at once: nothing of this process is under way here."""
        self.env.close()
        self._let_go()

    def _let_go(self) -> None:
        if self._lock_file is not None:
            self._lock_file.release()
            self._lock_file = None

    def enter(self) -> None:
        """Count a transaction, so that nobody closes the environment under it."""
        with self.lock:
            if self.closed:
                raise StoreClosed("This store was closed.")
            self.active += 1

    def leave(self) -> None:
        """A transaction has ended."""
        with self.lock:
            self.active -= 1

    def close(self) -> bool:
        """Close once the transactions of other threads have ended; whether that came about.

        LMDB would end the process if it were closed under them, so it is rather left open.
        """
        deadline = time.monotonic() + _CLOSE_WAIT
        while time.monotonic() < deadline:
            with self.lock:
                if self.active == 0:
                    self.closed = True
                    self.shut()
                    return True
            time.sleep(0.001)
        return False

    def _tables(self) -> dict[str, lmdb._Database]:
        if self.read_only:
            return {name: self.env.open_db(name.encode(), create=False) for name in TABLES}
        # In a transaction of ours: with its own, LMDB would keep every thread of this process
        # waiting for whoever writes, not only this one.
        with self.env.begin(write=True) as txn:
            return {name: self.env.open_db(name.encode(), txn=txn) for name in TABLES}


# LMDB must not be opened twice in one process, so this registry is the one piece of global
# state: environments by the identity of their directory.
_open_environments: dict[Key, _Environment] = {}
_registry_lock = threading.Lock()

_CLOSE_WAIT = 5.0
"""Seconds that closing waits for the transactions of other threads."""


def _renew_registry_lock() -> None:
    """Another thread may have held the lock when this process was forked off."""
    global _registry_lock
    _registry_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_registry_lock)


class LmdbTables:
    """Ordered tables in the LMDB environment of a directory."""

    def __init__(
        self,
        directory: Path,
        *,
        read_only: bool = False,
        reach: Reach = pass_by,
        waiting: Tell | None = None,
    ) -> None:
        self._directory = directory
        self._read_only = read_only
        self._reach = reach
        self._waits = None if waiting is None or read_only else Waits(directory, waiting)
        self._key = _identity(directory)
        with self._waits or nullcontext():  # even opening waits for whoever writes
            self._shared: _Environment | None = _acquire(self._key, directory, read_only)

    def read(self) -> _Read:
        """Open a snapshot."""
        return _Read(self._environment())

    def write(self) -> _Write:
        """Open the write transaction; commit durably on a clean exit."""
        shared = self._environment()
        if self._read_only:
            raise ReadOnlyStore(f"The store at {self._directory.parent} was opened for reading.")
        return _Write(shared, self._reach, self._waits)

    def close(self) -> None:
        """Release the environment; the last handle in the process closes it."""
        if self._waits is not None:
            self._waits.stop()
        if self._shared is not None:
            _release(self._key, self._shared)
            self._shared = None

    def _environment(self) -> _Environment:
        shared = self._shared
        if shared is None:
            raise StoreClosed("This store was closed.")
        if shared.pid != os.getpid():
            shared = self._shared = _acquire(self._key, self._directory, self._read_only)
        return shared


# Transactions are classes, not generators: they are begun for every single look-up.


class _Read:
    """A snapshot as a context manager."""

    __slots__ = ("_shared", "_txn")

    def __init__(self, shared: _Environment) -> None:
        self._shared = shared

    def __enter__(self) -> LmdbReader:
        self._shared.enter()
        try:
            self._txn = self._shared.env.begin()
        except lmdb.Error as error:
            self._shared.leave()
            raise _translation(error, "the journal") from error
        return LmdbReader(self._txn, self._shared.tables)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._txn.abort()
        self._shared.leave()
        if isinstance(error, lmdb.Error):
            raise _translation(error, "the journal") from error


class _Write:
    """The write transaction as a context manager."""

    __slots__ = ("_reach", "_shared", "_txn", "_waits")

    def __init__(self, shared: _Environment, reach: Reach, waits: Waits | None) -> None:
        self._shared = shared
        self._reach = reach
        self._waits = waits

    def __enter__(self) -> LmdbWriter:
        self._shared.enter()
        try:
            self._txn = self._begun()
            self._reach_or_abort(CrashPoint.JOURNAL_BEGUN)
        except BaseException as error:
            self._shared.leave()
            if isinstance(error, lmdb.Error):
                raise _translation(error, "the journal") from error
            raise
        return LmdbWriter(self._txn, self._shared.tables)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._end(error)
        finally:
            self._shared.leave()

    def _begun(self) -> lmdb.Transaction[bytes]:
        if self._waits is None:
            return self._shared.env.begin(write=True)
        with self._waits:
            return self._shared.env.begin(write=True)

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self._txn.abort()
            if isinstance(error, lmdb.Error):
                raise _translation(error, "the journal") from error
            return
        self._reach_or_abort(CrashPoint.JOURNAL_BEFORE_COMMIT)
        try:
            self._txn.commit()
        except lmdb.Error as failure:
            raise _commit_failure(failure, self._shared.env.path()) from failure
        self._reach(CrashPoint.JOURNAL_COMMITTED)

    def _reach_or_abort(self, point: CrashPoint) -> None:
        try:
            self._reach(point)
        except BaseException as error:
            self._txn.abort()
            if isinstance(error, OSError):
                raise _translation(error, "the journal") from error
            raise


class LmdbReader:
    """A snapshot of the tables."""

    def __init__(self, txn: lmdb.Transaction[bytes], tables: dict[str, lmdb._Database]) -> None:
        self._txn = txn
        self._tables = tables

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of a key."""
        return self._txn.get(key, db=self._tables[table])

    def get_all(self, table: str, keys: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
        """Return those of the keys that have a value, each with its value."""
        with self._txn.cursor(db=self._tables[table]) as cursor:
            return cursor.getmulti(keys)

    def scan(
        self, table: str, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys in ``start <= key < stop`` and their values, in order or backwards."""
        with self._txn.cursor(db=self._tables[table]) as cursor:
            if reverse:
                yield from _backwards(cursor, start, stop)
            elif cursor.set_range(start):
                for key, value in cursor:
                    if stop is not None and key >= stop:
                        return
                    yield key, value


class LmdbWriter(LmdbReader):
    """The tables inside the write transaction."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        db = self._tables[table]
        # Events of the newest session come after all others, and LMDB fills pages to the end
        # when told so; for any other key it refuses without having touched anything.
        if table == "events" and self._txn.put(key, value, db=db, append=True):
            return
        self._txn.put(key, value, db=db)

    def add_all(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of those keys that have none."""
        with self._txn.cursor(db=self._tables[table]) as cursor:
            cursor.putmulti(items, overwrite=False)


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


def _identity(directory: Path) -> Key:
    status = directory.stat()
    return status.st_dev, status.st_ino


def _acquire(key: Key, directory: Path, read_only: bool) -> _Environment:
    with _registry_lock:
        shared = _open_environments.get(key)
        if shared is not None and shared.pid != os.getpid():
            # After a fork the parent's handle must go before LMDB can be opened anew; py-lmdb
            # does not touch the parent's locks when a child closes.
            shared.shut()
            del _open_environments[key]
            shared = None
        if shared is None or (shared.read_only and not read_only):
            shared = _reopened(key, directory, read_only, shared)
        else:
            shared.users += 1
        return shared


def _reopened(
    key: Key, directory: Path, read_only: bool, before: _Environment | None
) -> _Environment:
    if before is not None:
        raise StoreOpenedTwice(
            f"The store at {directory.parent} is open for reading in this process; "
            "it cannot be opened for writing as well."
        )
    shared = _open_environments[key] = _Environment(directory, read_only=read_only)
    return shared


def _release(key: Key, shared: _Environment) -> None:
    with _registry_lock:
        shared.users -= 1
        if shared.users == 0 and shared.pid == os.getpid() and shared.close():
            _open_environments.pop(key, None)


def _hold(directory: Path, read_only: bool) -> LockFile | None:
    try:
        return LockFile(directory, create=not read_only)
    except FileNotFoundError:
        return None  # read-only media, without writers
    except OSError as error:
        if read_only:
            return None
        raise _translation(error, f"the journal in {directory}") from error


def _open_environment(directory: Path, *, read_only: bool) -> lmdb.Environment:
    def attempt(lock: bool) -> lmdb.Environment:
        return lmdb.open(
            str(directory),
            map_size=MAP_SIZE,
            max_dbs=16,
            max_readers=MAX_READERS,
            mode=0o600,
            readonly=read_only,
            create=not read_only,
            lock=lock,
        )

    with _translated(f"the journal in {directory}"):
        try:
            return attempt(lock=True)
        except lmdb.Error as error:
            if not (read_only and _error_number(error) in _READ_ONLY):
                raise
            # On read-only media there can be no writer, so the lock file is not needed.
            return attempt(lock=False)


def _check_length(env: lmdb.Environment, directory: Path) -> None:
    """Refuse a truncated file: touching a page past its end would kill the process."""
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    actual = (directory / "data.mdb").stat().st_size
    if actual < needed:
        raise DamagedJournal(
            f"The journal is cut short: {actual} bytes where {needed} were written.",
            hint="The packs are untouched. Put data.mdb back from a copy of the store.",
        )


_META_TXNID = 144
_META_LOOKS = 5


def _check_metas(env: lmdb.Environment, directory: Path) -> None:
    """Refuse a journal whose two newest commits do not follow one another.

    LMDB goes by whichever of its two meta pages has the higher number, so a flipped bit there
    would take commits back without a word. Others may be committing, hence several looks.
    """
    size = env.stat()["psize"]
    for _ in range(_META_LOOKS):
        with (directory / "data.mdb").open("rb") as file:
            pages = file.read(2 * size)
        one, other = (
            int.from_bytes(pages[at + _META_TXNID : at + _META_TXNID + 8], sys.byteorder)
            for at in (0, size)
        )
        if abs(one - other) == 1 or one == other == 0:
            return
    raise DamagedJournal(
        f"The journal's newest commits have the numbers {one} and {other}; one of them is wrong.",
        hint="Nothing was changed. Put data.mdb back from a copy of the store.",
    )


_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NEARLY_NOTHING = 1024  # blocks


@contextmanager
def _translated(what: str = "the journal") -> Iterator[None]:
    """Turn LMDB's errors into ours."""
    try:
        yield
    except MulliganError:
        raise
    except (lmdb.Error, OSError, struct.error) as error:
        raise _translation(error, what) from error


def _translation(error: Exception, what: str) -> Exception:
    number = _error_number(error)
    if isinstance(error, lmdb.MapFullError) or number in _FULL:
        return DiskFull(f"There is no space left to write {what}.")
    if isinstance(error, lmdb.ReadonlyError) or number in _READ_ONLY:
        return ReadOnlyStore(f"It is not permitted to write {what}.")
    if "already open in this process" in str(error):
        return StoreOpenedTwice("The journal is already open in this process.")
    if isinstance(error, lmdb.Error):
        return DamagedJournal(f"It was not possible to read or write {what}: {error}.")
    return error


def _commit_failure(error: lmdb.Error, directory: str) -> Exception:
    # LMDB calls a write that was cut short, as happens when a disk fills up, an I/O error.
    if os.strerror(errno.EIO) in str(error) and os.statvfs(directory).f_bavail < _NEARLY_NOTHING:
        return DiskFull("There is no space left to write the journal.")
    return _translation(error, "the journal")


def _error_number(error: Exception) -> int | None:
    """Return the errno behind an error; LMDB only keeps its text."""
    if isinstance(error, OSError):
        return error.errno
    text = str(error)
    return next((n for n in (*_FULL, *_READ_ONLY) if os.strerror(n) in text), None)
