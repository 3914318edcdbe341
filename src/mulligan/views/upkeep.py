"""Upkeep: what a prune keeps and removes, and how the store stands."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.upkeep.record import next_due, read_record
from mulligan.upkeep.space.grace import held_back_by

if TYPE_CHECKING:
    from mulligan.engine import Engine
    from mulligan.journal.lock_owner import LockOwner
    from mulligan.model import Purge
    from mulligan.storage_limit import StorageLimit
    from mulligan.upkeep.retention.prune import Pruned, PrunePlan
    from mulligan.upkeep.retention.rulings import Candidate, Ruling


def prune_view(plan: PrunePlan, pruned: Pruned | None) -> dict[str, Any]:
    """Return what a prune keeps and removes; ``pruned`` is what was done, if it was."""
    candidates = {one.id: one for one in plan.candidates}
    return {
        "dry_run": pruned is None,
        "kept": len(plan.plan.keep),
        "removed": len(plan.plan.remove),
        "bytes_freed": plan.freed,
        "size_bytes": plan.size,
        "size_after_bytes": pruned and pruned.size_after,
        "freed_now_bytes": pruned and pruned.freed_now,
        "quota_bytes": plan.quota,
        "over_quota_bytes": plan.plan.over_quota,
        "longest_hold_ms": pruned and round(pruned.longest_hold * 1000, 3),
        "checkpoints": [_ruling_view(one, candidates[one.id]) for one in plan.plan.rulings],
    }


def _ruling_view(ruling: Ruling, candidate: Candidate) -> dict[str, Any]:
    return {
        "checkpoint_id": ruling.id,
        "session": ruling.session,
        "seq": ruling.seq,
        "timestamp": candidate.time,
        "actor": candidate.agent,
        "kind": candidate.kind,
        "keep": ruling.keep,
        "rule": ruling.rule,
        "reason": ruling.reason,
        "bytes_freed": ruling.bytes_freed,
    }


WARN_SHARE = 0.9
"""The part of its quota from which on a store says that it is nearly reached."""

HELD_SECONDS = 60.0
"""A grace period that takes longer than this is reported; every collection has short ones."""


class UpkeepStatus(msgspec.Struct, frozen=True):
    """How the upkeep of a store stands.

    ``warning`` is said before checkpoints hold no files, and ``state_only`` why they do not now;
    ``held_by`` is the process that keeps upkeep from releasing space; ``unfinished`` are purges of
    which bytes may be left.
    """

    quota: int | None
    last: datetime | None
    removed: int | None
    error: str | None
    next: datetime | None
    state_only: str | None
    held_by: LockOwner | None
    warning: str | None
    unfinished: tuple[Purge, ...] = ()


def upkeep_status(engine: Engine) -> UpkeepStatus:
    """Return how the upkeep of a store stands."""
    record, allowance = read_record(engine), engine.storage.allowance()
    is_full = allowance is not None and allowance.bytes <= 0
    return UpkeepStatus(
        engine.storage.quota,
        record.at if record else None,
        record.removed if record else None,
        record.error if record else None,
        next_due(engine),
        allowance.reason if allowance is not None and is_full else None,
        _held_by(engine),
        None if is_full else _warning(engine.storage),
        _unfinished(engine),
    )


def _warning(storage: StorageLimit) -> str | None:
    if storage.quota is None or (used := storage.size()) < WARN_SHARE * storage.quota:
        return None
    return (
        f"the store has {used:,} bytes of its quota of {storage.quota:,}; beyond it, checkpoints "
        "hold no files"
    )


def _held_by(engine: Engine) -> LockOwner | None:
    held = None if engine.directory is None else held_back_by(engine.directory)
    if held is None:
        return None
    owner, since = held
    is_long = engine.clock.now().timestamp() - since >= HELD_SECONDS
    return owner if owner.is_stopped or is_long else None


def _unfinished(engine: Engine) -> tuple[Purge, ...]:
    with engine.read() as view:
        return tuple(purge for purge in view.purges() if purge.finished is None)


def upkeep_view(engine: Engine) -> dict[str, Any]:
    """Return how the upkeep of a store stands: its quota, the last prune and the next."""
    status = upkeep_status(engine)
    return {
        "quota_bytes": status.quota,
        "last_prune": status.last,
        "removed": status.removed,
        "error": status.error,
        "next_prune": status.next,
        "state_only": status.state_only,
        "warning": status.warning,
        "held_by": status.held_by
        and {
            "pid": status.held_by.pid,
            "command": status.held_by.command,
            "stopped": status.held_by.is_stopped,
        },
        "unfinished_purges": _purge_views(status.unfinished),
    }


def _purge_views(purges: tuple[Purge, ...]) -> list[dict[str, Any]]:
    if not purges:
        return []
    from mulligan.views.purge import purge_record_view  # few stores have had a purge

    return [purge_record_view(purge) for purge in purges]
