"""What counts as drift, and what is done about it: the table ``[drift]``.

It stands in a store's ``config.toml`` or in a workflow file; what it does not say has its default.
"""

from __future__ import annotations

from typing import Any

import msgspec

TABLE = "drift"

MINUTE = 60.0
HOUR = 60 * MINUTE


class LadderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often each rung is tried; 0 leaves it out. ``[drift.ladder]``.

    ``cooldown`` is the time between two responses; an agent that lives for ``settled`` after one
    starts at the first rung again.
    """

    note: int = 1
    checkpoint: int = 1
    refresh: int = 3
    rollback: int = 3
    isolate: int = 1
    cooldown: float = MINUTE
    settled: float = 15 * MINUTE


class DriftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds of the signals; the guide to signals explains each."""

    enabled: bool = True
    off: tuple[str, ...] = ()
    baseline: int = 20
    cycles: int = 300
    age: float = 2 * HOUR
    error_window: int = 20
    error_warning: float = 0.2
    error_rate: float = 0.5
    same_result: int = 4
    same_failure: int = 3
    same_message: int = 3
    alternation: int = 6
    period_repeats: int = 3
    stall_cycles: int = 30
    stall_time: float = 30 * MINUTE
    slower: float = 0.5
    context_growth: float = 3.0
    backwards: int = 3
    goal: str = ""
    goal_distance: float = 0.9
    ladder: LadderSettings = LadderSettings()

    def to_table(self) -> dict[str, Any]:
        """Return the table from which ``parse_drift`` makes these settings; it is never empty."""
        table: dict[str, Any] = msgspec.to_builtins(self)
        return {**table, "off": list(self.off)}
