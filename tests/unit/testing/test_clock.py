"""The fake clock moves only when told to."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mulligan.clock import Clock
from mulligan.testing.clock import START, FakeClock


def test_it_stands_still_until_it_is_told() -> None:
    clock: Clock = FakeClock()
    assert clock.now() == clock.now() == START
    assert clock.monotonic() == 0


def test_sleeping_takes_no_time_but_passes_it() -> None:
    clock = FakeClock()
    clock.sleep(3600)
    clock.advance(0.5)
    assert clock.now() == START + timedelta(seconds=3600.5)
    assert clock.monotonic() == 3600.5


def test_it_can_be_put_back_and_still_measures() -> None:
    clock = FakeClock()
    clock.advance(10)
    clock.set(START - timedelta(days=1))
    assert clock.now() == START - timedelta(days=1)
    assert clock.monotonic() == 10
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


def test_filesystems_count_the_same_time_in_nanoseconds() -> None:
    clock = FakeClock()
    clock.advance(0.000001)
    assert clock.wall_ns() == int(START.timestamp()) * 10**9 + 1_000


def test_it_can_tick_at_every_look() -> None:
    clock = FakeClock(tick=0.5)
    assert [(clock.now() - START).total_seconds() for _ in range(3)] == [0.0, 0.5, 1.0]
