"""Reading a journal in ordered tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mulligan.errors import DamagedJournal, UnknownSession
from mulligan.journal import chain
from mulligan.journal.protocol import TableReader
from mulligan.journal.records import (
    LENGTH,
    MAX_SEQ,
    NUMBER,
    PLACE,
    clock_key,
    decode,
    decode_head,
    decode_lease,
    decode_location,
    decode_text,
    label_key,
    opened,
)
from mulligan.model import Digest, Event, Head, Lease, Location, SessionRecord


class ReadCache:
    """A cache: session records never change, and a head whose record has the same bytes need not
    be checked again."""

    def __init__(self) -> None:
        self.records: dict[int, SessionRecord] = {}
        self.heads: dict[int, tuple[bytes, Head]] = {}


class KvView:
    """A snapshot of the journal."""

    def __init__(self, reader: TableReader, memory: ReadCache) -> None:
        self._reader = reader
        self._memory = memory

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
        known = self._memory.records.get(number)
        if known is None:
            known = self._memory.records[number] = self._read_session(number)
        return known

    def head(self, number: int) -> Head:
        """Return the newest event's place."""
        key = NUMBER.pack(number)
        record = self._reader.get("heads", key)
        known = self._memory.heads.get(number)
        if known is not None and known[0] == record:
            return known[1]
        if record is None:
            raise DamagedJournal(f"Session number {number} has no head.")
        head = decode_head(opened("heads", key, record))
        self._memory.heads[number] = (record, head)
        return head

    def events(self, number: int, first: int, last: int) -> Iterator[Event]:
        """Yield the events ``first..last``, each checked against the chain."""
        for session, start, stop in self._segments(number, first, last):
            yield from self._own_events(session, start, stop)

    def checkpoints(self, number: int, first: int, last: int) -> list[tuple[int, str]]:
        """Return (seq, id) of the checkpoints within ``first..last``, oldest first."""
        found: list[tuple[int, str]] = []
        for session, start, stop in self._segments(number, first, last):
            entries = self._scan("checkpoints", session.number, start, stop)
            found += [(PLACE.unpack(key)[1], value.hex()) for key, value in entries]
        return found

    def checkpoint_before(self, number: int, seq: int) -> tuple[int, str] | None:
        """Return (seq, id) of the newest checkpoint at or before ``seq``."""
        nearest = self._nearest("checkpoints", number, seq)
        return None if nearest is None else (nearest[0], nearest[1].hex())

    def checkpoints_by_id(self, prefix: str) -> list[tuple[str, int, int]]:
        """Return (id, session number, seq) of every checkpoint whose id has the prefix."""
        digits = prefix.lower()
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

    def names(self) -> dict[str, int]:
        """Return the numbers of all sessions by their names."""
        found = self._reader.scan("names", b"", None)
        return {decode_text(k): NUMBER.unpack(opened("names", k, v))[0] for k, v in found}

    def labelled(self, number: int, label: str) -> list[int]:
        """Return the seqs of the session's own checkpoints that carry the label."""
        prefix = label_key(number, label)
        found = self._reader.scan("labels", prefix, prefix + b"\xff" * 9)
        keys = [key for key, value in found if opened("labels", key, value) == b""]
        return [LENGTH.unpack(key[len(prefix) :])[0] for key in keys]

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
            raise DamagedJournal("A record of the journal's table 'meta' is damaged.")
        return [seq for (seq,) in LENGTH.iter_unpack(value)]

    def keyframe(self, number: int, seq: int) -> tuple[int, Digest] | None:
        """Return the nearest keyframe at or before ``seq``."""
        nearest = self._nearest("keyframes", number, seq)
        return None if nearest is None else (nearest[0], Digest(nearest[1]))

    def lease(self, number: int, actor: str) -> Lease | None:
        """Return the last lease on the actor."""
        value = self._get("leases", NUMBER.pack(number) + actor.encode())
        return None if value is None else decode_lease(value)

    def locate(self, digest: Digest) -> Location | None:
        """Return the object's location."""
        value = self._reader.get("objects", digest)
        return None if value is None else decode_location(value)

    def locate_all(self, digests: Iterable[Digest]) -> dict[Digest, Location]:
        """Return the locations of the objects that the index has."""
        found = self._reader.get_all("objects", digests)
        return {Digest(digest): decode_location(value) for digest, value in found}

    def locations(self) -> Iterator[tuple[Digest, Location]]:
        """Yield the whole index of objects."""
        for key, value in self._reader.scan("objects", b"", None):
            yield Digest(key), decode_location(value)

    def pack_length(self, pack: int) -> int:
        """Return the acknowledged length of a pack, 0 if it has none."""
        value = self._get("packs", NUMBER.pack(pack))
        return 0 if value is None else int(LENGTH.unpack(value)[0])

    def packs(self) -> dict[int, int]:
        """Return the acknowledged length of every pack."""
        found = self._reader.scan("packs", b"", None)
        return {NUMBER.unpack(k)[0]: LENGTH.unpack(opened("packs", k, v))[0] for k, v in found}

    def _read_session(self, number: int) -> SessionRecord:
        value = self._get("sessions", NUMBER.pack(number))
        if value is None:
            raise UnknownSession(f"There is no session number {number}.")
        return decode(value, SessionRecord, "sessions")

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
            number, last = session.origin.session, min(last, base)
        return segments[::-1]

    def _own_events(self, session: SessionRecord, first: int, last: int) -> Iterator[Event]:
        prev = self._hash_before(session, first)
        seq = first
        for key, record in self._raw_scan("events", session.number, first, last):
            if key != PLACE.pack(session.number, seq):
                break
            event = chain.read_record(session.name, seq, prev, record)
            yield event
            prev = event.hash
            seq += 1
        if seq <= last:
            raise DamagedJournal(f"Event #{seq} of session {session.name!r} is missing.")

    def _hash_before(self, session: SessionRecord, seq: int) -> bytes:
        """Return the hash of the event before ``seq``, which may belong to the parent."""
        if seq == 1:
            return chain.GENESIS
        owner = session
        while owner.origin is not None and seq - 1 <= owner.origin.seq:
            owner = self.session(owner.origin.session)
        record = self._reader.get("events", PLACE.pack(owner.number, seq - 1))
        if record is None:
            raise DamagedJournal(f"Event #{seq - 1} of session {owner.name!r} is missing.")
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
        stop = PLACE.pack(number, min(last, MAX_SEQ) + 1)
        return self._reader.scan(table, start, stop, reverse=reverse)
