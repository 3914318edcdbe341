"""However the clock jumps, time comes back, and points by time are those of the clock.

Compared with a list of what the clock showed at each event.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import hypothesis.strategies as st
from hypothesis import given

from mulligan.journal.kv_transaction import MAX_AHEAD
from mulligan.testing.clock import START, FakeClock
from mulligan.testing.stores import open_store

MINUTE = timedelta(minutes=1)

JUMPS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(60, 5_000_000), st.integers(0, 3)), max_size=6
)
"""How many events before the clock jumps ahead, by how many minutes, and how many meanwhile."""


@given(JUMPS, st.data())
def test_time_comes_back_and_points_are_found_by_it(
    jumps: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    clock = FakeClock(tick=0.0)
    with open_store("memory:", clock=clock) as store:
        session = store.session("run")
        shown = [clock.now()]
        is_right = [True]

        def write(right: bool) -> None:
            clock.advance(10)
            shown.append(clock.now())
            is_right.append(right)
            session.state.set("count", len(shown))

        for before, minutes, meanwhile in jumps:
            for _ in range(before):
                write(True)
            clock.set(clock.now() + minutes * MINUTE)
            for _ in range(meanwhile):
                write(False)
            clock.set(clock.now() - minutes * MINUTE)
        write(True)
        write(True)
        times = [event.time for event in session.events()]
        assert times == shown  # no event keeps the time of one before it
        assert times[-1] == clock.now()
        for moment in data.draw(st.lists(st.sampled_from(right(shown, is_right)), max_size=4)):
            found = session.point(moment + timedelta(seconds=1)).seq
            assert found == last_right(shown, is_right, moment)
        assert session.point("5s ago").seq == len(shown) - 1
        assert store.verify().ok


def right(shown: list[datetime], is_right: list[bool]) -> list[datetime]:
    return [moment for moment, good in zip(shown, is_right, strict=True) if good]


def last_right(shown: list[datetime], is_right: list[bool], moment: datetime) -> int:
    """Return the seq of the event that was the newest when a right clock showed the moment."""
    pairs = enumerate(zip(shown, is_right, strict=True), 1)
    return max(seq for seq, (time, good) in pairs if good and time <= moment)


@given(st.lists(st.integers(-59, 59), min_size=1, max_size=20))
def test_small_corrections_never_turn_time_back(seconds: list[int]) -> None:
    clock = FakeClock()
    with open_store("memory:", clock=clock) as store:
        session = store.session("run")
        for second in seconds:
            clock.set(START + timedelta(seconds=second))
            session.state.set("count", second)
        times = [event.time for event in session.events()]
        if max(seconds) - min(seconds) <= MAX_AHEAD.total_seconds() and min(seconds) >= -1:
            assert times == sorted(times)
        ahead = [
            time - (START + timedelta(seconds=s))
            for time, s in zip(times[1:], seconds, strict=True)
        ]
        assert max(ahead) <= MAX_AHEAD
        assert store.verify().ok


def test_a_fork_made_after_the_clock_came_back_has_right_times() -> None:
    clock = FakeClock()
    with open_store("memory:", clock=clock) as store:
        session = store.session("run")
        session.state.set("a", 1)
        clock.set(START + timedelta(days=4000))
        session.state.set("a", 2)
        clock.set(START + timedelta(hours=1))
        fork = session.fork(session.head, "fork")
        clock.advance(60)
        fork.state.set("a", 3)
        clock.advance(60)
        assert fork.point("90s ago").seq == fork.head.seq - 1
        assert [event.time.year for event in fork.events()] == [2026, 2026, 2036, 2026, 2026]
        assert store.verify().ok
