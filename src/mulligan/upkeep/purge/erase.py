"""Erasing: the bytes of what was buried leave the packs, the journal's file and the caches.

Needs no knowledge of the secret: the tombstones name the objects, and what else is dead in a pack
or free in the journal's file goes with them. So any later process can finish it.
"""

from __future__ import annotations

from collections.abc import Iterator

from mulligan import layout
from mulligan.engine import Engine
from mulligan.errors import DamageError, DiskFull
from mulligan.failpoints import Failpoint
from mulligan.layout import DAMAGED
from mulligan.model import Location
from mulligan.objects.protocol import StoredGroup
from mulligan.upkeep.drill.scratch import remove_leftovers
from mulligan.upkeep.slices import Stop, Stopped, never
from mulligan.upkeep.space.free import free, vacate
from mulligan.upkeep.space.gc import collect

CACHES = ("index-*", "tools", "FORMAT.*")
"""Names of files in ``tmp/`` that may hold names and values, and that are made again."""

LEAVE_SECONDS = 12.0
"""How long other processes are asked to leave the journal for: an agent looks every ten seconds,
when it renews its lease, and the lease lasts for longer."""

STOPPED = "operations that began before it: they have not ended"
ORIGINALS = "damaged originals that a repair kept: `mulligan verify --discard` deletes them"


def erase(engine: Engine, patience: float, stop: Stop = never) -> list[str]:
    """Erase what was buried; return what could not be, with the reasons.

    The caller holds the upkeep lock, and no pin. Safe to repeat. ``patience`` is how many seconds
    operations that are under way are waited for, and other processes held up.
    """
    left: list[str] = []
    # Values that an operation under way stored in vain may hold it, and nothing refers to them.
    if collect(engine, stop, patience).stopped:
        return [STOPPED]
    try:
        vacate(engine, list(_frames_with_buried(engine)), stop)
    except DiskFull as error:
        left.append(f"objects beside purged ones: {error}")
    except Stopped:
        return [STOPPED]
    engine.failpoint(Failpoint.PURGE_VACATED)
    freed = free(engine, stop, rewrite=False, erase=True, patience=patience)
    if freed.stopped:
        return [*left, STOPPED]
    left += freed.skipped
    engine.failpoint(Failpoint.PURGE_ERASED)
    _remove_caches(engine)
    engine.failpoint(Failpoint.PURGE_CACHES_REMOVED)
    # Last: until here, the journal itself was written to.
    if (
        skipped := engine.journal.compact(patience=min(patience, LEAVE_SECONDS)).skipped
    ) is not None:
        left.append(skipped)
    # Their bytes may be compressed, and only the user may give them up.
    if engine.directory is not None and (engine.directory / DAMAGED).exists():
        left.append(ORIGINALS)
    return left


def _frames_with_buried(engine: Engine) -> Iterator[Location]:
    """Yield the frames that hold a purged object, by their directories."""
    with engine.read() as view:
        buried = {digest for digest, _ in view.buried_objects()}
        lengths = view.area_lengths()
    for area in engine.objects.areas():
        # An area that cannot be read is damage; the proof reads it byte by byte.
        try:
            for found in engine.objects.enumerate(area, lengths.get(area, 0), full=False):
                if not isinstance(found, StoredGroup):
                    continue
                if not buried.isdisjoint(found.digests):
                    yield Location(found.area, found.offset, found.length, 0)
        except DamageError:
            continue


def _remove_caches(engine: Engine) -> None:
    if engine.directory is None:
        return
    # A drill that was killed leaves files of a checkpoint.
    remove_leftovers(engine)
    # A trial of a repair that was killed leaves a copy of the journal, and names of packs.
    layout.remove_trials(engine.directory)
    for name in CACHES:
        for file in (engine.directory / "tmp").glob(name):
            file.unlink(missing_ok=True)
