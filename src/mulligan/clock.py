"""The clock that is injected into everything below the command line."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The time of day, and a way to sleep."""

    def now(self) -> datetime:
        """Return the time in UTC."""
        ...

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970, as filesystems count them."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go backwards, for measuring."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.now(UTC)

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970, as filesystems count them."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Return seconds that never go backwards, for measuring."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
