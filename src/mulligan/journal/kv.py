"""A journal over ordered tables with transactions, shared by all table implementations."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING

from mulligan.clock import Clock, SystemClock
from mulligan.errors import DamagedJournal
from mulligan.failpoints import FailpointHook, ignore
from mulligan.journal.kv_view import KvView, ReadCache
from mulligan.journal.records import CHECKSUM_SIZE, LENGTH, STORE, checksum, decode_head, opened

if TYPE_CHECKING:
    from mulligan.journal.kv_deletion import KvDeletion
    from mulligan.journal.protocol import Compacted, Examined, Presence
    from mulligan.journal.table_protocol import Tables

# Transactions are classes, not generators, which are slower: every look-up begins one.


class _Read:
    """A snapshot as a context manager."""

    __slots__ = ("_cache", "_reading")

    def __init__(self, tables: Tables, cache: ReadCache) -> None:
        self._reading = tables.read()
        self._cache = cache

    def __enter__(self) -> KvView:
        reader = self._reading.__enter__()
        try:
            return KvView(reader, self._cache)
        except BaseException as error:  # a signal
            self._reading.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reading.__exit__(kind, error, trace)


class _Write:
    """A write transaction as a context manager."""

    __slots__ = ("_cache", "_failpoint", "_session", "_txn", "_writing")

    def __init__(
        self, tables: Tables, cache: ReadCache, failpoint: FailpointHook, session: int | None
    ) -> None:
        self._writing = tables.write()
        self._session = session
        self._cache = cache
        self._failpoint = failpoint

    def __enter__(self) -> KvDeletion:
        from mulligan.journal.kv_deletion import KvDeletion  # many processes only read

        writer = self._writing.__enter__()
        try:
            self._txn = KvDeletion(writer, self._cache, self._failpoint, self._session)
        except BaseException as error:  # a signal
            self._writing.__exit__(type(error), error, error.__traceback__)
            raise
        return self._txn

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                # Heads are written last, once per session, however many appends moved them.
                self._txn.finish()
            except BaseException as failure:
                # Abort: events without their head would be overwritten by the next append.
                self._writing.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._writing.__exit__(kind, error, trace)


class KvJournal:
    """A journal over any ordered tables with transactions."""

    def __init__(
        self, tables: Tables, *, failpoint: FailpointHook = ignore, clock: Clock | None = None
    ) -> None:
        self._tables = tables
        # All writers of these tables run on one machine, so they share its clock.
        self._clock = clock or SystemClock()
        self._failpoint = failpoint
        self._cache = ReadCache()

    def read(self) -> _Read:
        """Open a snapshot; keep it short."""
        return _Read(self._tables, self._cache)

    def write(self, session: int | None = None) -> _Write:
        """Open a write transaction, of one session or of the store; see ``Journal.write``."""
        return _Write(self._tables, self._cache, self._failpoint, session)

    def now(self) -> datetime:
        """Return the time of the clock that lease times are compared with."""
        return self._clock.now()

    def presence(self) -> Presence:
        """Return whether the opened storage is still at its path."""
        return self._tables.presence()

    def examine(self) -> Examined:
        """Check the storage below the tables; damaged ones are refused afterwards."""
        return self._tables.examine()

    def compact(self, *, patience: float | None = None) -> Compacted:
        """Release free space inside the tables' storage."""
        return self._tables.compact(patience=patience)

    def lost_commits(self) -> int:
        """Return how many known commits the tables lack."""
        return self._tables.lost_commits()

    def other_user(self) -> int | None:
        """Return another process that has the tables open, if there is one."""
        return self._tables.other_user()

    def close(self) -> None:
        """Release the tables."""
        self._tables.close()


def claim(tables: Tables, identity: bytes) -> bytes:
    """Assign the tables to a store and return its id: the given one, or the existing one."""
    # One transaction: if several processes create the store, the first id wins and all read it.
    with tables.write() as writer:
        found = writer.get("meta", STORE)
        if found is None:
            writer.put("meta", STORE, identity + checksum("meta", STORE, identity))
            return identity
    return opened("meta", STORE, found)


def check_identity(tables: Tables, identity: bytes) -> None:
    """Raise ``DamagedJournal`` if the tables belong to a store with another id.

    A journal that was lost and recreated must be noticed before anything is written: it knows no
    acknowledged bytes, so a writer would truncate every area of the object store.
    """
    with tables.read() as reader:
        found = reader.get("meta", STORE)
    if found is None:
        raise DamagedJournal(
            "The journal is empty: its file was lost, and made again.",
            hint="The objects are untouched. `mulligan verify --repair` rebuilds the journal.",
        )
    if opened("meta", STORE, found) != identity:
        raise DamagedJournal(
            "The journal does not belong to this store.",
            hint="The objects are untouched. Put the journal back from a copy of the store, or "
            "move it away: `mulligan verify --repair` then rebuilds it from the packs.",
        )


def check_ends(tables: Tables) -> None:
    """Raise ``DamagedJournal`` if a head or the length of an area is older than its data.

    These are the only records that are overwritten. A page of them from an older commit is intact
    and all its checksums are right; only the data written after it shows that it is stale. A write
    after such a head would overwrite events. Any other damage is found when the record is read.
    """
    with tables.read() as reader:
        view = KvView(reader, ReadCache())
        for key, value in reader.scan("heads", b"", None):
            # A damaged head is refused when its session is read; here it must not hide stale ones.
            if value[-CHECKSUM_SIZE:] == checksum("heads", key, value[:-CHECKSUM_SIZE]):
                following = key + LENGTH.pack(decode_head(value[:-CHECKSUM_SIZE]).seq + 1)
                if reader.get("events", following) is not None:
                    raise DamagedJournal("A session's head is older than its events.", hint=_OLDER)
        # Reads the whole index; this runs only for a file that was not closed cleanly.
        lengths = view.area_lengths()
        for _, place in view.locations():
            if place.offset + place.length > lengths.get(place.area, 0):
                raise DamagedJournal(
                    f"The length of area {place.area} is older than its objects.", hint=_OLDER
                )


_OLDER = (
    "Part of the journal is older than the rest. Nothing was changed, and the objects are intact. "
    "`mulligan verify` names what is damaged, `mulligan verify --repair` rebuilds it."
)
