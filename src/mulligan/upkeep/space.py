"""Reclaiming space: collect what nothing refers to, free its bytes, compact the journal."""

from __future__ import annotations

import msgspec

from mulligan.check.older_copy import refuse_older_copy
from mulligan.engine import Engine
from mulligan.errors import DiskFull
from mulligan.upkeep.free import Freed, free
from mulligan.upkeep.gc import Collected, collect
from mulligan.upkeep.slices import Stop, never

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
    total = Reclaimed()
    # On a full disk, a round can only list as much garbage as there is room for, and frees some.
    for _ in range(MAX_ROUNDS):
        collected = _collected(engine, stop)
        freed = free(engine, stop, rewrite=rewrite and collected is not None)
        total = _added(total, collected, freed)
        is_done = collected is not None and not collected.incomplete
        if is_done or total.stopped or not freed.total:
            break
    if compact and not total.stopped and not stop():
        done = engine.journal.compact()
        skipped = total.skipped if done.skipped is None else (*total.skipped, done.skipped)
        total = msgspec.structs.replace(total, journal_bytes=done.freed, skipped=skipped)
    return total


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
    )
