"""The ladder of recovery: bounded, in order, and never faster than it may be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mulligan.attempts import remembered
from mulligan.recovery.ladder import (
    RUNGS,
    Attempt,
    LadderLimits,
    climbed,
    judged,
    next_rung,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = st.builds(
    LadderLimits,
    attempts=st.integers(1, 5),
    window=st.floats(0, 5000),
    cooldown=st.floats(0, 500),
    settled=st.floats(0, 500),
)
OUTCOMES = st.sampled_from(["ok", "failed"])


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def run(limits: LadderLimits, outcomes: list[str], delays: list[float]) -> list[Attempt]:
    """Try again and again, each time as soon as the ladder lets us, plus some delay."""
    attempts: list[Attempt] = []
    now = 0.0
    for outcome, delay in zip(outcomes, delays, strict=True):
        step = next_rung(attempts, at(now), limits)
        if step.rung == "stop":
            break
        now += step.wait + delay
        assert next_rung(attempts, at(now + 0.001), limits).wait == 0
        attempts = remembered(attempts, Attempt(at(now), step.rung, outcome))
    return attempts


@st.composite
def histories(draw: st.DrawFn) -> tuple[LadderLimits, list[Attempt]]:
    limits = draw(LIMITS)
    outcomes = draw(st.lists(OUTCOMES, max_size=15))
    delays = draw(st.lists(st.floats(0, 300), min_size=len(outcomes), max_size=len(outcomes)))
    return limits, run(limits, outcomes, delays)


@given(histories())
def test_the_rungs_are_climbed_in_order_and_a_success_leads_back(
    history: tuple[LadderLimits, list[Attempt]],
) -> None:
    _, attempts = history
    height = 0
    for attempt in attempts:
        assert attempt.rung == RUNGS[height]
        height = 0 if attempt.outcome == "ok" else height + 1
        assert height < len(RUNGS)


@given(histories())
def test_never_more_attempts_than_the_window_and_the_cooldown_allow(
    history: tuple[LadderLimits, list[Attempt]],
) -> None:
    limits, attempts = history
    failed = climbed(attempts)
    for one, other in pairwise(failed):
        assert (other.at - one.at).total_seconds() >= limits.cooldown - 0.001
    for one, other in zip(failed, failed[limits.attempts :], strict=False):
        assert (other.at - one.at).total_seconds() >= limits.window - 0.001


@given(histories(), st.floats(-10_000, 10_000))
def test_the_wait_is_bounded_whatever_the_clock_does(
    history: tuple[LadderLimits, list[Attempt]], seconds: float
) -> None:
    limits, attempts = history
    last = attempts[-1].at if attempts else START
    step = next_rung(attempts, last + timedelta(seconds=seconds), limits)
    assert 0 <= step.wait <= max(limits.cooldown, limits.window)
    assert step.wait == 0 or step.rung != "stop"


@given(LIMITS, st.lists(st.floats(0, 300), min_size=6, max_size=6))
def test_it_ends(limits: LadderLimits, delays: list[float]) -> None:
    attempts = run(limits, ["failed"] * 6, delays)
    assert len(attempts) == len(RUNGS) - 1
    assert next_rung(attempts, at(10**7), limits).rung == "stop"


@given(histories(), st.floats(0, 1000))
def test_an_attempt_is_judged_by_how_long_the_session_lived_after_it(
    history: tuple[LadderLimits, list[Attempt]], lived: float
) -> None:
    limits, attempts = history
    latest = Attempt(at(10**6), "retry", "prepared")
    *before, last = judged([*attempts, latest], lived, limits)
    assert before == attempts
    assert (last.outcome == "ok") == (lived >= limits.settled)
