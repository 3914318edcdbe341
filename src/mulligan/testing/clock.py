"""A clock that only moves when advanced, so that tests never sleep."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


class FakeClock:
    """Implements ``Clock``; each call of ``now`` advances it by ``tick`` seconds."""

    def __init__(self, start: datetime = START, *, tick: float = 0.0) -> None:
        self._now = start
        self._elapsed = 0.0
        self._tick = tick
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """Return the time, then advance by one tick."""
        with self._lock:
            moment = self._now
            self._pass(self._tick)
            return moment

    def wall_ns(self) -> int:
        """Return the time in nanoseconds since 1970; no tick passes."""
        with self._lock:
            return (self._now - _EPOCH) // timedelta(microseconds=1) * 1000

    def monotonic(self) -> float:
        """Return the seconds elapsed since the start; :meth:`set` does not count."""
        with self._lock:
            return self._elapsed

    def sleep(self, seconds: float) -> None:
        """Advance the clock without waiting."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        if seconds < 0:
            raise ValueError("the clock cannot advance backwards; use set() to put it back")
        with self._lock:
            self._pass(seconds)

    def set(self, moment: datetime) -> None:
        """Set the clock forward or back, as a user or a time server does."""
        with self._lock:
            self._now = moment

    def _pass(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._elapsed += seconds
