"""A journal over ordered tables: what each key and record is, written once for all backends."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TypeVar

import msgspec
from blake3 import blake3

from mulligan import codec
from mulligan.errors import DamagedJournal, SessionExists, StaleLease, UnknownSession
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.journal import chain
from mulligan.journal.protocol import Examined, TableReader, Tables, TableWriter
from mulligan.model import (
    DIGEST_SIZE,
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

T = TypeVar("T")

_NUMBER = struct.Struct(">I")
_PLACE = struct.Struct(">IQ")
_HEAD = struct.Struct(f">Q{DIGEST_SIZE}sqQQ{ID_SIZE}s")
_LOCATION = struct.Struct(">IQII")
_LENGTH = struct.Struct(">Q")
_CHECK = 8
_STORE = b"store"
_MAX_SEQ = 2**64 - 2

MAX_AHEAD = timedelta(minutes=1)
"""How far an event's time may run ahead of the clock of whoever writes it."""

EARLIEST = datetime(2025, 1, 1, tzinfo=UTC)
"""A clock that shows less was never set; this program is younger."""

_encode = msgspec.msgpack.encode


class ReadCache:
    """What was read or written before: session records never change, and a head whose record is
    the same to the byte need not be checked again."""

    def __init__(self) -> None:
        self.records: dict[int, SessionRecord] = {}
        self.heads: dict[int, tuple[bytes, Head]] = {}


