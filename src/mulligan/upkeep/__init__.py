"""Upkeep: what a store keeps, what it removes, and whether it would restore."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.upkeep.drill.record import DrillResult, last_drill
    from mulligan.upkeep.drill.run import run_drill
    from mulligan.upkeep.purge.run import (
        Purged,
        PurgePlan,
        PurgeTarget,
        finish_purges,
        plan_purge,
        run_purge,
    )
    from mulligan.upkeep.retention.delete_checkpoints import delete_checkpoints
    from mulligan.upkeep.usage import Usage, disk_usage

__all__ = [
    "DrillResult",
    "PurgePlan",
    "PurgeTarget",
    "Purged",
    "Usage",
    "delete_checkpoints",
    "disk_usage",
    "finish_purges",
    "last_drill",
    "plan_purge",
    "run_drill",
    "run_purge",
]

_HOMES = {
    "DrillResult": "mulligan.upkeep.drill.record",
    "delete_checkpoints": "mulligan.upkeep.retention.delete_checkpoints",
    "last_drill": "mulligan.upkeep.drill.record",
    "run_drill": "mulligan.upkeep.drill.run",
    "Usage": "mulligan.upkeep.usage",
    "disk_usage": "mulligan.upkeep.usage",
    **dict.fromkeys(
        ("PurgePlan", "PurgeTarget", "Purged", "finish_purges", "plan_purge", "run_purge"),
        "mulligan.upkeep.purge.run",
    ),
}
"""Where the public names live; imported when first used, since their modules are large."""


def __getattr__(name: str) -> Any:
    """Import a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
