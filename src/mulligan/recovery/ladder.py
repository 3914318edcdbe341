"""The ladder: what to try next after a failed recovery; no I/O and no clock.

Each failed attempt climbs one rung: retry with nothing lost, go back to the last good checkpoint,
to an older one, start clean with only the task list, and finally stop and report it. A successful
attempt resets the ladder, and so does a resume by a person after the stop. A cooldown between
attempts and a limit per window keep a broken session from wasting money.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from mulligan.attempts import seconds_left

RETRY = "retry"
GOOD = "good"
OLDER = "older"
CLEAN = "clean"
STOP = "stop"
RUNGS = (RETRY, GOOD, OLDER, CLEAN, STOP)

STARTED = "begun"
PREPARED = "prepared"
FAILED = "failed"
OK = "ok"


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt to recover a session.

    ``outcome`` is ``STARTED`` (not everything is restored yet), ``PREPARED`` (the agents can work),
    ``FAILED`` or ``OK``. ``seq`` is the point it went back to, None if nothing was lost. The other
    fields are needed to finish an attempt that was itself interrupted.
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
    """How many attempts failed since the last reset."""


def next_rung(
    attempts: Sequence[Attempt], now: datetime, limits: LadderLimits = DEFAULT_LIMITS
) -> NextRung:
    """Return the next rung and how long to wait before it is tried; attempts are oldest first."""
    failed = climbed(attempts)
    rung = RUNGS[max(map(_above, failed), default=0)]
    wait = 0.0 if rung == STOP else _wait(failed, now, limits)
    return NextRung(rung, wait, len(failed))


def climbed(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts since the last reset: a success, or a stop."""
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


def _above(attempt: Attempt) -> int:
    """Return the number of the next rung; after a point that a person chose, it is ``good``."""
    number = RUNGS.index(attempt.rung) if attempt.rung in RUNGS else 0
    return min(number + 1, len(RUNGS) - 1)


def _wait(failed: Sequence[Attempt], now: datetime, limits: LadderLimits) -> float:
    """Return how many seconds are left of the cooldown, or of a full window."""
    if not failed:
        return 0.0
    wait = seconds_left(failed[-1].at, now, limits.cooldown)
    if len(failed) >= limits.attempts > 0:
        wait = max(wait, seconds_left(failed[-limits.attempts].at, now, limits.window))
    return wait
