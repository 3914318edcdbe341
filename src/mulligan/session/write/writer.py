"""The writer: keeps the newest document of a session and turns decisions into transactions.

A decision first runs outside the write lock, on the newest document that this handle knows, so that
the lock is held only to append. If another process wrote meanwhile, the decision runs again inside
the lock. Either way, its changes follow exactly the document that they were decided on. The words
are explained in ``mulligan.session.write.decisions``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from mulligan.document.document import Document, settle_root
from mulligan.document.fold import STATE, Change, fold, new_event
from mulligan.document.history import KEYFRAME_EVERY, advance, from_keyframe
from mulligan.errors import StaleLease, StateError, UnknownSession
from mulligan.model import Digest, Event, Head, Lease, NewEvent, ObjectKind, SessionRecord
from mulligan.session.names import NO_AGENTS
from mulligan.session.write import batch as batches
from mulligan.session.write import leases
from mulligan.session.write.batch import OpenBatch
from mulligan.session.write.known_documents import KnownDocuments

if TYPE_CHECKING:
    from mulligan.engine import Engine
    from mulligan.journal.copies import Copied as EventCopied
    from mulligan.journal.protocol import Txn, View
    from mulligan.objects.protocol import Bundle
    from mulligan.session.write.decisions import Decision, T


class Work:
    """The unit of work: the events of a transaction that is being prepared, and the document after
    them. It is the ``Changes`` of a decision that is committed; checkpoints also use its other
    methods.
    """

    def __init__(self, bundle: Bundle, document: Document, head: Head) -> None:
        self.bundle = bundle
        # Not a bound method: the object would refer to itself, and stay in memory with its document
        # until the next garbage collection.
        self._load = partial(bundle.get, ObjectKind.VALUE)
        self.document = Document(document.root, self._load)
        self.base = head
        self.new_events: list[NewEvent] = []
        self.labels: dict[int, str | None] = {}
        self.keys: dict[int, str] = {}
        self.keyframes: dict[int, Digest] = {}
        self.copy: EventCopied | None = None
        self._last_keyframe = head.keyframe

    @property
    def seq(self) -> int:
        """The seq of the newest event so far."""
        return self.base.seq + len(self.new_events)

    def add(self, change: Change) -> int:
        """Add an event and return the seq it will have."""
        made = new_event(change, self.put)
        self.new_events.append(made)
        seq = self.seq
        self.document = fold(self.document, made.kind, made.value, seq)
        self.keyframe_if_due(seq)
        return seq

    def attempt(self, decision: Decision[T]) -> T:
        """Run another decision as part of this one; if it raises, nothing of it is kept."""
        before, document, keyframe = self.seq, self.document, self._last_keyframe
        try:
            return decision(self)
        except BaseException:
            for seq in [seq for seq in self.keyframes if seq > before]:
                del self.keyframes[seq]
            del self.new_events[before - self.base.seq :]
            self.document, self._last_keyframe = document, keyframe
            raise

    def put(self, data: bytes) -> Digest:
        """Make an object of a value's bytes."""
        return self.bundle.put(ObjectKind.VALUE, data)

    def keyframe_if_due(self, seq: int) -> Digest | None:
        """Make a keyframe of the document as of ``seq`` if replay would become too long."""
        if seq - self._last_keyframe < KEYFRAME_EVERY:
            return None
        digest = self.keyframes[seq] = settle_root(self.document.root, self.put)
        self._last_keyframe = seq
        self.document = from_keyframe(digest, self._load)
        return digest

    def append(
        self,
        txn: Txn,
        number: int,
        *,
        actor: str,
        epoch: int,
        time: datetime,
        fenced: bool = True,
    ) -> list[Event]:
        """Write everything into the transaction; return its checkpoints' events."""
        events = txn.append(
            number, self.new_events, actor=actor, epoch=epoch, time=time, fenced=fenced
        )
        for seq, label in self.labels.items():
            txn.index_checkpoint(number, seq, label, self.keys.get(seq))
        for seq, digest in self.keyframes.items():
            txn.put_keyframe(number, seq, digest)
        if self.copy is not None:
            txn.put_copy(number, self.copy.first, self.copy.last, self.copy.digest)
        return [event for event in events if event.seq in self.labels] if self.labels else []


