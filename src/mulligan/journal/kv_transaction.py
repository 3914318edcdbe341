"""Writing to a journal in ordered tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from mulligan.errors import KeyTaken, SessionExists, StaleLease
from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.journal import chain
from mulligan.journal.kv_removal import KvRemoval
from mulligan.journal.protocol import STORE_SCOPE
from mulligan.journal.records import (
    LENGTH,
    LOCATION,
    NUMBER,
    PLACE,
    checksum,
    clock_key,
    encode,
    encode_copy,
    encode_head,
    encode_lease,
    foreign_key,
    label_key,
    session_number,
)
from mulligan.model import (
    ID_SIZE,
    Digest,
    Event,
    ForkOrigin,
    Head,
    Lease,
    Location,
    NewEvent,
    SessionRecord,
)

if TYPE_CHECKING:
    from mulligan.journal.kv_view import ReadCache
    from mulligan.journal.table_protocol import TableWriter

MAX_AHEAD = timedelta(minutes=1)
"""How far the time of an event may be ahead of the writer's clock."""

EARLIEST = datetime(2025, 1, 1, tzinfo=UTC)
"""A clock before this time was never set: this program is newer."""


class KvTransaction(KvRemoval):
    """A write transaction of the journal; with ``session``, it writes only to that session."""

    def __init__(
        self,
        writer: TableWriter,
        cache: ReadCache,
        failpoint: FailpointHook,
        session: int | None = None,
    ) -> None:
        super().__init__(writer, cache, failpoint)
        self._only = session
        self._heads: dict[int, Head] = {}
        self._moved: set[int] = set()
        # Not in the shared cache before the commit: an aborted session must not be found later.
        self._created: dict[int, SessionRecord] = {}
        # Hashes of this transaction's events, which give checkpoints their ids.
        self._hashes: dict[tuple[int, int], bytes] = {}

    def session(self, number: int) -> SessionRecord:
        """Return the session of that number; a new one is not cached before the commit."""
        return self._created.get(number) or super().session(number)

    def head(self, number: int) -> Head:
        """Return the newest event's place, including this transaction's own events."""
        head = self._heads.get(number)
        if head is None:
            head = self._heads[number] = super().head(number)
        return head

    def create(
        self, name: str, time: datetime, origin: ForkOrigin | None, key: str | None = None
    ) -> SessionRecord:
        """Create a session; a fork starts at its origin's seq."""
        self._check_owned(None)
        if self.find(name) is not None:
            raise SessionExists(f"There is a session {name!r} already.")
        if key is not None and (other := self.keyed_session(key)) is not None:
            raise KeyTaken(f"The session {other.name!r} has the key {key!r}.")
        last = next(self._writer.scan("sessions", b"", None, reverse=True), None)
        # Numbers are keys of all other tables, so one is never reused.
        newest = 0 if last is None else session_number(last[0])
        number = max(newest, self.last_deleted_session()) + 1
        record = self._created[number] = SessionRecord(number, name, time, origin, key)
        self._put("sessions", NUMBER.pack(number), encode(record))
        self._put("names", name.encode(), NUMBER.pack(number))
        if key is not None:
            self._put("keys", foreign_key(STORE_SCOPE, key), LENGTH.pack(number))
        self._put_head(number, self._first_head(record))
        return record

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
        """Assign the next seqs to the new events and chain them."""
        self._check_owned(number)
        session = self.session(number)
        # Inside the transaction: if the lease was taken over since the caller decided, this fails.
        if fenced:
            self._check_epoch(session, actor, epoch)
        head = self.head(number)
        time = self._time_after(number, head, time)
        events = []
        seq, prev = head.seq, head.hash
        for new in new_events:
            seq += 1
            body = chain.encode_body(new, time=time, actor=actor, epoch=epoch)
            hash_ = chain.chain(prev, seq, body)
            self._writer.put("events", PLACE.pack(number, seq), chain.pack_record(hash_, body))
            name, kind, value = session.name, new.kind, new.value
            events.append(Event(name, seq, time, actor, epoch, kind, value, prev, hash_))
            prev = hash_
            self._hashes[number, seq] = hash_
        self._put_head(number, msgspec.structs.replace(head, seq=seq, hash=prev, time=time))
        self._failpoint(Failpoint.JOURNAL_APPENDED)
        return events

    def _time_after(self, number: int, head: Head, time: datetime) -> datetime:
        """Return the time of the next event: the clock's, unless it is implausible.

        If the clock is slightly behind the last event, it was corrected, and the last event's time
        is used. If it is far behind, the clock of the last event was ahead. It could take years to
        catch up with that, so the step back is recorded instead.
        """
        if time >= head.time:
            return time
        if head.time - time <= MAX_AHEAD or time < EARLIEST:
            return head.time
        # In the same transaction as the event: verify refuses a step back that is not recorded.
        steps = [*self.own_steps_back(number), head.seq + 1]
        self._put("meta", clock_key(number), b"".join(map(LENGTH.pack, steps)))
        return time

    def index_checkpoint(
        self, number: int, seq: int, label: str | None, key: str | None = None
    ) -> str:
        """Make the event at ``seq`` findable as a checkpoint and return its id."""
        self._check_owned(number)
        identity = self._hashes[number, seq][:ID_SIZE]
        place = PLACE.pack(number, seq)
        self._put("checkpoints", place, identity)
        self._put("ids", identity, place)
        if label is not None:
            self._put("labels", label_key(number, label) + LENGTH.pack(seq), b"")
        if key is not None:
            # Under the write lock: of two writers of the same key, the second one is refused.
            if (other := self.keyed(number, key)) is not None:
                name = self.session(number).name
                raise KeyTaken(f"Checkpoint #{other} of session {name!r} has the key {key!r}.")
            self._put("keys", foreign_key(number, key), LENGTH.pack(seq))
        latest = (seq, identity.hex())
        self._put_head(number, msgspec.structs.replace(self.head(number), checkpoint=latest))
        return identity.hex()

    def put_keyframe(self, number: int, seq: int, digest: Digest) -> None:
        """Record that the object holds the session's document as of ``seq``."""
        self._check_owned(number)
        self._put("keyframes", PLACE.pack(number, seq), digest)
        head = self.head(number)
        # Never lower it: a fold adds keyframes behind the newest one.
        newest = msgspec.structs.replace(head, keyframe=max(seq, head.keyframe))
        self._put_head(number, newest)

    def put_copy(self, number: int, first: int, last: int, digest: Digest) -> None:
        """Record that an object has a copy of the session's events ``first..last``."""
        self._check_owned(number)
        self._put("copies", PLACE.pack(number, last), encode_copy(first, digest))

    def put_lease(self, number: int, lease: Lease) -> None:
        """Write the lease of its actor."""
        self._check_owned(number)
        self._put("leases", NUMBER.pack(number) + lease.actor.encode(), encode_lease(lease))

    def index_objects(
        self,
        entries: Mapping[Digest, Location],
        area_lengths: Mapping[int, int],
        values: Iterable[Digest] = (),
    ) -> None:
        """Make flushed objects findable."""
        entries = self._without_purged(entries)
        pack_place = LOCATION.pack
        places = (
            (digest, pack_place(place.area, place.offset, place.length, place.slot))
            for digest, place in entries.items()
        )
        self._note_stored(entries, values)
        # Add only: a known object keeps the location that other processes may be reading.
        self._writer.add_all("objects", places)
        for area, length in area_lengths.items():
            # Never lower it: another bundle of the same area may have acknowledged more already.
            length = max(length, self.area_length(area))
            self._put("packs", NUMBER.pack(area), LENGTH.pack(length))
        self._failpoint(Failpoint.JOURNAL_INDEXED)

    def _check_owned(self, number: int | None) -> None:
        # Not needed with these tables, which have one lock for all writers. A journal with row
        # locks relies on it, so the tests must already fail with these tables.
        if self._only is not None and number != self._only:
            what = "makes no sessions" if number is None else f"does not write to session {number}"
            raise ValueError(f"A transaction of session {self._only} {what}.")

    def _check_epoch(self, session: SessionRecord, actor: str, epoch: int) -> None:
        lease = self.lease(session.number, actor)
        valid = 0 if lease is None or lease.released else lease.epoch
        if epoch != valid:
            holder = (
                f"held by {lease.holder.words} with epoch {valid}"
                if lease and valid
                else "not held"
            )
            raise StaleLease(
                f"The lease of {actor!r} in session {session.name!r} is {holder}; "
                f"a write with epoch {epoch} is refused."
            )

    def _put_head(self, number: int, head: Head) -> None:
        self._heads[number] = head
        self._moved.add(number)

    def finish(self) -> None:
        """Write each head that moved, once."""
        for number in self._moved:
            head, key = self._heads[number], NUMBER.pack(number)
            value = encode_head(head)
            record = value + checksum("heads", key, value)
            self._writer.put("heads", key, record)
            # Safe before the commit: a cached head is used only for a record with the same bytes.
            self._cache.heads[number] = (record, head)

    def _first_head(self, record: SessionRecord) -> Head:
        """Return the head of a new session: empty, or that of its origin."""
        if record.origin is None:
            return Head(0, chain.GENESIS, record.created)
        number, seq = record.origin.session, record.origin.seq
        keyframe = self.keyframe(number, seq)
        left = next(self.events(number, seq, seq), None)
        return Head(
            seq,
            left.hash if left else chain.GENESIS,
            # A fork starts no earlier than the event that it continues.
            max(record.created, left.time) if left else record.created,
            keyframe[0] if keyframe else 0,
            self.checkpoint_before(number, seq),
        )
