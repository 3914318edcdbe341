"""Removing from a journal in ordered tables: checkpoints, events, objects and areas.

Upkeep calls these in the order that docs/design/0006-upkeep.md explains. Each call leaves the
journal consistent, so a caller may split the work over any number of transactions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.journal import chain
from mulligan.journal.kv_view import KvView, ReadCache
from mulligan.journal.records import (
    COLLECTION,
    DAMAGE,
    FORGOTTEN,
    LENGTH,
    LOCATION,
    NUMBER,
    PLACE,
    checksum,
    decode_copy,
    encode,
    encode_fold,
    encode_tombstone,
    foreign_key,
    label_key,
)
from mulligan.model import (
    Collection,
    CollectionPhase,
    Digest,
    Fold,
    Location,
    NewEvent,
    Purge,
    SessionRecord,
    Tombstone,
)

if TYPE_CHECKING:
    from mulligan.journal.table_protocol import TableWriter


class KvRemoval(KvView, ABC):
    """The part of a write transaction that removes."""

    def __init__(self, writer: TableWriter, cache: ReadCache, failpoint: FailpointHook) -> None:
        super().__init__(writer, cache)
        self._writer = writer
        self._failpoint = failpoint

    def prune(self, number: int, seqs: Iterable[int]) -> None:
        """Remove checkpoints of the session; their events stay until they are folded."""
        self._check_owned(number)
        labelled = {seq: label for label, seq in self.labels(number)}
        keyed = {seq: digest for digest, seq in self.keys(number)}
        # Also those of forks: until it takes its own, a fork's newest checkpoint is its parent's.
        newest = {self.head(record.number).checkpoint for record in self.sessions()}
        for seq in seqs:
            place = PLACE.pack(number, seq)
            identity = self._get("checkpoints", place)
            if identity is None:
                continue
            if (seq, identity.hex()) in newest:
                raise ValueError("The newest checkpoint of a session is never pruned.")
            self._writer.delete("checkpoints", place)
            self._writer.delete("ids", identity)
            if seq in labelled:
                self._writer.delete("labels", label_key(number, labelled[seq]) + LENGTH.pack(seq))
            if seq in keyed:
                self._writer.delete("keys", NUMBER.pack(number) + keyed[seq])
            # Until its event is folded: points after it must not silently get older files.
            self._put("pruned", place, identity)

    def fold(self, number: int, fold: Fold) -> None:
        """Replace events of the session by a fold."""
        self._check_owned(number)
        self._check_fold(number, fold)
        for table in ("events", "keyframes", "pruned", "folds"):
            for key, _ in list(self._raw_scan(table, number, fold.first, fold.last)):
                self._writer.delete(table, key)
        self._put("folds", PLACE.pack(number, fold.last), encode_fold(fold))
        self._drop_copies(number, fold)
        # Replay must never need an event of a fold, so it starts here.
        self.put_keyframe(number, fold.last, fold.keyframe)

    def _drop_copies(self, number: int, fold: Fold) -> None:
        """Forget the copies that have nothing but folded events."""
        for key, value in list(self._scan("copies", number, fold.first, fold.last)):
            if decode_copy(value)[0] >= fold.first:
                self._writer.delete("copies", key)

    def _check_fold(self, number: int, fold: Fold) -> None:
        base = origin.seq if (origin := self.session(number).origin) else 0
        if not base + 1 < fold.first <= fold.last < self.head(number).seq:
            raise ValueError(f"Events #{fold.first} to #{fold.last} cannot be folded.")
        for other in self.folds(number):
            is_apart = other.last + 1 < fold.first or fold.last + 1 < other.first
            if not is_apart and not (fold.first <= other.first and other.last <= fold.last):
                raise ValueError(f"A fold starts at #{other.first} already.")
        needed = {seq for seq, _ in self.checkpoints(number, fold.first, fold.last)}
        needed |= {r.origin.seq for r in self.sessions() if r.origin and self._owns(number, r)}
        # Between two steps back, time does not go backwards; looking up times relies on that.
        needed |= {*self.own_steps_back(number)}
        if kept := [seq for seq in needed if fold.first <= seq <= fold.last]:
            raise ValueError(f"Event #{min(kept)} is needed and cannot be folded.")

    def _owns(self, number: int, fork: SessionRecord) -> bool:
        """Whether the event that a session was forked at belongs to the session of that number."""
        assert fork.origin is not None  # noqa: S101 -- it is a fork
        [(owner, _, _)] = self._segments(fork.origin.session, fork.origin.seq, fork.origin.seq)
        return owner.number == number

    @abstractmethod
    def put_keyframe(self, number: int, seq: int, digest: Digest) -> None:
        """Record that the object holds the session's document as of ``seq``."""

    def set_phase(self, phase: CollectionPhase) -> None:
        """Start the next phase of the collection."""
        count = self.collection().count + (phase == "sweep")
        self._put("meta", COLLECTION, encode(Collection(count, phase)))

    def condemn(self, digests: Iterable[Digest]) -> None:
        """Add objects to the list of condemned ones."""
        self._writer.add_all("condemned", ((digest, b"") for digest in digests))

    def unlist(self, condemned: Iterable[Digest] = (), fresh: Iterable[Digest] = ()) -> None:
        """Remove objects from the lists of condemned and fresh ones."""
        for digest in condemned:
            self._writer.delete("condemned", digest)
        for digest in fresh:
            self._writer.delete("fresh", digest)

    def sweep(self, digests: Iterable[Digest]) -> int:
        """Remove those that are condemned from the index and from the list; return how many."""
        removed = 0
        for digest in digests:
            if self._reader.get("condemned", digest) is not None:
                self._writer.delete("objects", digest)
                self._writer.delete("condemned", digest)
                self._writer.delete("damaged", digest)
                removed += 1
        return removed

    def relocate(self, moves: Mapping[Digest, tuple[Location, Location]]) -> int:
        """Change the locations of objects that are still at the first of two."""
        moved = 0
        for digest, (old, new) in moves.items():
            # Compared inside the transaction: a writer may have stored it again meanwhile.
            if self.locate(digest) == old:
                place = LOCATION.pack(new.area, new.offset, new.length, new.slot)
                self._writer.put("objects", digest, place)
                moved += 1
        return moved

    def forget_area(self, area: int) -> None:
        """Remove an area without objects; its number is not used again."""
        last = max(area, self.last_forgotten_area())
        self._put("meta", FORGOTTEN, NUMBER.pack(last))
        self._writer.delete("packs", NUMBER.pack(area))

    def put_purge(self, purge: Purge) -> None:
        """Write the record of a purge."""
        self._put("purges", NUMBER.pack(purge.number), encode(purge))

    def bury_object(self, digest: Digest, tombstone: Tombstone) -> None:
        """Take an object out of the index and leave a tombstone."""
        self._put("purged", digest, encode_tombstone(tombstone))
        for table in ("objects", "condemned", "fresh", "damaged"):
            self._writer.delete(table, digest)

    def bury_event(self, number: int, seq: int, payload: bytes, purge: int) -> Digest:
        """Replace the payload of an event, whose hash stays."""
        self._check_owned(number)
        [event] = self.events(number, seq, seq)
        new = NewEvent(event.kind, payload, None)
        body = chain.encode_body(new, time=event.time, actor=event.actor, epoch=event.epoch)
        place, digest = PLACE.pack(number, seq), chain.body_digest(body)
        self._writer.put("events", place, chain.buried_record(event.hash, body))
        self._put("purged", place, encode_tombstone(Tombstone(purge, digest)))
        return digest

    def drop_copy(self, number: int, last: int) -> None:
        """Forget a copy of events."""
        self._check_owned(number)
        self._writer.delete("copies", PLACE.pack(number, last))

    def drop_label(self, number: int, label: str, seq: int) -> None:
        """Remove a label of a checkpoint from the index of labels."""
        self._check_owned(number)
        self._writer.delete("labels", label_key(number, label) + LENGTH.pack(seq))

    def drop_key(self, number: int, key: str) -> None:
        """Remove the foreign key of one of the session's own checkpoints."""
        self._check_owned(number)
        self._writer.delete("keys", foreign_key(number, key))

    def _without_purged(self, entries: Mapping[Digest, Location]) -> Mapping[Digest, Location]:
        """Return what may be indexed: a bundle may hold what was purged since it was filled."""
        purged = self.tombstones(entries)
        return {d: place for d, place in entries.items() if d not in purged} if purged else entries

    def _note_stored(self, entries: Mapping[Digest, Location], values: Iterable[Digest]) -> None:
        """Remove what is stored again from the lists, and record it for a running collection."""
        if self.damage_count():
            self._replace("damaged", entries)
        phase = self.collection().phase
        if phase == "idle":
            return
        # An object may be stored without an event, and may refer to objects that are condemned.
        self._writer.add_all("fresh", ((digest, b"") for digest in values))
        if phase == "sweep":
            self._replace("condemned", entries)

    def _replace(self, table: str, entries: Mapping[Digest, Location]) -> None:
        """Give the objects on a list the locations at which they are stored now."""
        for digest, _ in list(self._reader.get_all(table, entries)):
            # Its old location is damaged or will be freed, so the new one counts.
            place = entries[Digest(digest)]
            value = LOCATION.pack(place.area, place.offset, place.length, place.slot)
            self._writer.put("objects", digest, value)
            self._writer.delete(table, digest)

    def note_damaged(self, digests: Iterable[Digest]) -> int:
        """Note objects of the index whose stored bytes are damaged; return how many are new."""
        known = [digest for digest, _ in self._reader.get_all("objects", digests)]
        noted = {digest for digest, _ in self._reader.get_all("damaged", known)}
        new = [(digest, b"") for digest in known if digest not in noted]
        if new:
            self._writer.add_all("damaged", new)
            self._put("meta", DAMAGE, LENGTH.pack(self.damage_count() + 1))
            self._failpoint(Failpoint.DAMAGE_NOTED)
        return len(new)

    def clear_damaged(self, digests: Iterable[Digest]) -> None:
        """Remove notes of damage."""
        for digest in digests:
            self._writer.delete("damaged", digest)

    @abstractmethod
    def _check_owned(self, number: int | None) -> None:
        """Refuse a write to another session than that of the transaction."""

    def _put(self, table: str, key: bytes, value: bytes) -> None:
        self._writer.put(table, key, value + checksum(table, key, value))