class Alone:
    """A write of several steps; a class, because generators are slower."""

    __slots__ = ("_guard", "_refuse_batch")

    def __init__(self, guard: threading.Condition, refuse_batch: Callable[[], None]) -> None:
        self._guard = guard
        self._refuse_batch = refuse_batch

    def __enter__(self) -> None:
        self._guard.acquire()
        try:
            # Under the lock: it waits for the end of another thread's batch, and none may begin
            # after that.
            self._refuse_batch()
        except BaseException:
            self._guard.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._guard.release()


class Writer:
    """Writes the events of one actor of a session."""

    def __init__(self, engine: Engine, record: SessionRecord, actor: str) -> None:
        self.engine = engine
        self.record = record
        self.actor = actor
        self.lease: Lease | None = None
        self._lease_pid = 0
        self._is_guest = False
        self._is_for_other = False
        self._has_ended = False
        self._ttl = 0.0
        # Reentrant: a commit reads the document again while it holds the lock.
        self._lock = threading.Condition()
        self._pid = os.getpid()
        self._head: Head | None = None
        self._newest: Document | None = None
        self._known = KnownDocuments(engine.load)
        self._last_purge = 0
        self._batch: OpenBatch | None = None
        self._taken: list[Event] = []

    def document(self) -> Document:
        """Return the newest document; the open batch is included where the caller opened it."""
        # Under the lock: document and head are replaced together, and must be read together.
        with self._guard():
            if self._batch is not None and self._batch.is_ours():
                return self._batch.document
            with self.engine.read() as view:
                return self._caught_up(view)

    def known_seq(self) -> int:
        """Return the seq of the newest event that this handle has seen, without a look."""
        return 0 if self._head is None else self._head.seq

    def exclusive(self) -> AbstractContextManager[object]:
        """Keep other threads of this handle out while the caller reads in several steps."""
        return self._guard()

    def alone(self) -> Alone:
        """Lock the handle for a write of several steps; refused inside a batch."""
        return Alone(self._guard_to_write(), self._refuse_batch)

    def _guard(self) -> threading.Condition:
        """Return the lock of this process; a copy inherited by a fork may be held forever."""
        # A fork copies a lock that another thread may hold. That thread does not exist in the
        # child, so the lock would never be released.
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Condition(), os.getpid()
            self._batch = None
        return self._lock

    def _guard_to_write(self) -> threading.Condition:
        """Return the lock of this process for a block that writes."""
        self.engine.refuse_inside_decision()
        return self._guard()

    def _own_batch(self) -> OpenBatch | None:
        """Return the batch that the caller has open; the caller holds the lock.

        Waits while another thread has a batch open, and raises ``BatchOpen`` if that wait could
        never end. The lock is not held while a batch is open, so that reads and lease renewals
        continue.
        """
        while self._batch is not None and not self._batch.is_ours():
            # In a loop: after the wait, a third thread may have opened a batch.
            self._batch.refuse_if_endless()
            self._wait(self._batch)
        return self._batch

    def _refuse_batch(self) -> None:
        if self._own_batch() is not None:
            raise StateError(
                "This cannot be done inside a batch.",
                hint="End the batch first. A batch takes a checkpoint with its own "
                "`checkpoint` method.",
            )

    def _wait(self, other: OpenBatch) -> None:
        """Wait for the end of another thread's batch; raises ``BatchOpen`` after a time limit."""
        # The condition releases the lock while it waits, so that the other batch can be committed.
        if not self._guard().wait_for(lambda: self._batch is not other, batches.PATIENCE):
            raise batches.waited_in_vain()

    def check_alone(self, what: str) -> None:
        """Refuse to choose inside a batch: at its end, the choice might be different."""
        with self._guard():
            if self._batch is not None and self._batch.is_ours():
                raise StateError(f"{what} cannot be done inside a batch.", hint="Do it before.")

    def components(self) -> list[str]:
        """Return the names of the newest state's top-level parts."""
        document = self.document()
        return list(document.entries(document.resolved(document.find(STATE))))

    def write(self, decision: Decision[T]) -> T:
        """Write a decision in a transaction, or in the caller's batch; return its result.

        A batch runs the decision again at its end. ``check_alone`` is for decisions whose result
        must not change until then.
        """
        with self._guard_to_write():
            batch = self._own_batch()
            if batch is None:
                return self.commit(decision)
            return self.engine.decide(batch.collect, decision)

    @contextmanager
    def batch(self, commit: Callable[[OpenBatch], None]) -> Iterator[OpenBatch]:
        """Collect what is written inside; at the end, ``commit`` writes it as one transaction.

        It belongs to the task and thread that opened it; see ``mulligan.session.write.batch``.
        A batch inside of it becomes part of it.
        """
        batch: OpenBatch | None = None
        try:
            with self._guard_to_write():
                outer = self._own_batch()
                if outer is None:
                    # Assigned before it is opened: a signal may interrupt this at any point.
                    batch = OpenBatch(self.document())
                    self._batch = batch
            if batch is not None:
                # Without the lock: the body of the batch may take long, and other threads read
                # meanwhile.
                batch.enter()
                yield batch
                # The lock is held from the end of the batch to its commit: threads that waited for
                # the batch write after it.
                with self._guard():
                    if self._end(batch):
                        commit(batch)
            elif outer is not None:
                with outer.nested():
                    yield outer
        finally:
            if batch is not None:
                batch.leave()
                self._end(batch)

    def _end(self, batch: OpenBatch) -> bool:
        """End a batch; False if it was not open here, as in a process that was forked meanwhile."""
        guard = self._guard()
        with guard:
            batch.has_ended = True
            if self._batch is not batch:
                return False
            self._batch = None
            # Wake all of them: only one gets the lock, and the others wait again.
            guard.notify_all()
            return True

    def commit(self, decision: Callable[[Work], T], bundle: Bundle | None = None) -> T:
        """Write a decision with the objects of the bundle; durable on return.

        Returns what the decision returned in the run that was committed.
        """
        with self._guard_to_write():
            self._refuse_batch()
            if bundle is not None:
                # Its caller is inside a pin: a bundle needs one from its first object on.
                return self._committed(decision, bundle)
            with self.engine.pin():
                return self._committed(decision, self.engine.bundle())

    def _committed(self, decision: Callable[[Work], T], bundle: Bundle) -> T:
        decided = self._decided_early(decision, bundle)
        with self.engine.write(bundle, session=self.record.number) as txn:
            # The head is compared under the write lock: from here on it cannot change.
            if decided is None or txn.head(self.record.number) != decided[0].base:
                decided = self._decided(decision, txn, bundle)
            work, result = decided
            taken = self._append(txn, work)
            renewed = self._renewed(txn)
            head = txn.head(self.record.number)
        # Only after the commit: if it fails, this handle must not keep what no other can read.
        self.lease = renewed
        self._newest = Document(work.document.root, self.engine.load)
        self._head = head
        self._taken = taken
        if head.seq in work.labels:
            self._known.add(self.record.number, head.seq, self._newest)
        return result

    def taken(self, seq: int) -> Event | None:
        """Return a checkpoint's event if the last transaction of this handle wrote it."""
        return next((event for event in self._taken if event.seq == seq), None)

    def document_at(self, view: View, number: int, seq: int) -> Document:
        """Return a session's document as of ``seq``; some are kept, see ``KnownDocuments``."""
        with self._guard():
            # Under the lock: two threads that load the same document would both modify the cache.
            self._forget_purged(view)
            newest = self._newest_at(number, seq)
            return self._known.at(view, number, seq) if newest is None else newest

    def _newest_at(self, number: int, seq: int) -> Document | None:
        """Return the newest document, if it is the one as of ``seq``."""
        is_head = self._head is not None and self._head.seq == seq
        return self._newest if is_head and number == self.record.number else None

    def take_lease(self, ttl: float, *, steal: bool, under: Lease | None = None) -> Lease:
        """Become the one writer for the actor; see ``leases.take``."""
        # Always this handle's lock before the journal's write lock, as in `commit`: threads that
        # took them in different orders would deadlock.
        with self._guard():
            with self.engine.write(session=self.record.number) as txn:
                now = self.engine.journal.now()
                lease = leases.take(
                    txn, self.record, self.actor, now=now, ttl=ttl, steal=steal, under=under
                )
            return self._write_under(lease, ttl)

    def hold_lease(self, process: int, ttl: float, *, steal: bool) -> Lease:
        """Write under a lease that another process holds; taken for it if it holds none.

        See ``Internals.hold``.
        """
        holder, now = leases.holder_of(process), self.engine.journal.now()
        with self._guard():
            with self.engine.read() as view:
                lease = view.lease(self.record.number, self.actor)
            # Most often it is there, and no transaction is needed: every append checks its epoch.
            lasts = lease is not None and lease.expires - now > timedelta(seconds=ttl / 2)
            if lease is None or not lasts or not leases.is_of(lease, holder):
                with self.engine.write(session=self.record.number) as txn:
                    lease = leases.take(
                        txn, self.record, self.actor, now=now, ttl=ttl, steal=steal, holder=holder
                    )
            return self._write_under(lease, ttl, is_for_other=True)

    @property
    def process(self) -> str:
        """The process that this handle writes for: the holder of a lease that is held for it."""
        if self._is_for_other and self.lease is not None:
            return str(self.lease.holder)
        return leases.this_process()

    def join_lease(self, epoch: int) -> Lease:
        """Write under a lease that another process of the agent holds, as long as it is valid."""
        with self._guard():
            with self.engine.read() as view:
                lease = leases.valid(view, self.record, self.actor, epoch)
            return self._write_under(lease, self._ttl, is_guest=True)

    def adopt_lease(self, epoch: int, ttl: float) -> Lease:
        """Become the holder of a lease that was taken for this process; see ``leases.adopt``."""
        with self._guard():
            with self.engine.write(session=self.record.number) as txn:
                expires = self.engine.journal.now() + timedelta(seconds=ttl)
                lease = leases.adopt(txn, self.record, self.actor, epoch, expires)
            return self._write_under(lease, ttl)

    def _write_under(
        self, lease: Lease, ttl: float, *, is_guest: bool = False, is_for_other: bool = False
    ) -> Lease:
        """Write under a lease from now on; whose it was before means nothing any more."""
        self.lease, self._ttl, self._lease_pid = lease, ttl, os.getpid()
        self._is_guest, self._is_for_other = is_guest, is_for_other
        return lease

    def renew_lease(self, *, wait: bool = True) -> None:
        """Extend the lease; raises ``StaleLease`` when another writer has it.

        Without ``wait``, nothing is done while another thread of this handle writes.
        """
        guard = self._guard()
        # A heartbeat thread does not wait: a writing thread holds this lock for its whole capture,
        # and its commit extends the lease anyway.
        if not guard.acquire(blocking=wait):
            return
        try:
            if self.lease is None or self._is_guest:
                return
            self._check_lease_is_ours()
            with self.engine.write(session=self.record.number) as txn:
                now = self.engine.journal.now()
                renewed = leases.renew(txn, self.record, self.lease, now=now, ttl=self._ttl)
            self.lease = renewed
        finally:
            guard.release()

    def release_lease(self, *, for_other: bool = False) -> None:
        """Release the lease if it is still this writer's; a forked process only forgets it.

        One that is held for another process is released only with ``for_other``.
        """
        with self._guard():
            # A forked process and a helper process share a lease that is not theirs: releasing it
            # would shut out its holder.
            is_own = self._lease_pid == os.getpid() and not self._is_guest
            if self.lease is not None and is_own and (for_other or not self._is_for_other):
                with self.engine.write(session=self.record.number) as txn:
                    leases.release(txn, self.record, self.lease)
                self._has_ended = True
            self.lease = None

    def _check_lease_is_ours(self) -> None:
        if self.lease is not None and self._lease_pid != os.getpid():
            raise StaleLease(
                f"The lease of {self.actor!r} belongs to process {self._lease_pid}, "
                "which this one was forked from.",
                hint="Open the session again in this process, under another agent's name.",
            )

    def _renewed(self, txn: Txn) -> Lease | None:
        """Extend a lease in the transaction of a write, once half of its time is over.

        So an agent that writes often needs no extra transactions for its lease.
        """
        if self.lease is None or self._is_guest:
            return self.lease
        now = self.engine.journal.now()
        # By the journal's clock, with which every process compares lease times.
        if self.lease.expires - now > timedelta(seconds=self._ttl / 2):
            return self.lease
        return leases.renew(txn, self.record, self.lease, now=now, ttl=self._ttl)

    def _append(self, txn: Txn, work: Work) -> list[Event]:
        self._check_lease_is_ours()
        # In the transaction: a session that was deleted takes no more events.
        if txn.session(self.record.number).deleted is not None:
            raise UnknownSession(f"The session {self.record.name!r} was deleted.")
        if self._has_ended and self.lease is None:
            raise StaleLease(
                f"This handle gave the lease of {self.actor!r} up.",
                hint="Open the session again to write to it.",
            )
        now, number = self.engine.clock.now(), self.record.number
        if self.lease is not None:
            return work.append(txn, number, actor=self.actor, epoch=self.lease.epoch, time=now)
        fenced = self.actor not in NO_AGENTS
        if fenced:
            # In the same transaction as the append, which checks the lease: no gap between them.
            leases.release_dead(txn, self.record, self.actor)
        return work.append(txn, number, actor=self.actor, epoch=0, time=now, fenced=fenced)

    def _decided_early(
        self, decision: Callable[[Work], T], bundle: Bundle
    ) -> tuple[Work, T] | None:
        """Run the decision on the document known here; None if that may be out of date."""
        if self._newest is None or self._head is None:
            return None
        work = Work(bundle, self._newest, self._head)
        try:
            return work, self.engine.decide(decision, work)
        except Exception:
            # The document known here may be out of date; the run under the lock decides. Any error
            # may come from that: decisions run functions of the program.
            return None

    def _decided(self, decision: Callable[[Work], T], view: View, bundle: Bundle) -> tuple[Work, T]:
        document = self._caught_up(view)
        work = Work(bundle, document, view.head(self.record.number))
        return work, self.engine.decide(decision, work)

    def _caught_up(self, view: View) -> Document:
        """Return the document as of the view, with what other processes wrote."""
        number = self.record.number
        head = view.head(number)
        self._forget_purged(view)
        if self._newest is not None and head == self._head:
            return self._newest
        known = self._head.seq if self._head else 0
        # A keyframe is nearer than the document known here: from there, fewer events are replayed.
        is_far = head.seq - known > KEYFRAME_EVERY
        # Events that this handle has not seen may have been folded away since.
        if self._newest is None or is_far or view.folded(number, known + 1, head.seq):
            self._newest = self._known.replayed(view, number, head.seq)
        elif head.seq > known:
            self._newest = advance(view, number, self._newest, known, head.seq)
        self._head = head
        return self._newest

    def _forget_purged(self, view: View) -> None:
        """Forget all documents if something was purged since: they may hold it.

        A purge adds an event to every session that it concerns, so a decision that was made on
        such a document is made again.
        """
        last = view.last_purge()
        if last != self._last_purge:
            self._newest, self._last_purge = None, last
            self._known.clear()
