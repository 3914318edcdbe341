"""Folding: old events of a session are replaced by the document after them.

It works in slices, oldest first. Each slice is one short transaction that makes a fold, or makes
one longer, and its record is true at once: a process that dies between two slices leaves a shorter
fold behind. Slices end at keyframes that are there already, where that is possible. See
docs/design/0006-upkeep.md for what stays, and ``mulligan.upkeep.space.needed`` for why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec

from mulligan.document.document import settle_root
from mulligan.document.history import document_at
from mulligan.engine import Engine
from mulligan.failpoints import Failpoint
from mulligan.journal.protocol import Txn, View
from mulligan.model import Digest, Fold, ObjectKind, SessionRecord
from mulligan.objects.protocol import Bundle
from mulligan.timeline.checkpoints import event_at
from mulligan.timeline.moments import fold_at, seq_at
from mulligan.timeline.times import aware
from mulligan.upkeep.slices import SliceSize, Stop, never
from mulligan.upkeep.space.needed import Needs, base_of, forks, needed_events

SLICE_EVENTS = 512
"""How many events one transaction removes at most; on a slow disk, fewer."""

MIN_SLICE_EVENTS = 128
"""Fewer would need a keyframe of their own too often."""

MIN_EVENTS = 8
"""Fewer events than this are not worth a keyframe of their own."""

MAX_BEHIND = 64
"""How many new events may be read inside a transaction; more are read before it."""


class Folded(msgspec.Struct, frozen=True):
    """What folding did: how many events are gone, and which stayed up to which seq, and why.

    ``held_back`` is the seq of an operation or a restore that is not finished: all events from
    there on are needed.
    """

    events: int
    last: int
    kept: dict[int, str]
    held_back: int | None = None
    stopped: bool = False
    longest_hold: float = 0.0
    """The longest that one of its transactions held the write lock, in seconds."""


def fold_session(
    engine: Engine,
    record: SessionRecord,
    before: datetime | int,
    keep: Mapping[int, str] | None = None,
    stop: Stop = never,
    *,
    undo_since: datetime | None = None,
    needs: Needs | None = None,
    min_events: int = MIN_EVENTS,
) -> Folded:
    """Fold the session's own events before a time or a seq, but those that are needed.

    From ``before`` on, every point stays. ``keep`` names more seqs to keep, with the reasons.
    Restores before ``undo_since`` need not be undone any more. ``needs`` is worth sharing when
    several sessions are folded. The caller holds the upkeep lock.
    """
    needs = needs or Needs(engine)
    needs.refresh()
    last, held_back = _last_to_fold(engine, record, before, needs)
    kept = needed_events(engine, record, last, needs=needs, keep=keep, undo_since=undo_since)
    folding = _Folding(engine, record, needs, undo_since, stop)
    stopped = not all(
        folding.fold(first, end, min_events) for first, end in _runs(record, last, kept)
    )
    return Folded(folding.events, last, kept, held_back, stopped, folding.longest_hold)


def _last_to_fold(
    engine: Engine, record: SessionRecord, before: datetime | int, needs: Needs
) -> tuple[int, int | None]:
    """Return the seq of the last event that may be folded, and what holds more back."""
    with engine.read() as view:
        # The event that was the newest at a time is the state at that time, so it stays.
        seq = before if isinstance(before, int) else seq_at(view, record.number, aware(before))
        last = min((seq or 0) - 1, view.head(record.number).seq - 1)
    held_back = needs.of(record).everything_after
    if held_back is not None and held_back <= last:
        return held_back - 1, held_back
    return last, None


def _runs(record: SessionRecord, last: int, kept: Mapping[int, str]) -> Iterator[tuple[int, int]]:
    """Yield the stretches of events up to ``last`` between those that are kept."""
    first = base_of(record) + 1
    for seq in [*sorted(kept), last + 1]:
        if first < seq:
            yield first, seq - 1
        first = seq + 1


class _NeededNow(Exception):
    """An event that was to be folded has become needed."""


class _Folding:
    def __init__(
        self,
        engine: Engine,
        record: SessionRecord,
        needs: Needs,
        undo_since: datetime | None,
        stop: Stop,
    ) -> None:
        self._engine = engine
        self._record = record
        self._needs = needs
        self._undo_since = undo_since
        self._stop = stop
        # At once with the most: these events are next to each other, on few pages.
        self._slice = SliceSize(engine.clock, SLICE_EVENTS, MIN_SLICE_EVENTS, first=SLICE_EVENTS)
        self.events = 0

    @property
    def longest_hold(self) -> float:
        return self._slice.longest

    def fold(self, first: int, last: int, min_events: int) -> bool:
        """Fold a stretch of events that nothing needs; return False if it was stopped."""
        if self._remaining(first, last) < min_events:
            return True
        position = first
        while position <= last:
            if self._stop():
                return False
            try:
                position = self._fold_slice(first, position, last) + 1
            except _NeededNow:
                return True  # the next run folds what is around it
        return True

    def _remaining(self, first: int, last: int) -> int:
        with self._engine.read() as view:
            return _count_remaining(view, self._record.number, first, last)

    def _fold_slice(self, first: int, position: int, last: int) -> int:
        """Fold from ``first`` to some way behind ``position``; return the seq of the end."""
        # Pinned: the keyframe may refer to objects that are in the store already.
        with self._engine.pin():
            bundle = self._engine.bundle()
            with self._engine.read() as view:
                end = self._slice_end(view, position, last)
                removed = _count_remaining(view, self._record.number, first, end)
                fold = self._fold_to(view, first, end, bundle)
            self._engine.failpoint(Failpoint.FOLD_PREPARED)
            while not self._commit(fold, bundle):
                self._needs.refresh()
        self.events += removed
        self._engine.failpoint(Failpoint.FOLD_COMMITTED)
        return end

    def _slice_end(self, view: View, position: int, last: int) -> int:
        number = self._record.number
        if (fold := fold_at(view, number, position)) is not None:
            position = fold.last + 1
        end = min(position + self._slice.now - 1, last)
        keyframe = view.keyframe(number, end)
        if end < last and keyframe is not None and keyframe[0] >= position:
            end = keyframe[0]  # no new objects have to be stored there
        # A fold includes those that it touches: otherwise two would be next to each other.
        for other in view.folds(number):
            if other.first <= end + 1 <= other.last:
                end = other.last
        return end

    def _fold_to(self, view: View, first: int, end: int, bundle: Bundle) -> Fold:
        number = self._record.number
        before, after = fold_at(view, number, first), fold_at(view, number, end)
        started = before.started if before else event_at(view, number, first).time
        if after is not None:
            return Fold(first, end, started, after.ended, after.hash, after.keyframe)
        event = event_at(view, number, end)
        digest = self._keyframe(view, end, bundle)
        return Fold(first, end, started, event.time, event.hash, digest)

    def _keyframe(self, view: View, seq: int, bundle: Bundle) -> Digest:
        """Return the digest of the document after an event, and store what is new of it."""
        known = view.keyframe(self._record.number, seq)
        if known is not None and known[0] == seq:
            return known[1]
        document = document_at(view, self._record.number, seq, self._engine.load)
        return settle_root(document.root, lambda data: bundle.put(ObjectKind.VALUE, data))

    def _commit(self, fold: Fold, bundle: Bundle) -> bool:
        """Write a fold, unless too much was written meanwhile to be read under the lock."""
        write = self._engine.write(bundle, session=self._record.number)
        with self._slice.transaction(write) as txn:
            if self._needs.behind(txn) > MAX_BEHIND:
                return False
            self._write(txn, fold)
        return True

    def _write(self, txn: Txn, fold: Fold) -> None:
        # Looked at in the transaction: a restore or a fork to one of these events may have started.
        needed = {seq for number, seq in self._needs.added(txn) if number == self._record.number}
        needed.update(self._needs.on(self._record, self._undo_since), forks(txn, self._record))
        if any(fold.first <= seq <= fold.last for seq in needed):
            raise _NeededNow
        txn.fold(self._record.number, fold)
        self._engine.failpoint(Failpoint.FOLD_WRITTEN)


def _count_remaining(view: View, number: int, first: int, last: int) -> int:
    folds = view.folded(number, first, last)
    gone = sum(min(last, fold.last) - max(first, fold.first) + 1 for fold in folds)
    return last - first + 1 - gone
