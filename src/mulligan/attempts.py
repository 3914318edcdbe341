"""Attempts in a row: how long to wait before the next one, and how many to remember.

Shared by the ladder of failed recoveries and by that of drift; no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

T = TypeVar("T")

MAX_REMEMBERED_ATTEMPTS = 20
"""How many attempts are remembered."""


def seconds_left(at: datetime, now: datetime, seconds: float) -> float:
    """Return how much is left of a time span that started at a moment."""
    # If the clock was put back, wait no longer than the full span.
    passed = max(0.0, (now - at).total_seconds())
    return max(0.0, seconds - passed)


def remembered(attempts: Sequence[T], attempt: T, limit: int = MAX_REMEMBERED_ATTEMPTS) -> list[T]:
    """Return the attempts with another one; the oldest are the first to go."""
    return [*attempts, attempt][-limit:]