class KvView:
    """A snapshot of the journal."""

    def __init__(self, reader: TableReader, memory: ReadCache) -> None:
        self._reader = reader
        self._memory = memory

    def sessions(self) -> list[SessionRecord]:
        """Return all sessions in the order they were made."""
        found = self._reader.scan("sessions", b"", None)
        return [_decode(_opened("sessions", k, v), SessionRecord, "sessions") for k, v in found]

    def find(self, name: str) -> SessionRecord | None:
        """Return the session of that name."""
        value = self._get("names", name.encode())
        return None if value is None else self.session(*_NUMBER.unpack(value))

    def session(self, number: int) -> SessionRecord:
        """Return the session of that number."""
        known = self._memory.records.get(number)
        if known is None:
            known = self._memory.records[number] = self._read_session(number)
        return known

    def head(self, number: int) -> Head:
        """Return the newest event's place."""
        key = _NUMBER.pack(number)
        record = self._reader.get("heads", key)
        known = self._memory.heads.get(number)
        if known is not None and known[0] == record:
            return known[1]
        if record is None:
            raise DamagedJournal(f"Session number {number} has no head.")
        head = _head(_opened("heads", key, record))
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
            found += [(_PLACE.unpack(key)[1], value.hex()) for key, value in entries]
        return found

    def checkpoint_before(self, number: int, seq: int) -> tuple[int, str] | None:
        """Return (seq, id) of the newest checkpoint at or before ``seq``."""
        nearest = self._nearest("checkpoints", number, seq)
        return None if nearest is None else (nearest[0], nearest[1].hex())

    def checkpoints_by_id(self, prefix: str) -> list[tuple[str, int, int]]:
        """Return (id, session number, seq) of every checkpoint whose id starts so."""
        digits = prefix.lower()
        start = bytes.fromhex(digits[: len(digits) // 2 * 2])
        found = []
        for key, value in self._reader.scan("ids", start, None):
            if not key.startswith(start):
                break
            if key.hex().startswith(digits):
                number, seq = _PLACE.unpack(_opened("ids", key, value))
                found.append((key.hex(), number, seq))
        return found

    def labels(self, number: int) -> list[tuple[str, int]]:
        """Return (label, seq) of the session's own labelled checkpoints."""
        start, stop = _NUMBER.pack(number), _NUMBER.pack(number + 1)
        keys = [
            key[_NUMBER.size :]
            for key, value in self._reader.scan("labels", start, stop)
            if _opened("labels", key, value) == b""
        ]
        split = -_LENGTH.size
        return [(_text(k[: split - 1]), _LENGTH.unpack(k[split:])[0]) for k in keys]

    def names(self) -> dict[str, int]:
        """Return the numbers of all sessions by their names."""
        found = self._reader.scan("names", b"", None)
        return {_text(k): _NUMBER.unpack(_opened("names", k, v))[0] for k, v in found}

    def labelled(self, number: int, label: str) -> list[int]:
        """Return the seqs of the session's own checkpoints that carry the label."""
        prefix = _label_key(number, label)
        found = self._reader.scan("labels", prefix, prefix + b"\xff" * 9)
        keys = [key for key, value in found if _opened("labels", key, value) == b""]
        return [_LENGTH.unpack(key[len(prefix) :])[0] for key in keys]

    def steps_back(self, number: int) -> list[int]:
        """Return the seqs of the events that are earlier than the one before them."""
        found: list[int] = []
        for session, start, stop in self._segments(number, 1, self.head(number).seq):
            found += [s for s in self.own_steps_back(session.number) if start <= s <= stop]
        return found

    def own_steps_back(self, number: int) -> list[int]:
        """Return those of them that are the session's own, and not an ancestor's."""
        value = self._get("meta", _clock_key(number)) or b""
        if len(value) % _LENGTH.size:
            raise DamagedJournal("A record of the journal's table 'meta' is damaged.")
        return [seq for (seq,) in _LENGTH.iter_unpack(value)]

    def keyframe(self, number: int, seq: int) -> tuple[int, Digest] | None:
        """Return the nearest keyframe at or before ``seq``."""
        nearest = self._nearest("keyframes", number, seq)
        return None if nearest is None else (nearest[0], Digest(nearest[1]))

    def lease(self, number: int, actor: str) -> Lease | None:
        """Return the last lease on the actor."""
        value = self._get("leases", _NUMBER.pack(number) + actor.encode())
        return None if value is None else _decode(value, Lease, "leases")

    def locate(self, digest: Digest) -> Location | None:
        """Return where the object lies."""
        value = self._reader.get("objects", digest)
        return None if value is None else _location(value)

    def locate_all(self, digests: Iterable[Digest]) -> dict[Digest, Location]:
        """Return where those objects lie that the index knows."""
        found = self._reader.get_all("objects", digests)
        return {Digest(digest): _location(value) for digest, value in found}

    def locations(self) -> Iterator[tuple[Digest, Location]]:
        """Yield the whole index of objects."""
        for key, value in self._reader.scan("objects", b"", None):
            yield Digest(key), _location(value)

    def pack_length(self, pack: int) -> int:
        """Return the acknowledged length of a pack, 0 if it has none."""
        value = self._get("packs", _NUMBER.pack(pack))
        return 0 if value is None else int(_LENGTH.unpack(value)[0])

    def packs(self) -> dict[int, int]:
        """Return the acknowledged length of every pack."""
        found = self._reader.scan("packs", b"", None)
        return {_NUMBER.unpack(k)[0]: _LENGTH.unpack(_opened("packs", k, v))[0] for k, v in found}

    def _read_session(self, number: int) -> SessionRecord:
        value = self._get("sessions", _NUMBER.pack(number))
        if value is None:
            raise UnknownSession(f"There is no session number {number}.")
        return _decode(value, SessionRecord, "sessions")

    def _segments(self, number: int, first: int, last: int) -> list[tuple[SessionRecord, int, int]]:
        """Return who owns which part of ``first..last``, oldest ancestor first."""
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
            if key != _PLACE.pack(session.number, seq):
                break
            event = chain.read_record(session.name, seq, prev, record)
            yield event
            prev = event.hash
            seq += 1
        if seq <= last:
            raise DamagedJournal(f"Event #{seq} of session {session.name!r} is missing.")

    def _hash_before(self, session: SessionRecord, seq: int) -> bytes:
        """Return the hash of the event before ``seq``, which may be the parent's."""
        if seq == 1:
            return chain.GENESIS
        owner = session
        while owner.origin is not None and seq - 1 <= owner.origin.seq:
            owner = self.session(owner.origin.session)
        record = self._reader.get("events", _PLACE.pack(owner.number, seq - 1))
        if record is None:
            raise DamagedJournal(f"Event #{seq - 1} of session {owner.name!r} is missing.")
        return chain.record_hash(record)

    def _nearest(self, table: str, number: int, seq: int) -> tuple[int, bytes] | None:
        """Return the newest record at or before ``seq``, the parent's included."""
        for session, start, stop in reversed(self._segments(number, 1, seq)):
            for key, value in self._scan(table, session.number, start, stop, reverse=True):
                return _PLACE.unpack(key)[1], value
        return None

    def _get(self, table: str, key: bytes) -> bytes | None:
        value = self._reader.get(table, key)
        return None if value is None else _opened(table, key, value)

    def _scan(
        self, table: str, number: int, first: int, last: int, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._raw_scan(table, number, first, last, reverse=reverse):
            yield key, _opened(table, key, value)

    def _raw_scan(
        self, table: str, number: int, first: int, last: int, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        start = _PLACE.pack(number, first)
        stop = _PLACE.pack(number, min(last, _MAX_SEQ) + 1)
        return self._reader.scan(table, start, stop, reverse=reverse)


class KvTransaction(KvView):
    """The write transaction of the journal."""

    def __init__(self, writer: TableWriter, memory: ReadCache, failpoint: FailpointHook) -> None:
        super().__init__(writer, memory)
        self._writer = writer
        self._failpoint = failpoint
        self._heads: dict[int, Head] = {}
        self._moved: set[int] = set()
        self._created: dict[int, SessionRecord] = {}
        self._hashes: dict[tuple[int, int], bytes] = {}

    def session(self, number: int) -> SessionRecord:
        """Return the session of that number; one made here is not remembered before the commit."""
        return self._created.get(number) or super().session(number)

    def head(self, number: int) -> Head:
        """Return the newest event's place, this transaction's own events included."""
        head = self._heads.get(number)
        if head is None:
            head = self._heads[number] = super().head(number)
        return head

    def create(self, name: str, time: datetime, origin: ForkOrigin | None) -> SessionRecord:
        """Make a session; a fork starts at its origin's seq."""
        if self.find(name) is not None:
            raise SessionExists(f"There is a session {name!r} already.")
        last = next(self._writer.scan("sessions", b"", None, reverse=True), None)
        number = 1 if last is None else _number(last[0]) + 1
        record = self._created[number] = SessionRecord(number, name, time, origin)
        self._put("sessions", _NUMBER.pack(number), _encode(record))
        self._put("names", name.encode(), _NUMBER.pack(number))
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
        """Give the drafts the next seqs and chain them."""
        session = self.session(number)
        if fenced:
            self._check_epoch(session, actor, epoch)
        head = self.head(number)
        time = self._time_after(number, head, time)
        events = []
        seq, prev = head.seq, head.hash
        for draft in new_events:
            seq += 1
            body = chain.encode_body(draft, time=time, actor=actor, epoch=epoch)
            hash_ = chain.chain(prev, seq, body)
            self._writer.put("events", _PLACE.pack(number, seq), chain.pack_record(hash_, body))
            name, kind, value = session.name, draft.kind, draft.value
            events.append(Event(name, seq, time, actor, epoch, kind, value, prev, hash_))
            prev = hash_
            self._hashes[number, seq] = hash_
        self._put_head(number, msgspec.structs.replace(head, seq=seq, hash=prev, time=time))
        self._failpoint(Failpoint.JOURNAL_APPENDED)
        return events

    def _time_after(self, number: int, head: Head, time: datetime) -> datetime:
        """Return the time of the next event: the clock's, as long as that can be believed.

        A clock that is a little behind the last event is taken for one that was corrected. One
        that is far behind it shows that the last event's clock was ahead; to follow it until the
        clock catches up could take years, so the step back is written down instead.
        """
        if time >= head.time:
            return time
        if head.time - time <= MAX_AHEAD or time < EARLIEST:
            return head.time
        steps = [*self.own_steps_back(number), head.seq + 1]
        self._put("meta", _clock_key(number), b"".join(map(_LENGTH.pack, steps)))
        return time

    def index_checkpoint(self, number: int, seq: int, label: str | None) -> str:
        """Make the event at ``seq`` findable as a checkpoint and return its id."""
        identity = self._hashes[number, seq][:ID_SIZE]
        place = _PLACE.pack(number, seq)
        self._put("checkpoints", place, identity)
        self._put("ids", identity, place)
        if label is not None:
            self._put("labels", _label_key(number, label) + _LENGTH.pack(seq), b"")
        latest = (seq, identity.hex())
        self._put_head(number, msgspec.structs.replace(self.head(number), checkpoint=latest))
        return identity.hex()

    def put_keyframe(self, number: int, seq: int, digest: Digest) -> None:
        """Note that the object holds the session's document as of ``seq``."""
        self._put("keyframes", _PLACE.pack(number, seq), digest)
        self._put_head(number, msgspec.structs.replace(self.head(number), keyframe=seq))

    def put_lease(self, number: int, lease: Lease) -> None:
        """Write the lease of its actor."""
        self._put("leases", _NUMBER.pack(number) + lease.actor.encode(), _encode(lease))

    def index_objects(self, entries: Mapping[Digest, Location], packs: Mapping[int, int]) -> None:
        """Make flushed objects findable."""
        pack_place = _LOCATION.pack
        places = (
            (digest, pack_place(place.pack, place.offset, place.length, place.slot))
            for digest, place in entries.items()
        )
        self._writer.add_all("objects", places)
        for pack, length in packs.items():
            # Another bundle of the same pack may have acknowledged more already.
            length = max(length, self.pack_length(pack))
            self._put("packs", _NUMBER.pack(pack), _LENGTH.pack(length))
        self._failpoint(Failpoint.JOURNAL_INDEXED)

    def _check_epoch(self, session: SessionRecord, actor: str, epoch: int) -> None:
        lease = self.lease(session.number, actor)
        valid = 0 if lease is None or lease.released else lease.epoch
        if epoch != valid:
            holder = f"held by {lease.holder} with epoch {valid}" if lease and valid else "not held"
            raise StaleLease(
                f"The lease of {actor!r} in session {session.name!r} is {holder}; "
                f"a write with epoch {epoch} is refused."
            )

    def _put_head(self, number: int, head: Head) -> None:
        self._heads[number] = head
        self._moved.add(number)

    def finish(self) -> None:
        """Write the heads, each once, however often it moved."""
        for number in self._moved:
            head, key = self._heads[number], _NUMBER.pack(number)
            value = _head_value(head)
            record = value + _check("heads", key, value)
            self._writer.put("heads", key, record)
            self._memory.heads[number] = (record, head)

    def _first_head(self, record: SessionRecord) -> Head:
        """Return the head of a new session: nothing, or all that its origin has."""
        if record.origin is None:
            return Head(0, chain.GENESIS, record.created)
        number, seq = record.origin.session, record.origin.seq
        keyframe = self.keyframe(number, seq)
        left = next(self.events(number, seq, seq), None)
        return Head(
            seq,
            left.hash if left else chain.GENESIS,
            max(record.created, left.time) if left else record.created,
            keyframe[0] if keyframe else 0,
            self.checkpoint_before(number, seq),
        )

    def _put(self, table: str, key: bytes, value: bytes) -> None:
        self._writer.put(table, key, value + _check(table, key, value))


# Transactions are classes, not generators: they are begun for every single look-up.


class _Read:
    """A snapshot as a context manager."""

    __slots__ = ("_memory", "_reading")

    def __init__(self, tables: Tables, memory: ReadCache) -> None:
        self._reading = tables.read()
        self._memory = memory

    def __enter__(self) -> KvView:
        return KvView(self._reading.__enter__(), self._memory)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reading.__exit__(kind, error, trace)


class _Write:
    """The write transaction as a context manager."""

    __slots__ = ("_failpoint", "_memory", "_txn", "_writing")

    def __init__(self, tables: Tables, memory: ReadCache, failpoint: FailpointHook) -> None:
        self._writing = tables.write()
        self._memory = memory
        self._failpoint = failpoint

    def __enter__(self) -> KvTransaction:
        self._txn = KvTransaction(self._writing.__enter__(), self._memory, self._failpoint)
        return self._txn

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                self._txn.finish()
            except BaseException as failure:
                self._writing.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._writing.__exit__(kind, error, trace)


class KvJournal:
    """A journal over any ordered tables with transactions."""

    def __init__(self, tables: Tables, *, failpoint: FailpointHook = ignore) -> None:
        self._tables = tables
        self._failpoint = failpoint
        self._memory = ReadCache()

    def read(self) -> _Read:
        """Open a snapshot; keep it short."""
        return _Read(self._tables, self._memory)

    def write(self) -> _Write:
        """Open the write transaction; commit durably on a clean exit."""
        return _Write(self._tables, self._memory, self._failpoint)

    def examine(self) -> Examined:
        """Check the storage below the tables; those that are damaged are refused afterwards."""
        return self._tables.examine()

    def close(self) -> None:
        """Release the tables."""
        self._tables.close()


def claim(tables: Tables, identity: bytes) -> bytes:
    """Make the tables those of a store and return its id: the given one, or the one they had."""
    with tables.write() as writer:
        found = writer.get("meta", _STORE)
        if found is None:
            writer.put("meta", _STORE, identity + _check("meta", _STORE, identity))
            return identity
    return _opened("meta", _STORE, found)


def check_identity(tables: Tables, identity: bytes) -> None:
    """Raise ``DamagedJournal`` when the tables are not those of the store with this id.

    A journal that was lost and made anew must be noticed before anything is written: to it,
    all packs are unacknowledged.
    """
    with tables.read() as reader:
        found = reader.get("meta", _STORE)
        if found is None or _opened("meta", _STORE, found) != identity:
            raise DamagedJournal(
                "The journal does not belong to this store.",
                hint="The packs are untouched. Put the journal back from a copy of the store.",
            )


def check_ends(tables: Tables) -> None:
    """Raise ``DamagedJournal`` when a head or a pack's length is older than what it tells of.

    These are the records that are written over. A page of them from an older commit is whole and
    has every checksum right; only what was written after it gives it away. To write after such a
    head would write over events. Any other damage is found by whoever reads the record.
    """
    with tables.read() as reader:
        view = KvView(reader, ReadCache())
        for key, value in reader.scan("heads", b"", None):
            if value[-_CHECK:] == _check("heads", key, value[:-_CHECK]):
                following = key + _LENGTH.pack(_head(value[:-_CHECK]).seq + 1)
                if reader.get("events", following) is not None:
                    raise DamagedJournal("A session's head is older than its events.", hint=_OLDER)
        lengths = view.packs()
        for _, place in view.locations():
            if place.offset + place.length > lengths.get(place.pack, 0):
                raise DamagedJournal("A pack's length is older than its objects.", hint=_OLDER)


_OLDER = (
    "A part of the journal is older than the rest. Nothing was changed, and the packs are intact. "
    "`mulligan verify` names what is damaged; put data.mdb back from a copy of the store."
)


def _head(value: bytes) -> Head:
    seq, hash_, micros, keyframe, checkpoint, identity = _HEAD.unpack(value)
    latest = (checkpoint, identity.hex()) if checkpoint else None
    return Head(seq, hash_, codec.from_micros(micros), keyframe, latest)


def _head_value(head: Head) -> bytes:
    seq, identity = head.checkpoint or (0, "")
    micros, latest = codec.to_micros(head.time), bytes.fromhex(identity)
    return _HEAD.pack(head.seq, head.hash, micros, head.keyframe, seq, latest)


def _number(key: bytes) -> int:
    if len(key) != _NUMBER.size:
        raise DamagedJournal("A key of the journal's table 'sessions' is damaged.")
    return int(_NUMBER.unpack(key)[0])


def _clock_key(number: int) -> bytes:
    return b"clock" + _NUMBER.pack(number)


def _label_key(number: int, label: str) -> bytes:
    return _NUMBER.pack(number) + label.encode() + b"\x00"


def _check(table: str, key: bytes, value: bytes) -> bytes:
    """Return the checksum of a small record; it covers where the record stands, too."""
    return blake3(b"%s\x00%s\x00%s" % (table.encode(), key, value)).digest(length=_CHECK)


def _opened(table: str, key: bytes, value: bytes) -> bytes:
    """Return a small record without its checksum after checking it."""
    content = value[:-_CHECK]
    if value[-_CHECK:] != _check(table, key, content):
        raise DamagedJournal(f"A record of the journal's table {table!r} is damaged.")
    return content


def _location(value: bytes) -> Location:
    if len(value) != _LOCATION.size:
        raise DamagedJournal("A record of the journal's table 'objects' is damaged.")
    return Location(*_LOCATION.unpack(value))


def _decode(value: bytes, type_: type[T], table: str) -> T:
    try:
        return msgspec.msgpack.decode(value, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedJournal(f"A record of the table {table!r} cannot be read.") from error


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise DamagedJournal(f"A name in the journal is not UTF-8: {key!r}.") from error
