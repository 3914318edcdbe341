"""Deleted sessions: their events are removed, but those that forks continue from.

From the newest event on, in short transactions. After each of them, what is left is a shorter
session, so a process may die anywhere, and the next run goes on. The objects that only these events
referred to are then garbage, and their bytes are erased as those of a purge are: frames that hold
garbage beside live objects are rewritten, and the journal is compacted.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mulligan.engine import Engine
from mulligan.errors import DamageError
from mulligan.failpoints import Failpoint
from mulligan.journal.copies import Copied, Put, copy_again
from mulligan.journal.protocol import View
from mulligan.model import Location, SessionRecord
from mulligan.objects.protocol import StoredGroup
from mulligan.timeline.moments import fold_at
from mulligan.upkeep.slices import SliceSize, Stop, never
from mulligan.upkeep.space.needed import base_of, forks

SLICE_EVENTS = 512
"""How many events one transaction removes at most; on a slow disk, fewer."""


class Removed(msgspec.Struct, frozen=True):
    """How many events were removed, and the longest that it held the write lock, in seconds."""

    events: int
    longest_hold: float


def remove_deleted(engine: Engine, stop: Stop = never) -> Removed:
    """Remove what no fork needs of deleted sessions; the caller holds the upkeep lock."""
    with engine.read() as view:
        deleted = [record for record in view.sessions() if record.deleted is not None]
    slices = SliceSize(engine.clock, SLICE_EVENTS)
    # Forks first: a deleted fork needs nothing of its parent any more.
    events = sum(_remove(engine, record, slices, stop) for record in reversed(deleted))
    return Removed(events, slices.longest)


def _remove(engine: Engine, record: SessionRecord, slices: SliceSize, stop: Stop) -> int:
    removed = 0
    while not stop():
        with engine.read() as view:
            head, last = view.head(record.number).seq, last_needed(view, record)
            if head <= last:
                break
            end = _slice_end(view, record, max(last, head - slices.now))
        removed += head - end if _cut(engine, record, end, slices) else 0
        if end == base_of(record):
            break
    return removed


def _cut(engine: Engine, record: SessionRecord, end: int, slices: SliceSize) -> bool:
    """Remove the events after a seq in one transaction; False if a fork needs them by now."""
    number = record.number
    with engine.pin():
        bundle = engine.bundle()
        # Before the transaction: writers would wait for the sync of these objects.
        with engine.read() as view:
            made = list(_copied_again(view, number, end, bundle.put))
        with slices.transaction(engine.write(bundle)) as txn:
            # Looked at in the transaction: a fork may have been made since. It keeps its origin.
            if last_needed(txn, record) > end:
                return False
            txn.cut_session(number, end)
            for copy in made:
                txn.put_copy(number, copy.first, copy.last, copy.digest)
            engine.failpoint(Failpoint.DELETE_CUT)
    engine.failpoint(Failpoint.DELETE_CUT_COMMITTED)
    return True


def _copied_again(view: View, number: int, end: int, put: Put) -> Iterator[Copied]:
    """Copy what a cut leaves of a copy of events on both sides of it, which is dropped."""
    for copy in view.copies():
        if copy.session == number and copy.first <= end < copy.last:
            yield from copy_again(view, number, copy.first, end, put)


def last_needed(view: View, record: SessionRecord) -> int:
    """Return the seq up to which forks need the session's own events.

    A fork of a fork may continue from an event of the first session: then the record of the one in
    between is needed, and its first event with it.
    """
    base = base_of(record)
    is_parent = any(one.origin and one.origin.session == record.number for one in view.sessions())
    return max(forks(view, record), default=base + is_parent)


def _slice_end(view: View, record: SessionRecord, end: int) -> int:
    """Return the seq of an event that is there: the newest one is never inside of a fold."""
    fold = fold_at(view, record.number, end) if end > base_of(record) else None
    return end if fold is None else fold.first - 1


def frames_with_garbage(engine: Engine) -> Iterator[Location]:
    """Yield the frames that hold live objects and others, by their directories."""
    with engine.read() as view:
        lengths = view.area_lengths()
    for area in engine.objects.areas():
        try:
            for found in engine.objects.enumerate(area, lengths.get(area, 0), full=False):
                if isinstance(found, StoredGroup) and _is_mixed(engine, found):
                    yield Location(found.area, found.offset, found.length, 0)
        except DamageError:
            continue  # it is reported by `verify`; its objects stay where they are


def _is_mixed(engine: Engine, group: StoredGroup) -> bool:
    with engine.read() as view:
        [live] = view.indexed_at([group])
    return 0 < live < len(group.digests)
