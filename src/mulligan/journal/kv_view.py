"""Reading a journal in ordered tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from mulligan.errors import DamagedJournal, PointFolded, UnknownSession
from mulligan.journal import chain
from mulligan.journal.protocol import STORE_SCOPE
from mulligan.journal.records import (
    COLLECTION,
    DAMAGE,
    DELETED,
    ERASE,
    FORGOTTEN,
    LENGTH,
    LOCATION,
    MAX_SEQ,
    NUMBER,
    PLACE,
    clock_key,
    damaged_record,
    decode,
    decode_copy,
    decode_fold,
    decode_head,
    decode_lease,
    decode_location,
    decode_text,
    decode_tombstone,
    foreign_key,
    label_key,
    opened,
)
from mulligan.model import (
    DIGEST_SIZE,
    Collection,
    Deletions,
    Digest,
    Event,
    EventsCopied,
    Fold,
    Head,
    Lease,
    Location,
    Purge,
    SessionRecord,
    Tombstone,
)

_NOWHERE = Location(0, 0, 0, 0)
"""Where a purged object is."""

if TYPE_CHECKING:
    from mulligan.journal.protocol import FrameObjects
    from mulligan.journal.table_protocol import TableReader


class ReadCache:
    """A cache: a session or a head whose record has the same bytes need not be checked again."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[bytes, SessionRecord]] = {}
        self.heads: dict[int, tuple[bytes, Head]] = {}


def _count_at(frame: FrameObjects, places: Mapping[bytes, bytes]) -> int:
    area, offset, length = frame.area, frame.offset, frame.length
    return sum(
        [
            places.get(digest) == LOCATION.pack(area, offset, length, slot)
            for slot, digest in enumerate(frame.digests)
        ]
    )


