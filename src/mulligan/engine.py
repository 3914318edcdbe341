"""The engine: joins journal and objects, and owns the order in which they are written.

Objects become durable first; then one journal transaction makes them findable together with
the events that refer to them. A crash at any instruction leaves, at worst, unreferenced bytes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from mulligan import codec
from mulligan.decoding import ready
from mulligan.errors import StateError, StoreClosed, StoreGone
from mulligan.failpoints import FailpointHook, ignore
from mulligan.journal.protocol import Journal, Presence, Txn, View
from mulligan.layout import FEATURES, LOCKS
from mulligan.model import Digest, EffectRule, Environment, LeftOut, ObjectKind
from mulligan.objects.protocol import Bundle, Flushed, Objects
from mulligan.pins import Pin, Pins
from mulligan.storage_limit import StorageLimit

if TYPE_CHECKING:
    from mulligan.clock import Clock
    from mulligan.journal.lock_owner import LockOwner, OnWait

A = TypeVar("A")
T = TypeVar("T")

_NOTHING = Flushed({}, {}, 0)
_GONE = {
    Presence.MISSING: "was removed or moved",
    Presence.REPLACED: "was replaced by another one",
}

CLOSE_WAIT_SECONDS = 5.0
"""Seconds that ``close`` waits for the writes of other threads."""


class PendingObjects:
    """A bundle that is created with its first object."""

    __slots__ = ("_bundle", "_objects", "_pins")

    def __init__(self, objects: Objects, pins: Pins) -> None:
        self._objects = objects
        self._pins = pins
        self._bundle: Bundle | None = None

    def __bool__(self) -> bool:
        """Whether it has an object."""
        return self._bundle is not None

    def put(self, kind: int, data: bytes) -> Digest:
        """Add an object; see ``Bundle.put``. Only inside a pin, which the commit must be in too."""
        if not self._pins.is_pinned:
            raise RuntimeError(
                "A bundle is used inside a pin, from its first object to its commit."
            )
        if self._bundle is None:
            self._bundle = self._objects.bundle()
        return self._bundle.put(kind, data)

    def get(self, kind: int, digest: Digest) -> bytes:
        """Return an object of this bundle, or else of the store."""
        return (self._bundle or self._objects).get(kind, digest)

    def discard(self) -> None:
        """Forget everything put so far; what of it was written is unreferenced and harmless."""
        self._bundle = None

    def flush(self) -> Flushed:
        """Make everything put so far durable; see ``Bundle.flush``."""
        return _NOTHING if self._bundle is None else self._bundle.flush()


class Write:
    """The write transaction in which the objects of a bundle become part of the store."""

    __slots__ = (
        "_bundle",
        "_engine",
        "_indexed",
        "_noted",
        "_session",
        "_txn",
        "_writing",
        "locked_at",
    )

    locked_at: float
    """When it got the write lock, in seconds of the clock."""

    def __init__(self, engine: Engine, bundle: Bundle, session: int | None) -> None:
        self._engine = engine
        self._bundle = bundle
        self._session = session

    def __enter__(self) -> Txn:
        # Before any byte is written: the files of a removed store may still be open here.
        self._engine.begin_write()
        try:
            # Before the transaction: the sync of the objects is slow, and other writers would wait.
            early = self._bundle.flush()
            self._writing = self._engine.journal.write(self._session)
            self._txn = self._writing.__enter__()
            try:
                self.locked_at = self._engine.clock.monotonic()
                self._indexed = 0
                # Before the index: what is stored again replaces what was noted.
                self._noted = self._engine.objects.damaged.copy()
                if self._noted:
                    self._txn.note_damaged(self._noted)
                self._index(early)
            except BaseException as error:
                # A signal, too: otherwise every writer waits until nothing refers to the error.
                self._writing.__exit__(type(error), error, error.__traceback__)
                raise
        except BaseException:
            self._engine.end_write()
            raise
        return self._txn

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            # Before the commit: no event may refer to an object that is not durable.
            if error is None:
                self._index_or_abort()
            # Commits; the call that wrote returns only after this.
            self._writing.__exit__(kind, error, trace)
            if error is None:
                self._engine.objects.damaged -= self._noted
        finally:
            self._engine.end_write()

    def _index_or_abort(self) -> None:
        try:
            self._index(self._bundle.flush())
        except BaseException as error:
            self._writing.__exit__(type(error), error, error.__traceback__)
            raise

    def _index(self, flushed: Flushed) -> None:
        """Index the objects that were flushed since the last call."""
        if len(flushed.entries) > self._indexed:
            self._txn.index_objects(flushed.entries, flushed.area_lengths, flushed.values)
            self._indexed = len(flushed.entries)


_Thread = tuple[int, int]


def _this_thread() -> _Thread:
    # With the process: a fork copies the set of threads, and reuses their numbers.
    return os.getpid(), threading.get_ident()


class EngineUpkeep(Protocol):
    """What the handle on a store does for its upkeep by itself; see ``mulligan.upkeep``."""

    def work_done(self) -> None:
        """Look after the store in the background, if that is due. Returns at once."""
        ...

    def make_room(self) -> None:
        """Remove what need not be kept from a store that has reached its quota.

        The caller must not be pinned.
        """
        ...

    def maintain(self, budget_seconds: float) -> None:
        """Look after the store now, if that is due, for so long at most."""
        ...

    def close(self) -> None:
        """End what runs in the background."""
        ...


class Engine:
    """A journal and an object store that belong together."""

    def __init__(
        self,
        journal: Journal,
        objects: Objects,
        clock: Clock,
        directory: Path | None = None,
        failpoint: FailpointHook = ignore,
        *,
        read_only: bool = False,
        features: Collection[str] = FEATURES,
        on_wait: OnWait | None = None,
    ) -> None:
        self.failpoint = failpoint
        self.features = features
        """The optional features of this store; see ``mulligan.layout``."""
        self.read_only = read_only
        """Whether nothing can be written, so that no lock is waited for."""
        self.held: set[tuple[str, int, int]] = set()
        """The locks of directories that this process holds: lock, process, thread."""
        self.directory_lock = threading.RLock()
        """Replaces the locks of all directories if there is no file to lock."""
        self._on_wait_hook = on_wait
        # Only for the counter below; never held during a write, so that threads write in parallel.
        self._lock, self._lock_pid = threading.Lock(), os.getpid()
        self._writes = 0
        self._deciding: set[_Thread] = set()
        self._closed = False
        self._pid = os.getpid()
        self.journal = journal
        self.objects = objects
        self.clock = clock
        self.directory = directory
        self._plain = codec.plain_decoder(self.load)
        self.environment = lru_cache(maxsize=64)(self._environment)
        """Returns the environment that an object holds; many checkpoints share one."""
        self.pins = Pins(None if directory is None else directory / LOCKS, self.check_present)
        self.storage = StorageLimit(directory)
        self.effect_rules: tuple[EffectRule, ...] = ()
        """The rules for effects in the store's configuration."""
        self.upkeep: EngineUpkeep | None = None
        """The upkeep of this handle, which is above this layer; None in memory."""
        self.left_out = lru_cache(maxsize=4)(self._left_out)
        """Returns the list of what is left out from its encoding; many checkpoints share one."""

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that opened it, not a fork of it."""
        return self._pid == os.getpid()

    def on_wait(self, holder: LockOwner | None) -> None:
        """Report the owner of a lock that this process waits for; None if it is unknown."""
        if self._on_wait_hook is not None:
            self._on_wait_hook(holder)

    def pin(self) -> Pin:
        """Keep every object that can be found now until the end of the block; pins nest.

        Everything that refers to objects later than it looked them up, or reads them later, runs
        inside a pin; see ``mulligan.pins``.
        """
        return self.pins.pin()

    def read(self) -> AbstractContextManager[View]:
        """Open a snapshot of the journal; keep it short."""
        return self.journal.read()

    def bundle(self) -> PendingObjects:
        """Start a bundle of new objects."""
        return PendingObjects(self.objects, self.pins)

    def write(self, bundle: Bundle | None = None, *, session: int | None = None) -> Write:
        """Open the write transaction in which the bundle's objects become part of the store.

        It belongs to the session of that number, or to the store for changes that span sessions;
        see ``Journal.write``. Objects put into the bundle inside the transaction become durable
        before the commit.
        """
        return Write(self, self.bundle() if bundle is None else bundle, session)

    def note_damaged(self, digests: Iterable[Digest] = ()) -> int:
        """Note damaged objects in the journal, so that the next capture stores them again.

        Also those that reads through this handle have found. Returns how often damage was noted in
        the store so far.
        """
        self.objects.damaged.update(digests)
        if self.objects.damaged and not self.read_only:
            with self.write():
                pass  # every write notes them
        with self.read() as view:
            return view.damage_count()

    def decide(self, function: Callable[[A], T], argument: A) -> T:
        """Run a function that decides what a transaction writes; this thread cannot write there.

        It may run again, and inside the transaction, which the other write would wait for forever.
        """
        thread, deciding = _this_thread(), self._deciding
        try:
            deciding.add(thread)
            return function(argument)
        finally:
            # By no function or block of ours: Python looks for signals as one begins, and after
            # Ctrl-C there, the thread could never write again.
            deciding.discard(thread)

    def refuse_inside_decision(self) -> None:
        """Raise ``StateError`` if this thread is deciding what a transaction writes."""
        if self._deciding and _this_thread() in self._deciding:
            raise StateError(
                "Nothing else can be written while a transaction is being decided.",
                hint="Nothing was written. Use only the state that the function is given.",
            )

    def check_present(self) -> None:
        """Raise ``StoreGone`` unless the opened store is still at its path."""
        if (presence := self.journal.presence()) is not Presence.PRESENT:
            raise StoreGone(f"The store at {self.directory} {_GONE[presence]} while it was open.")

    def begin_write(self) -> None:
        """Count a write, so that ``close`` does not release its area before the commit."""
        self.refuse_inside_decision()
        # Before every write: one to a store that was removed would be acknowledged and lost.
        self.check_present()
        is_counted = False
        try:
            with self._guard():
                # Under the same lock as in `close`: a write is either counted, or refused.
                if self._closed:
                    raise StoreClosed("This store was closed.")
                self._writes += 1
                is_counted = True
        except BaseException:
            if is_counted:  # a signal at the end of the block
                self.end_write()
            raise

    def end_write(self) -> None:
        """Count the end of a write."""
        with self._guard():
            self._writes -= 1

    def _guard(self) -> threading.Lock:
        """Return the lock of this process; one inherited by a fork may be held forever."""
        if self._lock_pid != os.getpid():
            self._lock, self._lock_pid = threading.Lock(), os.getpid()
        return self._lock

    def load(self, digest: Digest) -> bytes:
        """Return the bytes of a value's object."""
        return self.objects.get(ObjectKind.VALUE, digest)

    def plain(self, value: Any) -> Any:
        """Return a frozen value, such as an event's payload, as plain Python values."""
        return self._plain(codec.encode(value))

    def _environment(self, digest: Digest) -> Environment:
        return msgspec.convert(self._plain(self.load(digest)), ready(Environment))

    def _left_out(self, encoded: bytes) -> tuple[LeftOut, ...]:
        return msgspec.convert(self._plain(encoded), ready(tuple[LeftOut, ...]))

    def close(self) -> None:
        """Release everything, after the writes of other threads have ended. Idempotent.

        If an area were released before its objects are committed, its next owner could truncate it.
        """
        # Upkeep first: it writes, and would otherwise be waited for below.
        if self.upkeep is not None:
            self.upkeep.close()
        with self._guard():
            self._closed = True
        deadline = time.monotonic() + CLOSE_WAIT_SECONDS
        while self._writes and self._pid == os.getpid() and time.monotonic() < deadline:
            # Polled: a condition needs a lock, which a fork could inherit while it is held.
            time.sleep(0.001)
        # After the time limit the areas stay locked until the process ends: releasing them could
        # cost a write that is still under way.
        if not self._writes or self._pid != os.getpid():
            self.objects.close()
        # The journal last: the others look things up in it.
        self.pins.close()
        self.journal.close()
