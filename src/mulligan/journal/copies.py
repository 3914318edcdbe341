"""Copies of events among the objects, from which a damaged journal is rebuilt.

A checkpoint writes the events since the last copy as one object of a kind of its own, together with
the objects that it writes anyway, or if there are many such events. Upkeep adds one with the
records of folds, pruned checkpoints and purges, which no event holds. A copy has the records as
they are in the tables, so they prove themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from mulligan.decoding import ready
from mulligan.errors import DamagedObject
from mulligan.journal.chain import record_body
from mulligan.journal.protocol import View
from mulligan.journal.records import PLACE, RawRecord
from mulligan.model import Digest, ObjectKind

VERSION = 1

MAX_EVENTS = 1_024
"""How many events one copy has at most; the next checkpoint goes on."""

MAX_UNCOPIED = 256
"""From this many events on, a checkpoint writes a copy even if it writes no other object.

A checkpoint of a small state has no objects, and a copy at each would double its time.
"""

MAX_BYTES = 4 << 20
"""How many bytes of events one copy has at most, but for a single larger one."""

Record = tuple[bytes, bytes]

Put = Callable[[int, bytes], Digest]
"""Puts an object of a kind into a bundle; see ``Bundle.put``."""


class EventCopy(msgspec.Struct, frozen=True, array_like=True):
    """The records of the events from ``first`` on, and other records of the session."""

    version: int
    session: int
    first: int
    events: list[bytes]
    records: list[Record]


class Copied(msgspec.Struct, frozen=True):
    """A copy that was put: the seqs of its first and its last event, and its digest."""

    first: int
    last: int
    digest: Digest


_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(ready(EventCopy)).decode


def events_to_copy(view: View, number: int) -> EventCopy | None:
    """Return a copy of the session's events since the last copy; None if there are none."""
    first = view.next_to_copy(number)
    events = _limited(view.event_records(number, first, first + MAX_EVENTS - 1))
    if not events:
        return None
    return EventCopy(VERSION, number, first, events, view.session_records(number))


def damaged_copies(view: View) -> Iterator[EventCopy]:
    """Yield the copies again that are noted as damaged and whose events are all there.

    Storing one again heals it, as it does with the content of files.
    """
    if not view.damage_count():
        return
    damaged = set(view.damaged())
    for known in view.copies():
        if known.digest not in damaged or not known.last:
            continue
        events = view.event_records(known.session, known.first, known.last)
        if len(events) == known.last - known.first + 1:
            records = view.session_records(known.session)
            yield EventCopy(VERSION, known.session, known.first, events, records)


def put_copy(copy: EventCopy, put: Put) -> Copied:
    """Put a copy among the objects."""
    last = copy.first + len(copy.events) - 1
    return Copied(copy.first, last, put(ObjectKind.EVENTS, _encode(copy)))


def copy_again(view: View, number: int, first: int, last: int, put: Put) -> Iterator[Copied]:
    """Put copies of what is left of the session's events ``first..last``, one for each stretch."""
    while first <= last:
        events = view.event_records(number, first, last)
        if events:
            records = view.session_records(number)
            yield put_copy(EventCopy(VERSION, number, first, events, records), put)
        first += len(events) + 1


def copied_bodies(data: bytes) -> Iterator[bytes]:
    """Yield the uncompressed bodies of the events in a copy; raises ``DamagedObject``."""
    for record in _decoded(data).events:
        yield record_body(record)


def copied_events(data: bytes) -> tuple[int, dict[int, bytes]]:
    """Return the session of a copy, and the records of its events by seq; ``DamagedObject``."""
    copy = _decoded(data)
    return copy.session, dict(enumerate(copy.events, copy.first))


def copy_removals(view: View, number: int, put: Put) -> Digest:
    """Put a copy of what no event holds: the session's folds, pruned checkpoints, all purges."""
    records = [*view.session_records(number), *view.removal_records(number)]
    records += view.purge_records()
    # With the head: it differs from every earlier copy, which a collection may be removing.
    head = view.head(number).seq
    copy = EventCopy(VERSION, number, head + 1, [], records)
    return put(ObjectKind.EVENTS, _encode(copy))


def _limited(records: Sequence[bytes]) -> list[bytes]:
    size, found = 0, list[bytes]()
    for record in records:
        size += len(record)
        if found and size > MAX_BYTES:
            break
        found.append(record)
    return found


def copied_records(data: bytes) -> Iterator[RawRecord]:
    """Yield the records of a copy; raises ``DamagedObject``."""
    copy = _decoded(data)
    for seq, record in enumerate(copy.events, copy.first):
        yield RawRecord(PLACE.pack(copy.session, seq), record, False)
    for key, value in copy.records:
        yield RawRecord(key, value, False)


def _decoded(data: bytes) -> EventCopy:
    try:
        copy = _decode(data)
    except msgspec.DecodeError as error:
        raise DamagedObject(f"A copy of events cannot be read: {error}.") from error
    if copy.version != VERSION:
        raise DamagedObject(f"A copy of events has the unknown version {copy.version}.")
    return copy
