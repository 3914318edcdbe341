"""What every journal does: keep the events of sessions in order, and lose none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import NamedTuple, Protocol

from mulligan.model import Digest, Event, ForkOrigin, Head, Lease, Location, NewEvent, SessionRecord


class View(Protocol):
    """A consistent snapshot of the journal. Every record is checked as it is read.

    Sessions are addressed by their number. A forked session continues its parent's
    sequence: reading an event at or before the fork reads the parent's.
    Every method raises ``DamagedJournal`` for a damaged record.
    """

    def sessions(self) -> list[SessionRecord]:
        """Return all sessions in the order of creation."""
        ...

    def find(self, name: str) -> SessionRecord | None:
        """Return the session of that name."""
        ...

    def session(self, number: int) -> SessionRecord:
        """Return the session of that number; raises ``UnknownSession``."""
        ...

    def head(self, number: int) -> Head:
        """Return the newest event's place; seq 0 for a session without events."""
        ...

    def events(self, number: int, first: int, last: int) -> Iterator[Event]:
        """Yield the events ``first..last`` (both included), each checked against the chain.

        Raises ``DamagedJournal`` when one is missing: sequence numbers are dense.
        """
        ...

    def checkpoints(self, number: int, first: int, last: int) -> list[tuple[int, str]]:
        """Return (seq, id) of the checkpoints within ``first..last``, oldest first."""
        ...

    def checkpoint_before(self, number: int, seq: int) -> tuple[int, str] | None:
        """Return (seq, id) of the newest checkpoint at or before ``seq``."""
        ...

    def checkpoints_by_id(self, prefix: str) -> list[tuple[str, int, int]]:
        """Return (id, session number, seq) of every checkpoint whose id has the prefix."""
        ...

    def labels(self, number: int) -> list[tuple[str, int]]:
        """Return (label, seq) of the session's own labelled checkpoints."""
        ...

    def names(self) -> dict[str, int]:
        """Return the numbers of all sessions by their names."""
        ...

    def labelled(self, number: int, label: str) -> list[int]:
        """Return the seqs of the session's own checkpoints that carry the label."""
        ...

    def steps_back(self, number: int) -> list[int]:
        """Return the seqs of the events that are earlier than the one before them, in order.

        The clock was set back there. Between them, time does not go backwards.
        """
        ...

    def own_steps_back(self, number: int) -> list[int]:
        """Return only those of the session itself, not of an ancestor."""
        ...

    def keyframe(self, number: int, seq: int) -> tuple[int, Digest] | None:
        """Return the nearest keyframe at or before ``seq``."""
        ...

    def lease(self, number: int, actor: str) -> Lease | None:
        """Return the actor's last lease, whether expired, released or valid."""
        ...

    def locate(self, digest: Digest) -> Location | None:
        """Return the object's location."""
        ...

    def locate_all(self, digests: Iterable[Digest]) -> dict[Digest, Location]:
        """Return the locations of the objects that the index has."""
        ...

    def locations(self) -> Iterator[tuple[Digest, Location]]:
        """Yield the whole index of objects."""
        ...

    def pack_length(self, pack: int) -> int:
        """Return the acknowledged length of a pack, 0 if it has none."""
        ...

    def packs(self) -> dict[int, int]:
        """Return the acknowledged length of every pack."""
        ...


class Txn(View, Protocol):
    """A write transaction, of one session or of the store: all of it happens, or none.

    A transaction of a session writes only to that session: ``create``, and every method that gets
    the number of another session, raises ``ValueError``. It can read everything.
    """

    def create(self, name: str, time: datetime, origin: ForkOrigin | None) -> SessionRecord:
        """Create a session; raises ``SessionExists``. A fork starts at its origin's seq."""
        ...

    def append(
        self,
        number: int,
        new_events: Sequence[NewEvent],
        *,
        actor: str,
        epoch: int,
        time: datetime,
        fenced: bool = True,
    ) -> list[Event]:
        """Assign the next seqs to the new events and chain them.

        Time goes backwards within a session only where the clock was set back by more than a
        minute, which is recorded: see ``View.steps_back``. Raises ``StaleLease`` unless ``epoch``,
        the fencing token, is that of the actor's lease (0 for an actor without one). Without
        ``fenced``, no lease is checked: for actors that are not agents, even if an agent of the
        same name holds one.
        """
        ...

    def index_checkpoint(self, number: int, seq: int, label: str | None) -> str:
        """Make the event at ``seq`` findable as a checkpoint and return its id."""
        ...

    def put_keyframe(self, number: int, seq: int, digest: Digest) -> None:
        """Record that the object holds the session's document as of ``seq``."""
        ...

    def put_lease(self, number: int, lease: Lease) -> None:
        """Write the lease of its actor."""
        ...

    def index_objects(self, entries: Mapping[Digest, Location], packs: Mapping[int, int]) -> None:
        """Make flushed objects findable. Idempotent: a known object keeps its location."""
        ...


class Journal(Protocol):
    """The durable, ordered record of a store."""

    def read(self) -> AbstractContextManager[View]:
        """Open a snapshot; keep it short."""
        ...

    def write(self, session: int | None = None) -> AbstractContextManager[Txn]:
        """Open a write transaction, waiting for other writers.

        It belongs to the session of that number, and excludes other writers of that session; with
        row locks, writers of other sessions need not wait. Without a number, it belongs to the
        store, for changes that span sessions, and excludes all other writers. Both can index
        objects, because that is idempotent.

        On a clean exit it is committed and durable when this returns; on an exception, nothing is
        written. Raises ``DiskFull`` and ``ReadOnlyStore``.
        """
        ...

    def now(self) -> datetime:
        """Return the time, in UTC, by the one clock that lease times are written and compared with.

        A journal that several machines share must use a clock that they share as well.
        """
        ...

    def examine(self) -> Examined:
        """Check the storage below the tables; damaged ones are refused afterwards."""
        ...

    def close(self) -> None:
        """Release the handle. Idempotent."""
        ...


ALL_TABLES = "*"
"""Stands for all tables: the path to them is damaged."""


class Examined(NamedTuple):
    """The result of a check of the storage below the tables.

    ``damage`` says what is wrong with each damaged table, or with ``ALL_TABLES``; ``lost`` is how
    many known commits are missing.
    """

    damage: Mapping[str, str]
    lost: int = 0


class TableReader(Protocol):
    """Ordered tables of bytes as they are at one moment."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of a key."""
        ...

    def get_all(self, table: str, keys: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
        """Return the keys that have a value, with their values."""
        ...

    def scan(
        self, table: str, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys in ``start <= key < stop`` and their values, in order or backwards."""
        ...


class TableWriter(TableReader, Protocol):
    """Ordered tables of bytes inside a write transaction."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        ...

    def add_all(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of the keys that have none."""
        ...


class Tables(Protocol):
    """A small ordered key-value store with transactions, the base of ``KvJournal``."""

    def read(self) -> AbstractContextManager[TableReader]:
        """Open a snapshot."""
        ...

    def write(self) -> AbstractContextManager[TableWriter]:
        """Open the exclusive write transaction; commit durably on a clean exit."""
        ...

    def examine(self) -> Examined:
        """Check the storage below the tables; damaged ones are refused afterwards."""
        ...

    def close(self) -> None:
        """Release the handle. Idempotent."""
        ...


TABLES: Iterable[str] = (
    "meta",
    "sessions",
    "names",
    "heads",
    "events",
    "checkpoints",
    "ids",
    "labels",
    "keyframes",
    "leases",
    "objects",
    "packs",
)