class KvView:
    """A snapshot of the journal."""

    def __init__(self, reader: TableReader, cache: ReadCache) -> None:
        self._reader = reader
        self._cache = cache

    def sessions(self) -> list[SessionRecord]:
        """Return all sessions in the order of creation."""
        found = self._reader.scan("sessions", b"", None)
        return [decode(opened("sessions", k, v), SessionRecord, "sessions") for k, v in found]

    def find(self, name: str) -> SessionRecord | None:
        """Return the session of that name."""
        value = self._get("names", name.encode())
        return None if value is None else self.session(*NUMBER.unpack(value))

    def session(self, number: int) -> SessionRecord:
        """Return the session of that number."""
        key = NUMBER.pack(number)
        record = self._reader.get("sessions", key)
        known = self._cache.records.get(number)
        if known is not None and known[0] == record:
            return known[1]
        if record is None:
            raise UnknownSession(f"There is no session number {number}.")
        found = decode(opened("sessions", key, record), SessionRecord, "sessions")
        self._cache.records[number] = (record, found)
        return found

    def head(self, number: int) -> Head:
        """Return the newest event's place."""
        key = NUMBER.pack(number)
        record = self._reader.get("heads", key)
        known = self._cache.heads.get(number)
        # Comparing bytes is cheaper than checking and decoding them, and heads are read most often.
        if known is not None and known[0] == record:
            return known[1]
        if record is None:
            self.session(number)  # raises for one that was deleted while a handle was open
            raise DamagedJournal(f"Session number {number} has no head.")
        head = decode_head(opened("heads", key, record))
        self._cache.heads[number] = (record, head)
        return head

    def events(self, number: int, first: int, last: int) -> Iterator[Event]:
        """Yield the events ``first..last``, each checked against the chain."""
        for session, start, stop in self._segments(number, first, last):
            yield from self._own_events(session, start, stop)

    def remaining(self, number: int, first: int, last: int) -> Iterator[Event]:
        """Yield those of the events ``first..last`` that were not folded away, each checked."""
        for session, start, stop in self._segments(number, first, last):
            for begin, end in self._gaps(session.number, start, stop):
                yield from self._own_events(session, begin, end)

    def folds(self, number: int) -> list[Fold]:
        """Return the session's own folds, oldest first."""
        return list(self._folds_from(number, 1))

    def folded(self, number: int, first: int, last: int) -> list[Fold]:
        """Return the folds that take events of ``first..last``, including those of ancestors."""
        found: list[Fold] = []
        for session, start, stop in self._segments(number, first, last):
            for fold in self._folds_from(session.number, start):
                if fold.first > stop:
                    break
                found.append(fold)
        return found

    def inside_folds(self, number: int) -> list[tuple[str, int]]:
        """Return (table, seq) of the session's records that a fold should have removed."""
        found: list[tuple[str, int]] = []
        for fold in self.folds(number):
            for table in ("events", "checkpoints", "keyframes", "pruned"):
                # The keyframe at the end is what replay starts from.
                last = fold.last - 1 if table == "keyframes" else fold.last
                records = self._raw_scan(table, number, fold.first, last)
                found += [(table, PLACE.unpack(key)[1]) for key, _ in records]
        return found

    def checkpoints(
        self, number: int, first: int, last: int, *, reverse: bool = False, limit: int | None = None
    ) -> list[tuple[int, str]]:
        """Return (seq, id) of the checkpoints within ``first..last``, oldest first."""
        found: list[tuple[int, str]] = []
        for session, start, stop in self._segments(number, first, last)[:: -1 if reverse else 1]:
            left = None if limit is None else limit - len(found)
            entries = self._scan("checkpoints", session.number, start, stop, reverse=reverse)
            found += [(PLACE.unpack(k)[1], value.hex()) for k, value in islice(entries, left)]
        return found

    def checkpoint_before(self, number: int, seq: int) -> tuple[int, str] | None:
        """Return (seq, id) of the newest checkpoint at or before ``seq``."""
        nearest = self._nearest("checkpoints", number, seq)
        return None if nearest is None else (nearest[0], nearest[1].hex())

    def pruned_before(self, number: int, seq: int) -> tuple[int, str] | None:
        """Return (seq, id) of the newest pruned checkpoint at or before ``seq``."""
        nearest = self._nearest("pruned", number, seq)
        return None if nearest is None else (nearest[0], nearest[1].hex())

    def checkpoints_by_id(self, prefix: str) -> list[tuple[str, int, int]]:
        """Return (id, session number, seq) of every checkpoint whose id has the prefix."""
        digits = prefix.lower()
        # Half a byte cannot be part of a key: an odd last digit is compared as text below.
        start = bytes.fromhex(digits[: len(digits) // 2 * 2])
        found = []
        for key, value in self._reader.scan("ids", start, None):
            if not key.startswith(start):
                break
            if key.hex().startswith(digits):
                number, seq = PLACE.unpack(opened("ids", key, value))
                found.append((key.hex(), number, seq))
        return found

    def labels(self, number: int) -> list[tuple[str, int]]:
        """Return (label, seq) of the session's own labelled checkpoints."""
        start, stop = NUMBER.pack(number), NUMBER.pack(number + 1)
        keys = [
            key[NUMBER.size :]
            for key, value in self._reader.scan("labels", start, stop)
            if opened("labels", key, value) == b""
        ]
        split = -LENGTH.size
        return [(decode_text(k[: split - 1]), LENGTH.unpack(k[split:])[0]) for k in keys]

    def names(self, prefix: str = "") -> dict[str, int]:
        """Return the numbers of the sessions whose names have the prefix, by their names."""
        start = prefix.encode()
        # Names with the prefix are next to each other, so the rest of the index is not read.
        scan = self._reader.scan("names", start, None)
        found = takewhile(lambda item: item[0].startswith(start), scan)
        return {decode_text(k): NUMBER.unpack(opened("names", k, v))[0] for k, v in found}

    def labelled(self, number: int, label: str) -> list[int]:
        """Return the seqs of the session's own checkpoints that carry the label."""
        prefix = label_key(number, label)
        # Nine bytes of 0xff sort after any seq, which has eight.
        found = self._reader.scan("labels", prefix, prefix + b"\xff" * 9)
        keys = [key for key, value in found if opened("labels", key, value) == b""]
        return [LENGTH.unpack(key[len(prefix) :])[0] for key in keys]

    def keyed(self, number: int, key: str) -> int | None:
        """Return the seq of the checkpoint on the timeline that has the foreign key."""
        for session, start, stop in self._segments(number, 1, self.head(number).seq):
            value = self._get("keys", foreign_key(session.number, key))
            # A key that the parent gave after the fork is not on this timeline.
            if value is not None and start <= (seq := LENGTH.unpack(value)[0]) <= stop:
                return int(seq)
        return None

    def keyed_session(self, key: str) -> SessionRecord | None:
        """Return the session that has the foreign key."""
        value = self._get("keys", foreign_key(STORE_SCOPE, key))
        return None if value is None else self.session(LENGTH.unpack(value)[0])

    def keys(self, scope: int) -> list[tuple[bytes, int]]:
        """Return the digests of a scope's foreign keys with what each is of, in order."""
        found = self._reader.scan("keys", NUMBER.pack(scope), NUMBER.pack(scope + 1))
        start = NUMBER.size
        return [(k[start:], LENGTH.unpack(opened("keys", k, v))[0]) for k, v in found]

    def steps_back(self, number: int) -> list[int]:
        """Return the seqs of the events that are earlier than the one before them."""
        found: list[int] = []
        for session, start, stop in self._segments(number, 1, self.head(number).seq):
            found += [s for s in self.own_steps_back(session.number) if start <= s <= stop]
        return found

    def own_steps_back(self, number: int) -> list[int]:
        """Return only those of the session itself, not of an ancestor."""
        value = self._get("meta", clock_key(number)) or b""
        if len(value) % LENGTH.size:
            raise damaged_record("meta")
        return [seq for (seq,) in LENGTH.iter_unpack(value)]

    def keyframe(self, number: int, seq: int) -> tuple[int, Digest] | None:
        """Return the nearest keyframe at or before ``seq``."""
        nearest = self._nearest("keyframes", number, seq)
        return None if nearest is None else (nearest[0], Digest(nearest[1]))

    def next_to_copy(self, number: int) -> int:
        """Return the seq of the session's own first event that no copy has."""
        origin = self.session(number).origin
        last = origin.seq if origin else 0
        for key, _ in self._scan("copies", number, last + 1, MAX_SEQ, reverse=True):
            last = PLACE.unpack(key)[1]
            break
        fold = self._fold_after(number, last + 1)
        # What remains between older folds is in earlier copies, or was never copied.
        while fold is not None and fold.first <= last + 1:
            last = fold.last
            fold = self._fold_after(number, last + 1)
        return last + 1

    def event_records(self, number: int, first: int, last: int) -> list[bytes]:
        """Return the records of the session's own events from ``first`` on, unchecked."""
        found: list[bytes] = []
        for key, record in self._raw_scan("events", number, first, last):
            if key != PLACE.pack(number, first + len(found)):
                break
            found.append(record)
        return found

    def session_records(self, number: int) -> list[tuple[bytes, bytes]]:
        """Return key and value of the record that makes a session known."""
        key = NUMBER.pack(number)
        value = self._reader.get("sessions", key)
        return [] if value is None else [(key, value)]

    def removal_records(self, number: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values of the session's folds and pruned checkpoints."""
        tables = ("folds", "pruned")
        return [pair for table in tables for pair in self._raw_scan(table, number, 1, MAX_SEQ)]

    def purge_records(self) -> list[tuple[bytes, bytes]]:
        """Return keys and values of all purges and of what they left."""
        tables = ("purges", "purged")
        return [pair for table in tables for pair in self._reader.scan(table, b"", None)]

    def copies(self) -> Iterator[EventsCopied]:
        """Yield the copies of events among the objects."""
        for key, value in self._reader.scan("copies", b"", None):
            first, digest = decode_copy(opened("copies", key, value))
            number, last = PLACE.unpack(key)
            yield EventsCopied(number, first, last, digest)

    def lease(self, number: int, actor: str) -> Lease | None:
        """Return the last lease on the actor."""
        value = self._get("leases", NUMBER.pack(number) + actor.encode())
        return None if value is None else decode_lease(value)

    def leases(self, number: int) -> list[Lease]:
        """Return the last leases on all actors of a session."""
        found = self._reader.scan("leases", NUMBER.pack(number), NUMBER.pack(number + 1))
        return [decode_lease(opened("leases", key, value)) for key, value in found]

    def last_deleted_session(self) -> int:
        """Return the highest number of a session that was removed, 0 if none was."""
        value = self._get("meta", DELETED)
        return 0 if value is None else int(NUMBER.unpack(value)[0])

    def deletions(self) -> Deletions:
        """Return how often something was deleted, and where bytes of it may be left."""
        value = self._get("meta", ERASE)
        return Deletions() if value is None else decode(value, Deletions, "meta")

    def locate(self, digest: Digest) -> Location | None:
        """Return the object's location."""
        value = self._reader.get("objects", digest)
        return None if value is None else decode_location(value)

    def locate_all(self, digests: Iterable[Digest]) -> dict[Digest, Location]:
        """Return the locations of the objects that the index has."""
        found = self._reader.get_all("objects", digests)
        return {Digest(digest): decode_location(value) for digest, value in found}

    def indexed(self, digests: Iterable[Digest]) -> set[Digest]:
        """Return those of some objects that the index has."""
        # In order: neighbours are on the same page.
        return {Digest(digest) for digest, _ in self._reader.get_all("objects", sorted(digests))}

    def indexed_at(self, frames: Sequence[FrameObjects]) -> list[int]:
        """Return for each of some frames how many of its objects the index finds there."""
        wanted = sorted({digest for frame in frames for digest in frame.digests})
        # Compared as bytes: a store of small files has many objects.
        places = dict(self._reader.get_all("objects", wanted))
        return [_count_at(frame, places) for frame in frames]

    def object_count(self) -> int:
        """Return how many objects the index has."""
        return sum(1 for _ in self._reader.scan("objects", b"", None))

    def locate_usable(self, digests: Iterable[Digest]) -> dict[Digest, Location]:
        """Return the locations of the objects that need not be stored again."""
        digests = list(digests)
        found = self.locate_all(digests)
        if found and self.collection().phase == "sweep":
            for digest, _ in self._reader.get_all("condemned", list(found)):
                del found[Digest(digest)]
        if found and self.damage_count():
            for digest, _ in self._reader.get_all("damaged", list(found)):
                del found[Digest(digest)]
        return found | self._purged_among(digests)

    def _purged_among(self, digests: Iterable[Digest]) -> dict[Digest, Location]:
        if not self.last_purge():
            return {}
        return {Digest(key): _NOWHERE for key, _ in self._reader.get_all("purged", digests)}

    def purges(self) -> list[Purge]:
        """Return what was purged from the store, oldest first."""
        found = self._reader.scan("purges", b"", None)
        return [decode(opened("purges", k, v), Purge, "purges") for k, v in found]

    def last_purge(self) -> int:
        """Return the number of the newest purge, 0 if there was none."""
        last = next(self._reader.scan("purges", b"", None, reverse=True), None)
        return 0 if last is None else int(NUMBER.unpack(last[0])[0])

    def tombstones(self, digests: Iterable[Digest]) -> dict[Digest, Tombstone]:
        """Return what purges left of objects."""
        if not self.last_purge():
            return {}
        found = self._reader.get_all("purged", digests)
        return {Digest(k): decode_tombstone(opened("purged", k, v)) for k, v in found}

    def buried_objects(self) -> Iterator[tuple[Digest, Tombstone]]:
        """Yield the objects of which purges left a tombstone, in order."""
        for key, value in self._reader.scan("purged", b"", None):
            if len(key) == DIGEST_SIZE:
                yield Digest(key), decode_tombstone(opened("purged", key, value))

    def buried_events(self) -> Iterator[tuple[int, int, Tombstone]]:
        """Yield the events that purges changed, in order."""
        for key, value in self._reader.scan("purged", b"", None):
            if len(key) == PLACE.size:
                yield *PLACE.unpack(key), decode_tombstone(opened("purged", key, value))

    def collection(self) -> Collection:
        """Return the state of the garbage collection."""
        value = self._get("meta", COLLECTION)
        return Collection() if value is None else decode(value, Collection, "meta")

    def condemned(self) -> Iterator[Digest]:
        """Yield the objects on the list of condemned ones, in order."""
        return (Digest(key) for key, _ in self._reader.scan("condemned", b"", None))

    def fresh(self) -> Iterator[Digest]:
        """Yield the objects that were stored since the present collection started, in order."""
        return (Digest(key) for key, _ in self._reader.scan("fresh", b"", None))

    def damaged(self) -> Iterator[Digest]:
        """Yield the objects that are noted as damaged, in order."""
        return (Digest(key) for key, _ in self._reader.scan("damaged", b"", None))

    def damage_count(self) -> int:
        """Return how often damage was noted so far."""
        value = self._get("meta", DAMAGE)
        return 0 if value is None else int(LENGTH.unpack(value)[0])

    def locations(self, after: Digest | None = None) -> Iterator[tuple[Digest, Location]]:
        """Yield the index of objects in order, or what follows a digest."""
        start = b"" if after is None else after + b"\x00"
        for key, value in self._reader.scan("objects", start, None):
            yield Digest(key), decode_location(value)

    def last_forgotten_area(self) -> int:
        """Return the highest number of an area that was removed, 0 if none was."""
        value = self._get("meta", FORGOTTEN)
        return 0 if value is None else int(NUMBER.unpack(value)[0])

    def area_length(self, area: int) -> int:
        """Return the acknowledged length of an area, 0 if it has none."""
        value = self._get("packs", NUMBER.pack(area))
        return 0 if value is None else int(LENGTH.unpack(value)[0])

    def area_lengths(self) -> dict[int, int]:
        """Return the acknowledged length of every area."""
        found = self._reader.scan("packs", b"", None)
        return {NUMBER.unpack(k)[0]: LENGTH.unpack(opened("packs", k, v))[0] for k, v in found}

    def _segments(self, number: int, first: int, last: int) -> list[tuple[SessionRecord, int, int]]:
        """Return which session owns which part of ``first..last``, oldest ancestor first."""
        segments: list[tuple[SessionRecord, int, int]] = []
        first = max(first, 1)
        while last >= first:
            session = self.session(number)
            base = session.origin.seq if session.origin else 0
            if last > base:
                segments.append((session, max(first, base + 1), last))
            if session.origin is None:
                break
            # Only up to the origin: later events of the parent are not part of the fork.
            number, last = session.origin.session, min(last, base)
        return segments[::-1]

    def _own_events(self, session: SessionRecord, first: int, last: int) -> Iterator[Event]:
        prev = self._hash_before(session, first)
        seq = first
        for key, record in self._raw_scan("events", session.number, first, last):
            # A gap: stop, and report the missing event below.
            if key != PLACE.pack(session.number, seq):
                break
            if chain.is_buried(record):
                left = self._buried(key)
                event = chain.read_buried(session.name, seq, prev, record, left)
            else:
                event = chain.read_record(session.name, seq, prev, record)
            yield event
            prev = event.hash
            seq += 1
        if seq <= last:
            self._refuse_folded(session, seq)
            raise DamagedJournal(f"Event #{seq} of session {session.name!r} is missing.")

    def _buried(self, place: bytes) -> Tombstone | None:
        value = self._get("purged", place)
        return None if value is None else decode_tombstone(value)

    def _gaps(self, number: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the stretches of ``first..last`` between the session's folds."""
        for fold in self.folds(number):
            if first > last:
                return
            if fold.first > first:
                yield first, min(last, fold.first - 1)
            first = max(first, fold.last + 1)
        if first <= last:
            yield first, last

    def _folds_from(self, number: int, seq: int) -> Iterator[Fold]:
        """Yield the session's folds that end at or after ``seq``, oldest first."""
        for key, value in self._scan("folds", number, seq, MAX_SEQ):
            yield decode_fold(PLACE.unpack(key)[1], value)

    def _fold_after(self, number: int, seq: int) -> Fold | None:
        """Return the session's first fold that ends at or after ``seq``."""
        return next(self._folds_from(number, seq), None)

    def _refuse_folded(self, session: SessionRecord, seq: int) -> None:
        """Raise ``PointFolded`` if the event was folded away."""
        fold = self._fold_after(session.number, seq)
        if fold is None or fold.first > seq:
            return
        ends = [f"#{end}" for end in (fold.first - 1, fold.last + 1) if end]
        raise PointFolded(
            f"Event #{seq} of session {session.name!r} was folded away; the nearest events that "
            f"remain are {' and '.join(ends)}."
        )

    def _hash_before(self, session: SessionRecord, seq: int) -> bytes:
        """Return the hash of the event before ``seq``, which may belong to the parent."""
        if seq == 1:
            return chain.GENESIS
        owner = session
        while owner.origin is not None and seq - 1 <= owner.origin.seq:
            owner = self.session(owner.origin.session)
        record = self._reader.get("events", PLACE.pack(owner.number, seq - 1))
        if record is None:
            fold = self._fold_after(owner.number, seq - 1)
            if fold is not None and fold.last == seq - 1:
                return fold.hash
            self._refuse_folded(owner, seq - 1)
            raise DamagedJournal(f"Event #{seq - 1} of session {owner.name!r} is missing.")
        # Not checked here: if it is wrong, the check of the event that follows it fails.
        return chain.record_hash(record)

    def _nearest(self, table: str, number: int, seq: int) -> tuple[int, bytes] | None:
        """Return the newest record at or before ``seq``, including those of the parent."""
        for session, start, stop in reversed(self._segments(number, 1, seq)):
            for key, value in self._scan(table, session.number, start, stop, reverse=True):
                return PLACE.unpack(key)[1], value
        return None

    def _get(self, table: str, key: bytes) -> bytes | None:
        value = self._reader.get(table, key)
        return None if value is None else opened(table, key, value)

    def _scan(
        self, table: str, number: int, first: int, last: int, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._raw_scan(table, number, first, last, reverse=reverse):
            yield key, opened(table, key, value)

    def _raw_scan(
        self, table: str, number: int, first: int, last: int, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        start = PLACE.pack(number, first)
        # Callers may pass any number as "to the end"; the key has room for 64 bits.
        stop = PLACE.pack(number, min(last, MAX_SEQ) + 1)
        return self._reader.scan(table, start, stop, reverse=reverse)
