"""Upkeep by itself: prune now and then, beside the work of agents.

``maintain`` does it once, if it is due; ``mulligan.upkeep.background`` calls it. Errors are
recorded for ``mulligan status`` and never reach the agent.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from mulligan.engine import Engine
from mulligan.errors import MulliganError, UpkeepBusy
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.purge.run import finish_if_unfinished
from mulligan.upkeep.record import UpkeepRecord, next_due, write_record
from mulligan.upkeep.retention.policy import read_policy
from mulligan.upkeep.retention.prune import Pruned, Pruner
from mulligan.upkeep.slices import Stop

ROOM_SECONDS = 10.0
"""How long a checkpoint waits for room, if the store has reached its quota."""


def maintain(engine: Engine, budget_seconds: float, stop: Stop = lambda: False) -> Pruned | None:
    """Prune if that is due and no other process does; return what was done.

    After ``budget_seconds``, it ends at the next slice, and goes on the next time. Errors are
    recorded, because no caller waits for the result.
    """
    if next_due(engine) is not None:
        return None
    return _attempt(engine, budget_seconds, stop, is_due=lambda: next_due(engine) is None)


def make_room(engine: Engine) -> Pruned | None:
    """Prune now, because the store has reached its quota, unless another process does."""
    return _attempt(engine, ROOM_SECONDS, lambda: False, is_due=lambda: True)


def _attempt(
    engine: Engine, budget_seconds: float, stop: Stop, is_due: Callable[[], bool]
) -> Pruned | None:
    directory = engine.directory
    if engine.read_only or directory is None:
        return None
    end = engine.clock.monotonic() + budget_seconds
    try:
        with upkeep_lock(engine, wait=False):
            # Checked again under the lock: the process that had it has just done the same work.
            if not is_due():
                return None  # another process was faster
            is_over = lambda: stop() or engine.clock.monotonic() >= end  # noqa: E731
            # First: content that a person wanted gone is more urgent than space.
            finish_if_unfinished(engine, is_over)
            pruned = Pruner(engine, read_policy(directory)).run(stop=is_over)
            record_pruned(engine, pruned)
            return pruned
    # The process that has the lock does this work, and records it.
    except UpkeepBusy:
        return None
    except (MulliganError, OSError) as error:
        with suppress(OSError):  # a full disk, perhaps; the next run reports it
            write_record(engine, UpkeepRecord(engine.clock.now(), error=str(error)))
        return None


def record_pruned(engine: Engine, pruned: Pruned) -> None:
    """Record what a prune did."""
    quota = pruned.plan.quota
    write_record(
        engine,
        UpkeepRecord(
            engine.clock.now(),
            pruned.removed,
            pruned.size_before,
            pruned.size_after,
            pruned.stopped,
            0 if quota is None else max(0, pruned.size_after - quota),
        ),
    )
