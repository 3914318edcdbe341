"""The writer: keeps the newest document of a session and turns plans into transactions.

A plan is worked out against the newest document outside the write lock; if another process
wrote in the meantime it is worked out again inside. Either way, what is decided is decided
on exactly the document that the events follow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from mulligan import codec
from mulligan.engine import Engine
from mulligan.errors import StateError
from mulligan.journal.protocol import Txn, View
from mulligan.model import Digest, Draft, Event, Head, Lease, ObjectKind, SessionRecord
from mulligan.objects.protocol import Bundle
from mulligan.session import leases
from mulligan.session.changes import Ask
from mulligan.state.document import Document, settle_root
from mulligan.state.events import Change, draft, fold
from mulligan.state.history import KEYFRAME_EVERY, advance, document_at, from_keyframe


class Work:
    """The events of one transaction in the making, and the document after them."""

    def __init__(
        self, record: SessionRecord, view: View, bundle: Bundle, document: Document, head: Head
    ) -> None:
        self.record = record
        self.view = view
        self.bundle = bundle
        self.document = Document(document.root, self._load)
        self.base = head
        self.drafts: list[Draft] = []
        self.labels: dict[int, str | None] = {}
        self.keyframe: tuple[int, Digest] | None = None

    @property
    def seq(self) -> int:
        """The seq of the newest event so far."""
        return self.base.seq + len(self.drafts)

    def add(self, change: Change) -> int:
        """Add an event and return the seq it will have."""
        made = draft(change, self.put)
        self.drafts.append(made)
        payload = codec.decode(made.payload)
        self.document = fold(self.document, made.kind, payload, self.seq)
        return self.seq

    def put(self, data: bytes) -> Digest:
        """Make an object of a value's bytes."""
        return self.bundle.put(ObjectKind.VALUE, data)

    def keyframe_if_due(self, seq: int) -> Digest | None:
        """Make a keyframe of the document as of ``seq`` when replay would become too long."""
        if seq - self.base.keyframe < KEYFRAME_EVERY or self.keyframe is not None:
            return None
        nearest = self.view.keyframe(self.record.number, self.base.seq)
        if nearest is not None and seq - nearest[0] < KEYFRAME_EVERY:
            return None
        digest = settle_root(self.document.root, self.put)
        self.keyframe = (seq, digest)
        self.document = from_keyframe(digest, self._load)
        return digest

    def append(self, txn: Txn, *, actor: str, epoch: int, engine: Engine) -> list[Event]:
        """Write everything into the transaction."""
        number = self.record.number
        now = engine.clock.now()
        events = txn.append(number, self.drafts, actor=actor, epoch=epoch, time=now)
        for seq, label in self.labels.items():
            txn.index_checkpoint(number, seq, label)
        if self.keyframe is not None:
            txn.put_keyframe(number, *self.keyframe)
        return events

    def _load(self, digest: Digest) -> bytes:
        return self.bundle.get(ObjectKind.VALUE, digest)


Plan = Callable[[Work], None]
"""Adds the events of a transaction to its work; may be called twice."""


class Writer:
    """Writes the events of one actor of a session."""

    def __init__(self, engine: Engine, record: SessionRecord, actor: str) -> None:
        self.engine = engine
        self.record = record
        self.actor = actor
        self.lease: Lease | None = None
        self._ttl = 0.0
        self._lock = threading.RLock()
        self._seq = 0
        self._newest: Document | None = None
        self._batch: list[Ask] | None = None
        self._batched: Document | None = None

    def document(self) -> Document:
        """Return the newest document, the open batch included."""
        with self._lock:
            if self._batched is not None:
                return self._batched
            with self.engine.read() as view:
                return self._caught_up(view)

    def write(self, ask: Ask) -> None:
        """Write what is asked for in a transaction, or add it to the batch."""
        with self._lock:
            if self._batch is None or self._batched is None:
                self.commit(_plan([ask]))
                return
            for kind, payload in ask(self._batched):
                self._batched = fold(self._batched, kind, payload, 0)
            self._batch.append(ask)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Collect what is written inside and write it as one transaction at the end."""
        with self._lock:
            if self._batch is not None:
                raise StateError("A batch is open already.", hint="Batches do not nest.")
            self._batched, self._batch = self.document(), []
            try:
                yield
                asks = self._batch
            finally:
                self._batched = self._batch = None
            if asks:
                self.commit(_plan(asks))

    def commit(self, plan: Plan) -> list[Event]:
        """Work out a plan and write it; durable when this returns."""
        with self._lock:
            if self._batch is not None:
                raise StateError("This cannot be done inside a batch.", hint="End the batch first.")
            bundle = self.engine.objects.bundle()
            with self.engine.read() as view:
                work = self._worked_out(plan, view, bundle)
            with self.engine.write(bundle) as txn:
                if txn.head(self.record.number).seq != work.base.seq:
                    work = self._worked_out(plan, txn, bundle)
                epoch = self.lease.epoch if self.lease else 0
                events = work.append(txn, actor=self.actor, epoch=epoch, engine=self.engine)
                renewed = self._renewed(txn)
            self.lease = renewed
            self._newest = Document(work.document.root, self.engine.load)
            self._seq = work.seq
            return events

    def take_lease(self, ttl: float, *, steal: bool) -> Lease:
        """Become the one writer for the actor; see ``leases.take``."""
        with self._lock:
            with self.engine.write(self.engine.objects.bundle()) as txn:
                now = self.engine.clock.now()
                lease = leases.take(txn, self.record, self.actor, now=now, ttl=ttl, steal=steal)
            self.lease, self._ttl = lease, ttl
            return lease

    def renew_lease(self) -> None:
        """Extend the lease; raises ``StaleLease`` when another writer has it."""
        with self._lock, self.engine.write(self.engine.objects.bundle()) as txn:
            if self.lease is not None:
                now = self.engine.clock.now()
                self.lease = leases.renew(txn, self.record, self.lease, now=now, ttl=self._ttl)

    def release_lease(self) -> None:
        """Give the lease up, if it is still this writer's."""
        with self._lock:
            if self.lease is not None:
                with self.engine.write(self.engine.objects.bundle()) as txn:
                    leases.release(txn, self.record, self.lease)
            self.lease = None

    def _renewed(self, txn: Txn) -> Lease | None:
        """Extend a lease in passing once half of it is over."""
        now = self.engine.clock.now()
        if self.lease is None or self.lease.expires - now > timedelta(seconds=self._ttl / 2):
            return self.lease
        return leases.renew(txn, self.record, self.lease, now=now, ttl=self._ttl)

    def _worked_out(self, plan: Plan, view: View, bundle: Bundle) -> Work:
        document = self._caught_up(view)
        head = view.head(self.record.number)
        work = Work(self.record, view, bundle, document, head)
        plan(work)
        work.keyframe_if_due(work.seq)
        return work

    def _caught_up(self, view: View) -> Document:
        """Return the document as of the view, with what other processes wrote."""
        number, load = self.record.number, self.engine.load
        head = view.head(number)
        if self._newest is None or head.seq - self._seq > KEYFRAME_EVERY:
            self._newest = document_at(view, number, head.seq, load)
        elif head.seq > self._seq:
            self._newest = advance(view, number, self._newest, self._seq, head.seq)
        self._seq = head.seq
        return self._newest


def _plan(asks: list[Ask]) -> Plan:
    def plan(work: Work) -> None:
        for ask in asks:
            for change in ask(work.document):
                work.add(change)

    return plan
