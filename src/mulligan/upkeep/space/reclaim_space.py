"""Reclaiming space: collect what nothing refers to, free its bytes, compact the journal."""

from __future__ import annotations

import msgspec

from mulligan import layout
from mulligan.check.older_copy import refuse_older_copy
from mulligan.engine import Engine
from mulligan.errors import DiskFull
from mulligan.failpoints import Failpoint
from mulligan.model import Deletions, Erasure
from mulligan.upkeep.slices import Stop, Stopped, never
from mulligan.upkeep.space.deleted import frames_with_garbage, remove_deleted
from mulligan.upkeep.space.free import Freed, free, vacate
from mulligan.upkeep.space.gc import Collected, collect

FULL = "events of deleted sessions: the disk is full"
NO_ROOM = "objects beside deleted ones: the disk is full"

MAX_ROUNDS = 8
"""How often a collection that had no room for its list is continued after freeing."""


class Reclaimed(msgspec.Struct, frozen=True):
    """What was released: objects removed and moved, bytes, and what was skipped and why."""

    candidates: int = 0
    removed: int = 0
    moved: int = 0
    packs: int = 0
    pack_bytes: int = 0
    frame_bytes: int = 0
    tail_bytes: int = 0
    journal_bytes: int = 0
    skipped: tuple[str, ...] = ()
    stopped: bool = False
    events: int = 0
    """The events of deleted sessions that were removed."""
    longest_hold: float = 0.0
    """The longest that writers had to wait for one transaction, or for the swap, in seconds."""

    @property
    def total(self) -> int:
        """Return all bytes that were released."""
        return self.pack_bytes + self.frame_bytes + self.tail_bytes + self.journal_bytes


def reclaim(
    engine: Engine, stop: Stop = never, *, rewrite: bool = True, compact: bool = True
) -> Reclaimed:
    """Give back what is not needed; the caller holds the upkeep lock, and no pin.

    Works on a full disk: what can be released without new storage comes first. Without
    ``rewrite``, no live object is moved; without ``compact``, the journal stays as it is.
    """
    refuse_older_copy(engine)
    with engine.read() as view:
        # Before anything is removed: what is deleted later is left to the next run.
        deletions = view.deletions()
    erases = deletions.left
    if engine.directory is not None:
        # They hold the bytes of packs that are removed, and what was deleted.
        layout.remove_trials(engine.directory)
    total = _removed(engine, stop)
    # On a full disk, a round can only list as much garbage as there is room for, and frees some.
    for _ in range(MAX_ROUNDS):
        collected = _collected(engine, stop)
        moves = rewrite and collected is not None
        try:
            if moves and erases is Erasure.ALL and not _vacated(engine, stop):
                total = msgspec.structs.replace(total, skipped=(*total.skipped, NO_ROOM))
        except Stopped:
            return msgspec.structs.replace(total, stopped=True)
        freed = free(engine, stop, rewrite=moves, erase=erases is Erasure.ALL)
        total = _added(total, collected, freed)
        is_done = collected is not None and not collected.incomplete
        if is_done or total.stopped or not freed.total:
            break
    if compact and not total.stopped and not stop():
        total = _compacted(engine, total, deletions)
    return total


def _removed(engine: Engine, stop: Stop) -> Reclaimed:
    """Remove the events of deleted sessions, as far as the disk has room for that."""
    try:
        removed = remove_deleted(engine, stop)
        return Reclaimed(events=removed.events, longest_hold=removed.longest_hold)
    except DiskFull:
        return Reclaimed(skipped=(FULL,))


def _compacted(engine: Engine, total: Reclaimed, deletions: Deletions) -> Reclaimed:
    left = deletions.left
    if left is Erasure.ALL and not total.skipped:
        left = _note(engine, deletions, Erasure.JOURNAL)
    # Without patience for others: this is not worth holding up agents that are at work.
    done = engine.journal.compact(patience=0.0 if left else None)
    if left is Erasure.JOURNAL and done.skipped is None:
        # After the copy has taken the place of the file that may still have its bytes.
        _note(engine, deletions, Erasure.NOTHING)
    skipped = total.skipped if done.skipped is None else (*total.skipped, done.skipped)
    hold = max(total.longest_hold, done.held)
    return msgspec.structs.replace(
        total, journal_bytes=done.freed, skipped=skipped, longest_hold=hold
    )


def _note(engine: Engine, deletions: Deletions, left: Erasure) -> Erasure:
    with engine.write() as txn:
        txn.note_erased(Deletions(deletions.count, left))
    engine.failpoint(Failpoint.DELETE_ERASED)
    return left


def _vacated(engine: Engine, stop: Stop) -> bool:
    """Move live objects away from deleted ones, so that these can be erased; False without room.

    Raises ``Stopped``; the next run goes on.
    """
    try:
        vacate(engine, list(frames_with_garbage(engine)), stop)
    except DiskFull:
        return False
    engine.failpoint(Failpoint.DELETE_VACATED)
    return True


def _collected(engine: Engine, stop: Stop) -> Collected | None:
    """Collect; return None if the disk is too full even to start."""
    try:
        return collect(engine, stop)
    except DiskFull:
        return None


def _added(total: Reclaimed, collected: Collected | None, freed: Freed) -> Reclaimed:
    full = () if collected else ("objects that nothing refers to: the disk is full",)
    return Reclaimed(
        candidates=max(total.candidates, collected.candidates if collected else 0),
        removed=total.removed + (collected.removed if collected else 0),
        moved=total.moved + freed.moved,
        packs=total.packs + freed.areas,
        pack_bytes=total.pack_bytes + freed.area_bytes,
        frame_bytes=total.frame_bytes + freed.extent_bytes,
        tail_bytes=total.tail_bytes + freed.tail_bytes,
        skipped=tuple(dict.fromkeys((*total.skipped, *full, *freed.skipped))),
        stopped=freed.stopped or bool(collected and collected.stopped),
        events=total.events,
        longest_hold=max(
            total.longest_hold, collected.longest_hold if collected else 0.0, freed.longest_hold
        ),
    )
