"""The events of one session, put in their places from whatever records were found.

An event counts if the chain proves it. What was lost, or cannot be proven, gets an event in its
place that says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, Protocol

from mulligan import codec
from mulligan.errors import DamagedJournal, DamageError
from mulligan.journal import chain
from mulligan.journal.chain import LOST
from mulligan.journal.found_records import FoundRecords
from mulligan.journal.records import LENGTH, NUMBER, PLACE, decode_head, decode_tombstone
from mulligan.model import DIGEST_SIZE, ID_SIZE, Fold, NewEvent, SessionRecord

ACTOR = "upkeep"

MAX_MENDED = 8_192
"""The largest damaged record in bytes that is searched for a single flipped bit."""


class LostEvent(NamedTuple):
    """An event that is gone; ``checkpoint`` and ``label`` are known if it was a checkpoint."""

    session: str
    seq: int
    checkpoint: str | None = None
    label: str | None = None


class PlacedEvent(NamedTuple):
    """An event that was found in its place, or what takes its place."""

    seq: int
    record: bytes
    time: datetime
    actor: str
    epoch: int
    kind: str
    payload: Any

    @property
    def hash(self) -> bytes:
        """The hash that the next event continues from."""
        return chain.record_hash(self.record)


class Notes(Protocol):
    """What the chain of a session needs from the rebuild of all sessions."""

    misplaced: list[bytes]

    def hash_at(self, number: int, seq: int) -> bytes | None:
        """Return the hash of an event of a session or of its ancestors; None if it is unknown."""

    def note(self, name: str, seq: int, how: str) -> None:
        """Note an event that was mended, or that nothing proves."""

    def note_lost(self, lost: LostEvent) -> None:
        """Note an event that is gone."""


class SessionChain:
    """Puts the events of one session in their places, and fills the places of lost ones."""

    def __init__(self, rebuild: Notes, found: FoundRecords, record: SessionRecord) -> None:
        self._rebuild = rebuild
        self._number, self._name = record.number, record.name
        self._base = record.origin.seq if record.origin else 0
        self._created = record.created
        self._found = found
        self._candidates = found.events.get(record.number, {})
        self.folds: list[Fold] = []
        origin = record.origin
        self._prev: bytes | None = chain.GENESIS
        if origin is not None:
            self._prev = rebuild.hash_at(origin.session, origin.seq)

    def events(self) -> Iterator[PlacedEvent]:
        """Yield the events in their order, with something in the place of each lost one."""
        seq, time, last = self._base + 1, self._created, self._last()
        folds = self._whole_folds()
        while seq <= last:
            if (fold := folds.get(seq)) is not None:
                self.folds.append(fold)
                self._prev, seq, time = fold.hash, fold.last + 1, fold.ended
                continue
            event = self._event(seq) or self._placeholder(seq, time)
            yield event
            seq, time = seq + 1, event.time

    def _last(self) -> int:
        """Return the seq of the newest event that is known to have been there.

        The head may be older than the events. An event after it counts if it follows another one:
        the seq in a damaged key may be any number.
        """
        head = self._found.tables["heads"].get(NUMBER.pack(self._number))
        last = decode_head(head).seq if head is not None else self._base
        for seq, records in self._candidates.items():
            if seq > last and any(self._follows(seq, record) for record in records):
                last = seq
        misplaced = (r for seq, records in self._candidates.items() if seq > last for r in records)
        self._rebuild.misplaced += misplaced
        return max(last, self._base)

    def _follows(self, seq: int, record: bytes) -> bool:
        """Whether a record follows one of those at the place before."""
        if self._is_buried(seq, record):
            return True
        hashes = {chain.record_hash(before) for before in self._candidates.get(seq - 1, ())}
        if seq == self._base + 1 and self._prev is not None:
            hashes.add(self._prev)
        return any(chain.proven_hash(h, seq, record) == chain.record_hash(record) for h in hashes)

    def _is_buried(self, seq: int, record: bytes) -> bool:
        """Whether a record is what a purge left of an event, as its tombstone says."""
        content = self._found.tables["purged"].get(PLACE.pack(self._number, seq))
        if content is None or not chain.is_buried(record):
            return False
        try:
            left = chain.body_digest(chain.record_body(record))
        except DamagedJournal:
            return False
        return left == decode_tombstone(content).replacement

    def _whole_folds(self) -> dict[int, Fold]:
        """Return the folds by their first seq; those inside of larger ones are older versions."""
        found = self._found.folds.get(self._number, [])
        chosen: list[Fold] = []
        for fold in sorted(found, key=lambda fold: fold.first - fold.last):
            if all(fold.last < other.first or other.last < fold.first for other in chosen):
                chosen.append(fold)
        return {fold.first: fold for fold in chosen}

    def _event(self, seq: int) -> PlacedEvent | None:
        """Return the event at a place, None if it is lost."""
        records = self._candidates.get(seq, [])
        # Before those that the chain proves: an old page may still have what was purged.
        for record in filter(partial(self._is_buried, seq), records):
            return self._made(seq, record)
        if self._prev is None:
            return self._unproven(seq, records)
        for record in [*records, *self._rebuild.misplaced]:
            if chain.proven_hash(self._prev, seq, record) == chain.record_hash(record):
                return self._made(seq, record)
        for record in records:
            if chain.is_unproven(record) and (event := self._again(seq, record)) is not None:
                return event
            if (mended := self._mended(seq, record)) is not None:
                self._rebuild.note(self._name, seq, "mended")
                return self._made(seq, mended)
        return None

    def _made(self, seq: int, record: bytes) -> PlacedEvent:
        time, actor, epoch, kind, payload = chain.fields_of(record, seq)
        self._prev = chain.record_hash(record)
        return PlacedEvent(seq, record, codec.from_micros(time), actor, epoch, kind, payload)

    def _again(self, seq: int, record: bytes) -> PlacedEvent | None:
        """Return an event that an earlier repair could not prove, either."""
        try:
            chain.read_record(self._name, seq, chain.GENESIS, record)
        except DamagedJournal:
            return None
        event = self._made(seq, record)
        if event.kind == LOST and event.payload.get("guess"):
            self._prev = None
        return event

    def _unproven(self, seq: int, records: list[bytes]) -> PlacedEvent | None:
        """Return an event after a lost one whose hash is unknown: the one that others follow."""
        for record in records:
            if chain.is_unproven(record):
                return self._again(seq, record)
        fitting = [record for record in records if event_fields(record, seq) is not None]
        fitting.sort(key=lambda record: not self._is_followed(seq, record))
        if not fitting:
            return None
        self._rebuild.note(self._name, seq, "unproven")
        return self._made(seq, chain.unproven_record(seq, fitting[0]))

    def _is_followed(self, seq: int, record: bytes) -> bool:
        """Whether an event after this one proves its hash."""
        return self._is_hash(seq, chain.record_hash(record))

    def _is_hash(self, seq: int, hash_: bytes) -> bool:
        for after in self._candidates.get(seq + 1, ()):
            if chain.proven_hash(hash_, seq + 1, after) == chain.record_hash(after):
                return True
        head = self._found.tables["heads"].get(NUMBER.pack(self._number))
        if head is not None and decode_head(head).seq == seq:
            return decode_head(head).hash == hash_
        place = PLACE.pack(self._number, seq)
        known = (self._found.tables[table].get(place) for table in ("checkpoints", "pruned"))
        return hash_[:ID_SIZE] in known

    def _mended(self, seq: int, record: bytes) -> bytes | None:
        """Return a damaged record without its damage: a wrong hash, or one flipped bit."""
        assert self._prev is not None  # noqa: S101 -- the caller has looked
        right = chain.proven_hash(self._prev, seq, record)
        if (
            right is not None
            and event_fields(record, seq) is not None
            and self._is_hash(seq, right)
        ):
            return right + record[DIGEST_SIZE:]
        if len(record) > MAX_MENDED:
            return None
        attempt = bytearray(record)
        for at in range(DIGEST_SIZE, len(record)):
            for bit in range(8):
                attempt[at] ^= 1 << bit
                if chain.proven_hash(self._prev, seq, bytes(attempt)) == record[:DIGEST_SIZE]:
                    return bytes(attempt)
                attempt[at] ^= 1 << bit
        return None

    def _placeholder(self, seq: int, time: datetime) -> PlacedEvent:
        """Return the event in the place of one that is lost."""
        known = next(
            (h for r in self._candidates.get(seq, ()) if self._is_hash(seq, h := r[:DIGEST_SIZE])),
            self._hash_in_head(seq),
        )
        payload: dict[str, Any] = {}
        place = PLACE.pack(self._number, seq)
        identity = self._found.tables["checkpoints"].get(place)
        label = self._label(seq)
        if identity is not None:
            payload = {"checkpoint": identity.hex(), "label": label}
        if known is None:
            payload["guess"] = True
        new = NewEvent(LOST, codec.encode(payload), payload)
        body = chain.encode_body(new, time=time, actor=ACTOR, epoch=0)
        hash_ = known or chain.chain(bytes(DIGEST_SIZE), seq, body)
        record = chain.unproven_record(seq, chain.pack_record(hash_, body))
        self._prev = known
        self._rebuild.note_lost(
            LostEvent(self._name, seq, identity.hex() if identity else None, label)
        )
        return PlacedEvent(seq, record, time, ACTOR, 0, LOST, payload)

    def _hash_in_head(self, seq: int) -> bytes | None:
        head = self._found.tables["heads"].get(NUMBER.pack(self._number))
        if head is None or decode_head(head).seq != seq:
            return None
        return decode_head(head).hash

    def _label(self, seq: int) -> str | None:
        start, end = NUMBER.pack(self._number), b"\x00" + LENGTH.pack(seq)
        for key in self._found.tables["labels"]:
            if key.startswith(start) and key.endswith(end):
                return key[NUMBER.size : -len(end)].decode(errors="replace")
        return None


def event_fields(record: bytes, seq: int) -> list[Any] | None:
    """Return the fields of a record if they can be those of an event."""
    try:
        time, actor, epoch, kind, payload = fields = chain.fields_of(record, seq)
        codec.from_micros(time)
    except (DamageError, TypeError, ValueError, OverflowError):
        return None
    is_event = isinstance(actor, str) and isinstance(epoch, int) and isinstance(kind, str)
    return fields if is_event and isinstance(payload, dict) else None
