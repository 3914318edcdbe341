"""The ladder: what to try next when bringing a session back has failed; no I/O and no clock.

Each failed attempt leads one rung up: try again with nothing lost, go back to the last good
checkpoint, to an older one, start clean with the task list kept, and at last stop and say so. An
attempt that worked leads back to the ground, and so does a resume by a person after the stop. A
cooldown between attempts and a limit per window keep a session that cannot run from wasting money.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

RETRY = "retry"
GOOD = "good"
OLDER = "older"
CLEAN = "clean"
STOP = "stop"
RUNGS = (RETRY, GOOD, OLDER, CLEAN, STOP)

BEGUN = "begun"
PREPARED = "prepared"
FAILED = "failed"
OK = "ok"

MAX_REMEMBERED_ATTEMPTS = 20
"""How many attempts are remembered."""


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One try to bring a session back.

    ``outcome`` is begun (what is to be restored is not restored yet), prepared (the agents can
    work), failed or ok. ``seq`` is where it went back to, None if nothing was lost; the rest is
    what it takes to finish an attempt that was interrupted itself.
    """

    at: datetime
    rung: str
    outcome: str
    seq: int | None = None
    session: str | None = None
    only: str | None = None
    reset: list[str] = []
    error: str | None = None


class LadderLimits(msgspec.Struct, frozen=True):
    """How often to try: a number of attempts within a window, and a cooldown between two."""

    attempts: int = 3
    window: float = 15 * 60.0
    cooldown: float = 60.0
    settled: float = 60.0
    """Seconds of work after which an attempt counts as a success."""


DEFAULT_LIMITS = LadderLimits()


class NextRung(msgspec.Struct, frozen=True):
    """What to do next, and after how many seconds."""

    rung: str
    wait: float
    failed: int
    """How many attempts failed since the ground."""


def next_rung(
    attempts: Sequence[Attempt], now: datetime, limits: LadderLimits = DEFAULT_LIMITS
) -> NextRung:
    """Return the next rung and how long to wait before it is tried; attempts are oldest first."""
    failed = climbed(attempts)
    rung = RUNGS[max(map(_above, failed), default=0)]
    wait = 0.0 if rung == STOP else _wait(failed, now, limits)
    return NextRung(rung, wait, len(failed))


def climbed(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts since the ground: since the last one that worked, or the last stop."""
    ground = [n for n, one in enumerate(attempts) if one.outcome == OK or one.rung == STOP]
    return list(attempts[ground[-1] + 1 if ground else 0 :])


def judged(
    attempts: Sequence[Attempt],
    lived: float,
    limits: LadderLimits = DEFAULT_LIMITS,
    *,
    progressed: bool = False,
) -> list[Attempt]:
    """Return the attempts with a verdict on the last one, when the session was interrupted again.

    It worked if the session ``lived`` for ``limits.settled`` seconds, or if it made progress.
    """
    if not attempts or attempts[-1].outcome in (OK, FAILED):
        return list(attempts)
    last = attempts[-1]
    worked = last.outcome == PREPARED and (progressed or lived >= limits.settled)
    return [*attempts[:-1], msgspec.structs.replace(last, outcome=OK if worked else FAILED)]


def remembered(attempts: Sequence[Attempt], attempt: Attempt) -> list[Attempt]:
    """Return the attempts with another one; those before the last success are the first to go."""
    return [*attempts, attempt][-MAX_REMEMBERED_ATTEMPTS:]


def _above(attempt: Attempt) -> int:
    """Return the number of the rung above an attempt's; above what a person asked for is good."""
    number = RUNGS.index(attempt.rung) if attempt.rung in RUNGS else 0
    return min(number + 1, len(RUNGS) - 1)


def _wait(failed: Sequence[Attempt], now: datetime, limits: LadderLimits) -> float:
    """Return how many seconds are left of the cooldown and of a window that is full."""
    if not failed:
        return 0.0
    wait = _left(failed[-1], now, limits.cooldown)
    if len(failed) >= limits.attempts > 0:
        wait = max(wait, _left(failed[-limits.attempts], now, limits.window))
    return wait


def _left(attempt: Attempt, now: datetime, seconds: float) -> float:
    # If the clock was put back, wait no longer than the full span.
    passed = max(0.0, (now - attempt.at).total_seconds())
    return max(0.0, seconds - passed)
