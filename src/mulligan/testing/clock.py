"""A clock that moves only when it is told to, so that tests never sleep."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


class FakeClock:
    """Implements ``Clock``; ``tick`` seconds pass at every look at the time of day."""

    def __init__(self, start: datetime = START, *, tick: float = 0.0) -> None:
        self._now = start
        self._elapsed = 0.0
        self._tick = tick
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """Return the time, then let one tick pass."""
        with self._lock:
            moment = self._now
            self._pass(self._tick)
            return moment

    def wall_ns(self) -> int:
        """Return the time in nanoseconds since 1970; no tick passes."""
        with self._lock:
            return (self._now - _EPOCH) // timedelta(microseconds=1) * 1000

    def monotonic(self) -> float:
        """Return the seconds that have passed since the start; setting the clock is no passing."""
        with self._lock:
            return self._elapsed

    def sleep(self, seconds: float) -> None:
        """Let the time pass at once."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let the time pass."""
        if seconds < 0:
            raise ValueError("time passes forwards; use set() to put the clock back")
        with self._lock:
            self._pass(seconds)

    def set(self, moment: datetime) -> None:
        """Put the clock forward or back, as a person or a time server does."""
        with self._lock:
            self._now = moment

    def _pass(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._elapsed += seconds
