"""Rebuilding the tables of a journal from whatever records of it can still be read.

Two things are true on their own: an event, by the hash chain, and a small record, by its checksum,
which also covers its table and key. Everything else is derived from them: heads, ids, labels,
names, the places where the clock was set back. An event that is lost is replaced by one of the kind
``event.lost``, so that the events after it keep their places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from mulligan import codec
from mulligan.journal import chain
from mulligan.journal.chain import LOST
from mulligan.journal.found_records import DERIVED, FoundRecords
from mulligan.journal.protocol import STORE_SCOPE
from mulligan.journal.rebuild_chain import (
    ACTOR,
    LostEvent,
    PlacedEvent,
    SessionChain,
    event_fields,
)
from mulligan.journal.rebuild_purges import Load, add_tombstones
from mulligan.journal.records import (
    CHECKSUM_SIZE,
    COLLECTION,
    DAMAGE,
    DELETED,
    ERASE,
    FORGOTTEN,
    LENGTH,
    NUMBER,
    PLACE,
    STORE,
    RawRecord,
    checksum,
    clock_key,
    decode,
    decode_copy,
    decode_head,
    encode,
    encode_fold,
    encode_head,
    encode_lease,
    foreign_key,
    label_key,
)
from mulligan.model import (
    DIGEST_SIZE,
    ID_SIZE,
    Fold,
    ForkOrigin,
    Head,
    Holder,
    Lease,
    SessionRecord,
)

_CHECKPOINT, _CREATED, _FORKED = "checkpoint.created", "session.created", "session.forked"
"""The kinds that tables are derived from; see ``mulligan.document.fold``."""


class Rebuilt(NamedTuple):
    """The content of the tables, and what was lost and mended on the way to it.

    ``without_head`` are the numbers of the sessions whose head was not found where the newest
    commit has it: nothing proves that the newest event that was found is the newest there was.
    """

    tables: dict[str, dict[bytes, bytes]]
    lost: list[LostEvent]
    mended: list[tuple[str, int]]
    unproven: list[tuple[str, int]]
    assumed: list[str]
    without_head: list[int]


def rebuild(records: Iterable[RawRecord], store_id: bytes, load: Load | None = None) -> Rebuilt:
    """Return the tables that the records lead to; never raises for damage.

    ``load`` reads values of events that are objects; it raises ``MissingObject``.
    """
    found = FoundRecords()
    for record in records:
        found.add(record)
    first = _Rebuild(found, store_id)
    rebuilt = first.run()
    if load is None or not add_tombstones(found, first.events(), load):
        return rebuilt
    # Once more: what is left of a purged event is known by its tombstone alone.
    return _Rebuild(found, store_id).run()


class _Rebuild:
    def __init__(self, found: FoundRecords, store_id: bytes) -> None:
        self._found = found
        self._store_id = store_id
        self._tables: dict[str, dict[bytes, bytes]] = {name: {} for name in DERIVED}
        self._lost: list[LostEvent] = []
        self._mended: list[tuple[str, int]] = []
        self._unproven: list[tuple[str, int]] = []
        self._assumed: list[str] = []
        self._sessions: dict[int, SessionRecord] = {}
        self._owners: dict[tuple[str, str | None], int] = {}
        self._events: dict[int, dict[int, PlacedEvent]] = {}
        self._folds: dict[int, list[Fold]] = {}
        self._heads: dict[int, Head] = {}
        self.misplaced: list[bytes] = []

    def run(self) -> Rebuilt:
        self._put("meta", STORE, self._store_id)
        known = self._numbers()
        self._collect_misplaced(known)
        self._find_owners(known)
        for number in sorted(known):
            self._session(number)
        self._meta()
        return Rebuilt(
            self._tables,
            self._lost,
            self._mended,
            self._unproven,
            self._assumed,
            [n for n in self._sessions if not self._found.is_current("heads", NUMBER.pack(n))],
        )

    def events(self) -> Iterator[PlacedEvent]:
        """Yield the events of all sessions in their places."""
        for events in self._events.values():
            yield from events.values()

    def _numbers(self) -> set[int]:
        """Return the numbers of the sessions: those with a record, or with a first event."""
        sessions = self._found.tables["sessions"]
        known = {NUMBER.unpack(key)[0] for key in sessions}
        names = {decode(content, SessionRecord, "sessions").name for content in sessions.values()}
        for number in self._found.events.keys() - known:
            first = self._first_event(number)
            # With the name of another session, it is an event whose key is damaged.
            if first is not None and first[1][4].get("name") not in names:
                known.add(number)
        return known

    def _find_owners(self, known: set[int]) -> None:
        """Note which session has a name or a key, if several seem to.

        A deleted session may be known from an older version of its record, or from its first event
        alone. Both have the name and the key from before, which another session may have by now.
        """
        for number in sorted(known, key=self._trust):
            record = self._read(number)
            if record is not None:
                self._owners["name", record.name] = number
                self._owners["key", record.key] = number

    def _trust(self, number: int) -> tuple[bool, bool, int]:
        """Return how sure the name of a session is; of two, the later one got it last."""
        key = NUMBER.pack(number)
        is_current = self._found.is_current("sessions", key)
        return is_current, key in self._found.tables["sessions"], number

    def _collect_misplaced(self, known: set[int]) -> None:
        """Set aside the events whose keys name no session: their keys may be damaged."""
        for number in self._found.events.keys() - known:
            for records in self._found.events[number].values():
                self.misplaced += records

    def _first_event(self, number: int) -> tuple[int, Any, bytes] | None:
        """Return the seq, the fields and the record of the event that started a session."""
        for seq in sorted(self._found.events[number]):
            for record in self._found.events[number][seq]:
                fields = event_fields(record, seq)
                if fields is not None and fields[3] in (_CREATED, _FORKED):
                    return seq, fields, record
        return None

    def _session(self, number: int) -> None:
        record = self._record(number)
        if record is None:
            return
        self._sessions[number] = record
        key = NUMBER.pack(number)
        self._put("sessions", key, encode(record))
        self._put("names", record.name.encode(), key)
        if record.key is not None:
            self._put("keys", foreign_key(STORE_SCOPE, record.key), LENGTH.pack(number))
        base = record.origin.seq if record.origin else 0
        chained = SessionChain(self, self._found, record)
        events = {event.seq: event for event in chained.events()}
        self._events[number], self._folds[number] = events, chained.folds
        for event in events.values():
            self._put_event(number, event)
        for fold in chained.folds:
            self._put("folds", PLACE.pack(number, fold.last), encode_fold(fold))
        self._put_keyframes(number, base)
        self._put_copies(number)
        self._put_clock(number, record)
        self._put_leases(number)
        self._put_head(number, record)

    def _record(self, number: int) -> SessionRecord | None:
        """Return the record of a session, with a name and a key that no other session has."""
        record = self._read(number)
        if record is None:
            return None
        if self._owners["name", record.name] != number:
            name = f"{record.name}-recovered-{number}"
            record = msgspec.structs.replace(record, name=name)
        if self._owners["key", record.key] != number:
            record = msgspec.structs.replace(record, key=None)
        if NUMBER.pack(number) not in self._found.tables["sessions"]:
            made = f"session {record.name!r}: its record was made from its first event"
            self._assumed.append(made)
        return record

    def _read(self, number: int) -> SessionRecord | None:
        content = self._found.tables["sessions"].get(NUMBER.pack(number))
        if content is not None:
            return decode(content, SessionRecord, "sessions")
        started = self._first_event(number)
        if started is None:
            return None
        seq, (time, _, _, kind, payload), _ = started
        name = str(payload.get("name") or f"recovered-{number}")
        origin = None
        if kind == _FORKED:
            parents = {record.name: record.number for record in self._sessions.values()}
            parent = parents.get(str(payload.get("session")))
            origin = None if parent is None else ForkOrigin(parent, seq - 1)
        return SessionRecord(number, name, codec.from_micros(time), origin, payload.get("key"))

    def hash_at(self, number: int, seq: int) -> bytes | None:
        """Return the hash of an event of a session or of its ancestors; None if it is unknown."""
        event = self._event_at(number, seq)
        if event is None or (event.kind == LOST and event.payload.get("guess")):
            return None
        return event.hash

    def _event_at(self, number: int, seq: int) -> PlacedEvent | None:
        """Return an event of a session or of its ancestors, if it is known."""
        while number in self._sessions:
            origin = self._sessions[number].origin
            if origin is None or seq > origin.seq:
                return self._events[number].get(seq)
            number = origin.session
        return None

    def note(self, name: str, seq: int, how: str) -> None:
        """Note an event that was mended, or that nothing proves."""
        (self._mended if how == "mended" else self._unproven).append((name, seq))

    def note_lost(self, lost: LostEvent) -> None:
        """Note an event that is gone."""
        self._lost.append(lost)

    def _put_event(self, number: int, event: PlacedEvent) -> None:
        place = PLACE.pack(number, event.seq)
        self._tables["events"][place] = event.record
        if event.kind != _CHECKPOINT:
            return
        identity = event.hash[:ID_SIZE]
        if self._found.tables["pruned"].get(place) == identity:
            self._put("pruned", place, identity)
            return
        self._put("checkpoints", place, identity)
        self._put("ids", identity, place)
        if label := event.payload.get("label"):
            self._put("labels", label_key(number, label) + LENGTH.pack(event.seq), b"")
        if (foreign := event.payload.get("key")) is not None:
            self._put("keys", foreign_key(number, foreign), LENGTH.pack(event.seq))

    def _put_keyframes(self, number: int, base: int) -> None:
        events = self._events[number]
        for key, digest in self._found.tables["keyframes"].items():
            owner, seq = PLACE.unpack(key)
            if owner == number and seq in events and seq > base:
                self._put("keyframes", key, digest)
        for event in events.values():
            named = event.payload.get("keyframe") if event.kind == _CHECKPOINT else None
            if isinstance(named, bytes) and len(named) == DIGEST_SIZE:
                self._put("keyframes", PLACE.pack(number, event.seq), named)
        for fold in self._folds[number]:
            self._put("keyframes", PLACE.pack(number, fold.last), fold.keyframe)

    def _put_copies(self, number: int) -> None:
        """Keep the copies that have an event which is still there."""
        for key, content in self._found.tables["copies"].items():
            owner, last = PLACE.unpack(key)
            if owner != number:
                continue
            first, _ = decode_copy(content)
            if not last or any(seq in self._events[number] for seq in range(first, last + 1)):
                self._put("copies", key, content)

    def _put_clock(self, number: int, record: SessionRecord) -> None:
        steps: list[int] = []
        # The first event of a fork follows its parent's.
        origin = record.origin
        parent = None if origin is None else self._event_at(origin.session, origin.seq)
        before = None if parent is None else parent.time
        ends = {fold.last: fold.ended for fold in self._folds[number]}
        for seq, event in self._events[number].items():
            before = ends.get(seq - 1, before)
            if before is not None and event.time < before:
                steps.append(seq)
            before = event.time
        if steps:
            self._put("meta", clock_key(number), b"".join(map(LENGTH.pack, steps)))

    def _put_leases(self, number: int) -> None:
        prefix = NUMBER.pack(number)
        for key, content in self._found.tables["leases"].items():
            if key.startswith(prefix):
                self._put("leases", key, content)
        epochs: dict[str, int] = {}
        for event in self._events[number].values():
            epochs[event.actor] = max(event.epoch, epochs.get(event.actor, 0))
        for actor, epoch in epochs.items():
            key = prefix + actor.encode()
            if epoch and key not in self._tables["leases"]:
                # Released, and with the epoch that was used: the next one is higher.
                lease = Lease(actor, epoch, Holder(ACTOR), codec.from_micros(0), True)
                self._put("leases", key, encode_lease(lease))
                self._assumed.append(f"the lease of {actor!r}: it was lost and counts as released")

    def _put_head(self, number: int, record: SessionRecord) -> None:
        key, head = NUMBER.pack(number), self._empty_head(record)
        for event in self._events[number].values():
            head = msgspec.structs.replace(head, seq=event.seq, hash=event.hash, time=event.time)
        own = self._newest("keyframes", number)
        if own is not None:
            head = msgspec.structs.replace(head, keyframe=own[0])
        latest = self._newest("checkpoints", number)
        if latest is not None:
            head = msgspec.structs.replace(head, checkpoint=(latest[0], latest[1].hex()))
        self._heads[number] = head
        content = self._found.tables["heads"].get(key)
        known, base = content and decode_head(content), record.origin.seq if record.origin else 0
        # A fork may still name a keyframe of its parent that a fold has replaced since. One of its
        # own that is gone is lost.
        if known and own is None and known.seq == head.seq and known.keyframe <= base:
            head = msgspec.structs.replace(head, keyframe=known.keyframe)
        self._put("heads", key, encode_head(head))

    def _empty_head(self, record: SessionRecord) -> Head:
        """Return the head of a session without events: empty, or that of its origin."""
        origin = record.origin
        if origin is None or origin.session not in self._sessions:
            return Head(0, chain.GENESIS, record.created)
        number, seq = origin.session, origin.seq
        hash_ = self.hash_at(number, seq) or chain.GENESIS
        keyframe = self._before("keyframes", number, seq)
        checkpoint = self._before("checkpoints", number, seq)
        return Head(
            seq,
            hash_,
            record.created,
            keyframe[0] if keyframe else 0,
            (checkpoint[0], checkpoint[1].hex()) if checkpoint else None,
        )

    def _newest(self, table: str, number: int) -> tuple[int, bytes] | None:
        return self._own_before(table, number, 2**64 - 1)

    def _before(self, table: str, number: int, seq: int) -> tuple[int, bytes] | None:
        """Return the newest record at or before ``seq``, including those of ancestors."""
        while True:
            found = self._own_before(table, number, seq)
            origin = self._sessions[number].origin
            if found is not None or origin is None or origin.session not in self._sessions:
                return found
            number, seq = origin.session, min(seq, origin.seq)

    def _own_before(self, table: str, number: int, seq: int) -> tuple[int, bytes] | None:
        start, stop = PLACE.pack(number, 0), PLACE.pack(number, seq)
        keys = [key for key in self._tables[table] if start <= key <= stop]
        if not keys:
            return None
        newest = max(keys)
        return PLACE.unpack(newest)[1], self._tables[table][newest][:-CHECKSUM_SIZE]

    def _meta(self) -> None:
        known = self._found.tables["meta"]
        if (content := known.get(COLLECTION)) is not None:
            self._put("meta", COLLECTION, content)
        for key in (FORGOTTEN, DAMAGE, DELETED, ERASE):
            if (content := known.get(key)) is not None:
                self._put("meta", key, content)
        for table in ("purges", "purged"):
            for key, content in self._found.tables[table].items():
                self._put(table, key, content)

    def _put(self, table: str, key: bytes, content: bytes) -> None:
        self._tables[table][key] = content + checksum(table, key, content)
