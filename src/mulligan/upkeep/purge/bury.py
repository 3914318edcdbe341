"""Burying: in one transaction, tombstones take the place of what is purged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import msgspec

from mulligan import codec
from mulligan.document import nodes
from mulligan.document.fold import CHECKPOINT, PURGED, new_event
from mulligan.engine import Engine, PendingObjects
from mulligan.failpoints import Failpoint
from mulligan.journal.copies import copy_again, copy_removals, events_to_copy, put_copy
from mulligan.journal.protocol import Txn, View
from mulligan.model import Digest, Event, NewEvent, ObjectKind, Purge, Tombstone
from mulligan.session.names import UPKEEP
from mulligan.upkeep.purge.text import redacted
from mulligan.upkeep.slices import SliceSize

Replace = Callable[[bytes], bytes]
Put = Callable[[bytes], Digest]


class Burial:
    """What a purge replaces, and by what: ``replace`` takes a secret out of text and bytes."""

    def __init__(self, engine: Engine, replace: Replace, whole: Mapping[Digest, str]) -> None:
        self._engine = engine
        self._replace = replace
        self._whole = whole
        self._bundle = PendingObjects(engine.objects, engine.pins)
        self._left: dict[Digest, Digest | None] = {}
        self._payloads: dict[tuple[int, int], tuple[Any, NewEvent]] = {}
        self.hold = SliceSize(engine.clock, 1)
        """Measures how long the transaction holds the write lock."""

    def prepare(self, values: Iterable[Digest], chunks: Iterable[Digest]) -> None:
        """Make the copies without it that take the place of values; chunks get none."""
        for digest in values:
            if digest not in self._left:
                self._left[digest] = self._copy(digest)
        for digest in chunks:
            self._left[digest] = None

    def prepare_events(self, view: View, events: Iterable[tuple[int, int]]) -> None:
        """Make what takes the place of the payloads of events, given as (session number, seq)."""
        for at in events:
            if at not in self._payloads:
                [event] = view.events(at[0], at[1], at[1])
                payload = self._redacted(event)
                self._payloads[at] = payload, new_event((event.kind, payload), self._put)

    def commit(
        self,
        purge: Purge,
        catch_up: Callable[[Txn], tuple[Iterable[Digest], Iterable[Digest]]],
        events: Callable[[], Iterable[tuple[int, int]]],
        copies: Callable[[], Set[Digest]],
    ) -> Purge:
        """Write all tombstones, the record of the purge, and an event in every session.

        ``catch_up`` searches what was committed since the search, and returns all values and
        chunks; after that, ``events`` returns (session number, seq) of all events, and ``copies``
        the copies of events.
        """
        with self.hold.single(self._engine.write(self._bundle)) as txn:
            self.prepare(*catch_up(txn))
            purge = msgspec.structs.replace(purge, number=txn.last_purge() + 1)
            txn.put_purge(purge)
            self.prepare_events(txn, events())
            changed = [[*at, self._bury_event(txn, *at, purge.number)] for at in events()]
            # After the events: their records are copied again as they are now.
            self._copy_again(txn, copies())
            objects = self._bury_objects(txn, purge.number)
            announce(txn, purge, objects, changed, self._put)
            self._copy_purges(txn)
            self._engine.failpoint(Failpoint.PURGE_WRITTEN)
        self._engine.failpoint(Failpoint.PURGE_BURIED)
        return purge

    def _copy(self, digest: Digest) -> Digest:
        value = codec.decode(self._engine.load(digest))
        if digest in self._whole:
            return self._put(codec.encode(self._whole[digest]))
        return self._put(codec.encode(redacted(value, self._replace)))

    def _put(self, data: bytes) -> Digest:
        return self._bundle.put(ObjectKind.VALUE, data)

    def _copy_again(self, txn: Txn, copies: Set[Digest]) -> None:
        """Replace copies of events that hold it; what was folded away is not copied again."""
        for copy in list(txn.copies()):
            if copy.digest not in copies:
                continue
            self._left[copy.digest] = None
            txn.drop_copy(copy.session, copy.last)
            if copy.last:
                for made in copy_again(txn, copy.session, copy.first, copy.last, self._bundle.put):
                    txn.put_copy(copy.session, made.first, made.last, made.digest)

    def _copy_purges(self, txn: Txn) -> None:
        """Copy the tombstones and the events that name them: a rebuilt journal needs both."""
        for number in [session.number for session in txn.sessions()]:
            while (events := events_to_copy(txn, number)) is not None:
                made = put_copy(events, self._bundle.put)
                txn.put_copy(number, made.first, made.last, made.digest)
            txn.put_copy(number, 0, 0, copy_removals(txn, number, self._bundle.put))

    def _bury_objects(self, txn: Txn, number: int) -> list[list[Any]]:
        found: list[list[Any]] = []
        left = dict(self._left)
        # What an earlier purge left in the place of one of them holds it, too.
        for digest, stone in txn.tombstones(self._left).items():
            if stone.replacement is not None:
                left[stone.replacement] = self._left[digest]
        for digest, other in sorted(left.items(), key=lambda item: item[0]):
            txn.bury_object(digest, Tombstone(number, other))
            found.append([bytes(digest), other and bytes(other)])
        return found

    def _bury_event(self, txn: Txn, session: int, seq: int, purge: int) -> bytes:
        [event] = txn.events(session, seq, seq)
        payload, new = self._payloads[session, seq]
        label = event.payload.get("label") if event.kind == CHECKPOINT else None
        if label is not None and payload["label"] != label:
            txn.drop_label(session, label, seq)
        key = event.payload.get("key") if event.kind == CHECKPOINT else None
        if key is not None and payload.get("key") != key:
            txn.drop_key(session, key)
        return bytes(txn.bury_event(session, seq, new.payload, purge))

    def _redacted(self, event: Event) -> Any:
        """Return the payload of an event without what is purged."""
        payload = redacted(event.payload, self._replace)
        if event.kind != CHECKPOINT:
            return payload
        if payload.get("label") != event.payload.get("label"):
            # A label finds a checkpoint, so what is left of one would be in the way.
            payload["label"] = None
        if payload.get("key") != event.payload.get("key"):
            del payload["key"]
        return payload


def announce(
    txn: Txn, purge: Purge, objects: list[list[Any]], changed: list[list[Any]], put: Put
) -> None:
    """Add an event to every session that names every tombstone, so that the chain proves it.

    In every session: handles on it then know that a document at hand may hold the secret.
    """
    record = {"objects": nodes.build_list(objects), "events": nodes.build_list(changed)}
    facts = {"purge": purge.number, "by": purge.by, "reason": purge.reason, "record": record}
    new = new_event((PURGED, facts), put)
    for session in txn.sessions():
        txn.append(session.number, [new], actor=UPKEEP, epoch=0, time=purge.time, fenced=False)
