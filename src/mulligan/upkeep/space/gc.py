"""Garbage collection: remove the objects that nothing refers to any more.

It runs beside writers, readers, restores and forks, and can be killed at every instruction.
docs/design/0006-upkeep.md and docs/FORMAT.md explain why no object is removed that is needed:

1. *mark*: list the candidates, and keep what events, keyframes and folds refer to.
2. *condemn*: list the rest; with the phase ``sweep`` the list comes into force, in a transaction
   that has seen every commit.
3. Wait for a grace period: operations that looked objects up earlier may still refer to them.
4. *sweep*: take what they referred to off the list, and the others out of the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from mulligan.engine import Engine
from mulligan.errors import DiskFull
from mulligan.failpoints import Failpoint
from mulligan.journal.protocol import Txn
from mulligan.model import Digest
from mulligan.upkeep.slices import SliceSize, Stop, Stopped, never
from mulligan.upkeep.space.grace import wait_grace_period
from mulligan.upkeep.space.mark import Marker

SLICE_OBJECTS = 1_000
"""How many objects one transaction condemns or sweeps at most; on a slow disk, fewer."""

MAX_BEHIND = 64
"""How much may be left to mark inside of a transaction; more is marked before it."""


class Collected(msgspec.Struct, frozen=True):
    """What a collection did: candidates, objects removed, and whether it was stopped early.

    ``incomplete``: the disk was too full to list all of the garbage. ``longest_hold`` is the
    longest that one of its transactions held the write lock, in seconds.
    """

    candidates: int
    removed: int
    stopped: bool = False
    incomplete: bool = False
    longest_hold: float = 0.0


def collect(engine: Engine, stop: Stop = never, patience: float | None = None) -> Collected:
    """Remove every object that nothing refers to; the caller holds the upkeep lock, and no pin.

    It is stopped if operations that are under way take longer than ``patience`` seconds.
    """
    return _Collection(engine, stop, patience).run()


class _Collection:
    def __init__(self, engine: Engine, stop: Stop, patience: float | None) -> None:
        self._engine = engine
        self._stop = stop
        self._patience = patience
        self._marker = Marker(engine)
        self._removed = 0
        self._incomplete = False
        self._slice = SliceSize(engine.clock, SLICE_OBJECTS)

    def run(self) -> Collected:
        try:
            self._start()
            self._marker.collect_candidates()
            self._marker.mark_all()
            if self._condemn():
                wait_grace_period(self._engine, self._stop, self._patience)
                self._sweep()
            stopped = False
        except Stopped:
            stopped = True
        self._end()
        return Collected(
            len(self._marker.set), self._removed, stopped, self._incomplete, self._slice.longest
        )

    def _start(self) -> None:
        """Clear the lists of a collection that was interrupted, and list fresh objects from now."""
        self._end()
        # Before the first look at the index: every value stored from here on is listed as fresh.
        with self._slice.single(self._engine.write()) as txn:
            txn.set_phase("mark")
        self._engine.failpoint(Failpoint.GC_STARTED)

    def _condemn(self) -> bool:
        """List the garbage and put the list in force; return whether there is any."""
        found = False
        garbage = self._garbage()
        rest: list[Digest] = []
        while batch := rest or list(islice(garbage, self._slice.now)):
            try:
                rest = batch[self._condemn_slice(batch) :]
            except DiskFull:
                # The list needs new pages. What is listed is swept first, which frees some.
                self._incomplete = True
                break
            found = True
            self._check()
        if found:
            self._settled(self._put_in_force)
            self._engine.failpoint(Failpoint.GC_CONDEMNED)
        return found

    def _condemn_slice(self, batch: list[Digest]) -> int:
        """List garbage; return how many of the batch there was time for."""
        done = 0
        with self._slice.transaction(self._engine.write()) as txn:
            for part in self._slice.parts(batch):
                txn.condemn(part)
                done += len(part)
        return done

    def _garbage(self) -> Iterator[Digest]:
        """Yield the candidates that were not kept, in short snapshots."""
        last: Digest | None = None
        while page := self._marker.page_of_index(last):
            yield from filter(self._marker.set.is_garbage, page)
            last = page[-1]

    def _put_in_force(self, txn: Txn, rescued: list[Digest]) -> None:
        txn.unlist(rescued)
        # From this commit on, no operation refers to a condemned object that did not before.
        txn.set_phase("sweep")

    def _sweep(self) -> None:
        self._engine.failpoint(Failpoint.GC_GRACE_OVER)
        # Everything that operations from before the grace period refer to is committed by now.
        self._settled(lambda txn, rescued: txn.unlist(rescued))
        while batch := self._next_condemned():
            # No marking here: what is committed from now on refers to nothing on the list.
            try:
                removed = self._sweep_slice(batch)
            except DiskFull:
                self._shorten()
                continue
            self._removed += removed
            self._engine.failpoint(Failpoint.GC_SWEPT)
            self._check()

    def _sweep_slice(self, batch: list[Digest]) -> int:
        removed = 0
        with self._slice.transaction(self._engine.write()) as txn:
            # Those that there is no time for are still on the list.
            for part in self._slice.parts(batch):
                removed += txn.sweep(part)
        return removed

    def _next_condemned(self) -> list[Digest]:
        with self._engine.read() as view:
            return list(islice(view.condemned(), self._slice.now))

    def _settled(self, write: Callable[[Txn, list[Digest]], None]) -> None:
        """Mark what was committed, and write in a transaction before which nothing else was.

        Most of the marking happens before the transaction, because writers wait for it.
        """
        rescued: list[Digest] = []
        # Until few events are left to mark inside the transaction, during which writers wait.
        while True:
            with self._engine.read() as view:
                rescued += self._marker.catch_up(view)
            with self._slice.single(self._engine.write()) as txn:
                if self._marker.behind(txn) <= MAX_BEHIND:
                    write(txn, rescued + self._marker.catch_up(txn))
                    return
            self._check()

    def _end(self) -> None:
        """Take the list out of force and empty it; every object that is left stays."""
        with self._engine.read() as view:
            if view.collection().phase == "idle":
                return
        with self._slice.single(self._engine.write()) as txn:
            txn.set_phase("idle")
        # After the phase: a list that is being emptied must not be in force.
        while True:
            try:
                with self._slice.transaction(self._engine.write()) as txn:
                    condemned = list(islice(txn.condemned(), self._slice.now))
                    fresh = list(islice(txn.fresh(), self._slice.now))
                    txn.unlist(condemned, fresh)
            except DiskFull:
                self._shorten()
                continue
            if not condemned and not fresh:
                return

    def _shorten(self) -> None:
        """Take a smaller slice on a full disk; call it while ``DiskFull`` is handled.

        A transaction copies the pages that it changes. A small one finds room in the journal's own
        free pages, and leaves more of them for the next.
        """
        if not self._slice.shorten():
            raise

    def _check(self) -> None:
        if self._stop():
            raise Stopped
