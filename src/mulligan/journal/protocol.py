"""What every journal does: keep the events of sessions in order, and lose none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from enum import Enum
from typing import Protocol

import msgspec

from mulligan.model import (
    Collection,
    CollectionPhase,
    Deletions,
    Digest,
    Event,
    EventsCopied,
    Fold,
    ForkOrigin,
    Head,
    Lease,
    Location,
    NewEvent,
    Purge,
    SessionRecord,
    Tombstone,
)


class FrameObjects(Protocol):
    """Objects that are stored together; their digests are in the order of their slots."""

    @property
    def area(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def digests(self) -> Sequence[Digest]: ...


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

        Raises ``PointFolded`` when one of them was folded away, and ``DamagedJournal`` when one is
        missing: sequence numbers are dense.
        """
        ...

    def remaining(self, number: int, first: int, last: int) -> Iterator[Event]:
        """Yield those of the events ``first..last`` that were not folded away, each checked."""
        ...

    def folds(self, number: int) -> list[Fold]:
        """Return the session's own folds, oldest first; none touches another."""
        ...

    def folded(self, number: int, first: int, last: int) -> list[Fold]:
        """Return the folds that take events of ``first..last``, including those of ancestors."""
        ...

    def inside_folds(self, number: int) -> list[tuple[str, int]]:
        """Return (table, seq) of the session's records that a fold should have removed."""
        ...

    def checkpoints(
        self, number: int, first: int, last: int, *, reverse: bool = False, limit: int | None = None
    ) -> list[tuple[int, str]]:
        """Return (seq, id) of the checkpoints within ``first..last``, oldest first.

        With ``reverse``, newest first. No more than ``limit`` are read.
        """
        ...

    def checkpoint_before(self, number: int, seq: int) -> tuple[int, str] | None:
        """Return (seq, id) of the newest checkpoint at or before ``seq``."""
        ...

    def pruned_before(self, number: int, seq: int) -> tuple[int, str] | None:
        """Return (seq, id) of the newest pruned checkpoint at or before ``seq``.

        Only those whose event still exists are known.
        """
        ...

    def checkpoints_by_id(self, prefix: str) -> list[tuple[str, int, int]]:
        """Return (id, session number, seq) of every checkpoint whose id has the prefix."""
        ...

    def labels(self, number: int) -> list[tuple[str, int]]:
        """Return (label, seq) of the session's own labelled checkpoints."""
        ...

    def names(self, prefix: str = "") -> dict[str, int]:
        """Return the numbers of the sessions whose names have the prefix, by their names.

        Other names are not read.
        """
        ...

    def labelled(self, number: int, label: str) -> list[int]:
        """Return the seqs of the session's own checkpoints that carry the label."""
        ...

    def keyed(self, number: int, key: str) -> int | None:
        """Return the seq of the checkpoint on the timeline that has the foreign key."""
        ...

    def keyed_session(self, key: str) -> SessionRecord | None:
        """Return the session that has the foreign key."""
        ...

    def keys(self, scope: int) -> list[tuple[bytes, int]]:
        """Return the digests of a scope's foreign keys with what each is of, in order.

        The scope is a session's number, and what they are of are seqs of its own checkpoints; or 0
        for the keys of sessions, with the numbers of those.
        """
        ...

    def steps_back(self, number: int) -> list[int]:
        """Return the seqs of the events whose time is before that of the preceding event, in order.

        The clock was set back there. Between them, time does not go backwards.
        """
        ...

    def own_steps_back(self, number: int) -> list[int]:
        """Return only those of the session itself, not of an ancestor."""
        ...

    def keyframe(self, number: int, seq: int) -> tuple[int, Digest] | None:
        """Return the nearest keyframe at or before ``seq``."""
        ...

    def next_to_copy(self, number: int) -> int:
        """Return the seq of the session's own first event that no copy among the objects has."""
        ...

    def event_records(self, number: int, first: int, last: int) -> list[bytes]:
        """Return the records of the session's own events from ``first`` on, unchecked.

        It ends before the first one that is not there.
        """
        ...

    def session_records(self, number: int) -> list[tuple[bytes, bytes]]:
        """Return key and value of the record that makes a session known."""
        ...

    def removal_records(self, number: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values of the session's folds and pruned checkpoints."""
        ...

    def purge_records(self) -> list[tuple[bytes, bytes]]:
        """Return keys and values of all purges and of what they left."""
        ...

    def copies(self) -> Iterator[EventsCopied]:
        """Yield the copies of events among the objects."""
        ...

    def lease(self, number: int, actor: str) -> Lease | None:
        """Return the actor's last lease, whether expired, released or valid."""
        ...

    def leases(self, number: int) -> list[Lease]:
        """Return the last leases on all actors of a session."""
        ...

    def last_deleted_session(self) -> int:
        """Return the highest number of a session that was removed, 0 if none was."""
        ...

    def deletions(self) -> Deletions:
        """Return how often something was deleted, and where bytes of it may be left."""
        ...

    def locate(self, digest: Digest) -> Location | None:
        """Return the object's location."""
        ...

    def locate_all(self, digests: Iterable[Digest]) -> dict[Digest, Location]:
        """Return the locations of the objects that the index has."""
        ...

    def indexed(self, digests: Iterable[Digest]) -> set[Digest]:
        """Return those of some objects that the index has, without their locations."""
        ...

    def indexed_at(self, frames: Sequence[FrameObjects]) -> list[int]:
        """Return for each of some frames how many of its objects the index finds there."""
        ...

    def object_count(self) -> int:
        """Return how many objects the index has."""
        ...

    def locate_usable(self, digests: Iterable[Digest]) -> dict[Digest, Location]:
        """Return the locations of the objects that need not be stored again.

        Neither condemned ones nor damaged ones are among them.
        A purged object is included, so that no bundle stores it again; its location is of no use.
        """
        ...

    def collection(self) -> Collection:
        """Return the state of the garbage collection."""
        ...

    def condemned(self) -> Iterator[Digest]:
        """Yield the objects on the list of condemned ones, in order."""
        ...

    def fresh(self) -> Iterator[Digest]:
        """Yield the objects that were stored since the present collection started, in order."""
        ...

    def damaged(self) -> Iterator[Digest]:
        """Yield the objects that are noted as damaged, in order."""
        ...

    def damage_count(self) -> int:
        """Return how often damage was noted so far; a capture compares it with the last one."""
        ...

    def purges(self) -> list[Purge]:
        """Return what was purged from the store, oldest first."""
        ...

    def last_purge(self) -> int:
        """Return the number of the newest purge, 0 if there was none.

        What was read under another number may hold content that was purged since.
        """
        ...

    def tombstones(self, digests: Iterable[Digest]) -> dict[Digest, Tombstone]:
        """Return what purges left of objects; others are left out."""
        ...

    def buried_objects(self) -> Iterator[tuple[Digest, Tombstone]]:
        """Yield the objects of which purges left a tombstone, in order."""
        ...

    def buried_events(self) -> Iterator[tuple[int, int, Tombstone]]:
        """Yield (session number, seq, tombstone) of the events that purges changed, in order."""
        ...

    def locations(self, after: Digest | None = None) -> Iterator[tuple[Digest, Location]]:
        """Yield the index of objects in order, or what follows a digest."""
        ...

    def last_forgotten_area(self) -> int:
        """Return the highest number of an area that was removed, 0 if none was."""
        ...

    def area_length(self, area: int) -> int:
        """Return the acknowledged length of an area of the object store; 0 if it has none."""
        ...

    def area_lengths(self) -> dict[int, int]:
        """Return the acknowledged length of every area."""
        ...


class Txn(View, Protocol):
    """A write transaction, of one session or of the store: all of it happens, or none.

    A transaction of a session writes only to that session: ``create``, and every method that gets
    the number of another session, raises ``ValueError``. It can read everything.
    """

    def create(
        self, name: str, time: datetime, origin: ForkOrigin | None, key: str | None = None
    ) -> SessionRecord:
        """Create a session; raises ``SessionExists``. A fork starts at its origin's seq.

        Raises ``KeyTaken`` if another session has the foreign key.
        """
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

    def index_checkpoint(
        self, number: int, seq: int, label: str | None, key: str | None = None
    ) -> str:
        """Make the event at ``seq`` findable as a checkpoint and return its id.

        Raises ``KeyTaken`` if another checkpoint on the timeline has the foreign key.
        """
        ...

    def put_keyframe(self, number: int, seq: int, digest: Digest) -> None:
        """Record that the object holds the session's document as of ``seq``.

        Also for an earlier ``seq`` than that of the newest keyframe: upkeep adds them.
        """
        ...

    def put_copy(self, number: int, first: int, last: int, digest: Digest) -> None:
        """Record that an object has a copy of the session's events ``first..last``.

        With 0 for both, it has a copy of folds and pruned checkpoints, and replaces an earlier one.
        """
        ...

    def put_lease(self, number: int, lease: Lease) -> None:
        """Write the lease of its actor."""
        ...

    def index_objects(
        self,
        entries: Mapping[Digest, Location],
        area_lengths: Mapping[int, int],
        values: Iterable[Digest] = (),
    ) -> None:
        """Make flushed objects findable, and acknowledge the areas up to these lengths.

        Idempotent: a known object keeps its location, and an acknowledged length never shrinks.
        ``values`` are those that may refer to other objects: a collection lists them as fresh. A
        condemned or damaged object is removed from its list and gets the new location.
        """
        ...

    def note_damaged(self, digests: Iterable[Digest]) -> int:
        """Note objects of the index whose stored bytes are damaged; return how many are new.

        They do not exist for deduplication: the next writer of the same content stores it again.
        """
        ...

    def clear_damaged(self, digests: Iterable[Digest]) -> None:
        """Remove notes of damage: the objects are intact after all."""
        ...

    # Removal, for upkeep. See docs/design/0006-upkeep.md for the order of these calls.

    def prune(self, number: int, seqs: Iterable[int]) -> None:
        """Remove checkpoints of the session; their events stay until they are folded.

        Idempotent. Raises ``ValueError`` for the newest checkpoint of any session.
        """
        ...

    def fold(self, number: int, fold: Fold) -> None:
        """Replace events of the session by a fold, and record its keyframe at its last seq.

        It includes the folds that it touches. Raises ``ValueError`` when it would take the
        session's first or newest event, a checkpoint, the origin of a fork, an event where the
        clock was set back, or a part of another fold.
        """
        ...

    def set_phase(self, phase: CollectionPhase) -> None:
        """Start the next phase of the collection; ``sweep`` counts as a new collection.

        From ``mark`` to ``idle``, every object that is stored is listed as fresh. From ``sweep``
        to ``idle``, the list of condemned objects is in force.
        """
        ...

    def condemn(self, digests: Iterable[Digest]) -> None:
        """Add objects to the list of condemned ones."""
        ...

    def unlist(self, condemned: Iterable[Digest] = (), fresh: Iterable[Digest] = ()) -> None:
        """Remove objects from the lists of condemned and fresh ones; the index stays as it is."""
        ...

    def sweep(self, digests: Iterable[Digest]) -> int:
        """Remove those that are condemned from the index and from the list; return how many."""
        ...

    def relocate(self, moves: Mapping[Digest, tuple[Location, Location]]) -> int:
        """Change the locations of objects that are still at the first of two; return how many."""
        ...

    def forget_area(self, area: int) -> None:
        """Remove an area without objects; its number is not used again."""
        ...

    def put_purge(self, purge: Purge) -> None:
        """Write the record of a purge."""
        ...

    def bury_object(self, digest: Digest, tombstone: Tombstone) -> None:
        """Take an object out of the index and leave a tombstone: it cannot be stored again."""
        ...

    def bury_event(self, number: int, seq: int, payload: bytes, purge: int) -> Digest:
        """Replace the payload of the session's own event; its hash stays.

        Returns BLAKE3 of the new body, which the tombstone has as well.
        """
        ...

    def drop_copy(self, number: int, last: int) -> None:
        """Forget the copy of the session's events that ends at a seq, if there is one."""
        ...

    def drop_label(self, number: int, label: str, seq: int) -> None:
        """Remove a label of a checkpoint from the index of labels, if it is there."""
        ...

    # Deletion. The session goes at once, its events with the next garbage collection.

    def delete_session(self, number: int, time: datetime) -> None:
        """Take a session's name and key away, and mark it as deleted; what it holds stays.

        Idempotent. Its record gets the name ``deleted~NUMBER``, which no session can be given.
        """
        ...

    def note_deletion(self) -> None:
        """Note that something was deleted, whose bytes are to be erased; see ``deletions``."""
        ...

    def note_erased(self, left: Deletions) -> None:
        """Note where bytes may still be left, unless something was deleted since."""
        ...

    def cut_session(self, number: int, last: int) -> None:
        """Remove the events of a deleted session after ``last``, and everything that names them.

        The session itself goes with its first event. Raises ``ValueError`` for a session that was
        not deleted, for an event that was folded away, and if a fork continues from a later one.
        """
        ...

    def drop_key(self, number: int, key: str) -> None:
        """Remove the foreign key of one of the session's own checkpoints, if it is there."""
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

    def presence(self) -> Presence:
        """Return whether the opened storage is still at its path.

        Cheap: it is called before every write.
        """
        ...

    def examine(self) -> Examined:
        """Check the storage below the tables; damaged ones are refused afterwards."""
        ...

    def compact(self, *, patience: float | None = None) -> Compacted:
        """Release free space in the storage, if that is worthwhile and no other process uses it.

        Atomic: a crash leaves the old storage or the new one. The caller holds the upkeep lock.
        With ``patience``, also if little is free: what was removed leaves the storage for good.
        Other processes are then asked to close it, and waited for this many seconds.
        """
        ...

    def lost_commits(self) -> int:
        """Return how many known commits are missing, because an older copy was put back; cheap."""
        ...

    def other_user(self) -> int | None:
        """Return another process that has the journal open; None if there is none, or unknown."""
        ...

    def close(self) -> None:
        """Release the handle. Idempotent."""
        ...


STORE_SCOPE = 0
"""The scope of the foreign keys of sessions; those of checkpoints have their session's number."""

ALL_TABLES = "*"
"""Stands for all tables: the path to them is damaged."""


class Examined(msgspec.Struct, frozen=True):
    """The result of a check of the storage below the tables.

    ``damage`` says what is wrong with each damaged table, or with ``ALL_TABLES``; ``lost`` is how
    many known commits are missing. ``storage`` names the storage in messages, and ``accept_hint``
    tells a person how to accept the loss.
    """

    damage: Mapping[str, str]
    lost: int = 0
    storage: str = "journal"
    accept_hint: str = ""


class Compacted(msgspec.Struct, frozen=True):
    """The bytes that a compaction released, and what was skipped, with the reason, if anything.

    ``held`` is how long the storage could not be used while it was replaced, in seconds.
    """

    freed: int = 0
    skipped: str | None = None
    held: float = 0.0


class Presence(Enum):
    """Whether the storage that a journal opened is still where it was opened."""

    PRESENT = "present"
    MISSING = "missing"
    REPLACED = "replaced"


TABLES: Iterable[str] = (
    "meta", "sessions", "names", "heads", "events", "checkpoints", "ids", "labels", "keys",
    "keyframes", "leases", "objects", "packs", "folds", "pruned", "condemned", "fresh", "damaged",
    "purges", "purged", "copies",
)  # fmt: skip
"""The tables of a journal; the document on the format has a row for each."""

LATER_TABLES = frozenset(
    {"folds", "pruned", "condemned", "fresh", "damaged", "purges", "purged", "copies", "keys"}
)
"""Tables that stores of the first versions do not have; a missing one is empty."""
