"""The ladder of responses to drift: which one an alarm gets; no I/O and no clock.

Alarms climb from rung to rung while they keep coming: note, checkpoint, refresh, rollback, isolate.
Each rung is tried as often as the settings say, with a cooldown between two responses. The ladder
starts at the ground again once a response has worked: a task was completed after it, or no alarm
came for long enough.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec

from mulligan.attempts import remembered, seconds_left
from mulligan.drift.detector import Alarm
from mulligan.drift.settings import LadderSettings

NOTE = "note"
CHECKPOINT = "checkpoint"
REFRESH = "refresh"
ROLLBACK = "rollback"
ISOLATE = "isolate"
RUNGS = (NOTE, CHECKPOINT, REFRESH, ROLLBACK, ISOLATE)

RESTARTS = (REFRESH, ROLLBACK)
"""The rungs after which the agent is started again."""

MAX_REMEMBERED = 64
"""How many responses are remembered; the settings allow fewer."""


class Response(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an alarm led to: ``rung``, and ``attempt`` counts how often that was tried in a row.

    ``since`` is the first event of the evidence, before which all was well as far as known.
    ``to`` is where a rollback went back to. ``wait`` is what was left of the cooldown, if that kept
    it from being more than a note.
    """

    at: datetime
    rung: str
    signal: str
    why: str
    seq: int
    since: int
    attempt: int = 0
    wait: float = 0.0
    to: int | None = None


def respond(
    earlier: Sequence[Response],
    alarm: Alarm,
    now: datetime,
    settings: LadderSettings,
    without: Collection[str] = (),
) -> Response:
    """Return the response to an alarm, given those since the ground, oldest first.

    ``without`` names rungs that cannot be taken now.
    """
    first = min(alarm.evidence, default=alarm.seq)
    made = Response(now, NOTE, alarm.signal, alarm.why, alarm.seq, first)
    if not alarm.acts:
        return made  # a warning is noted, and climbs nowhere
    rung = _next(earlier, settings, without)
    if rung is None:
        return made
    # What comes during the cooldown is noted only: the last response needs time to take effect.
    if (wait := _cooldown(earlier, now, settings)) > 0:
        return msgspec.structs.replace(made, wait=wait)
    attempt = 1 + sum(one.rung == rung for one in earlier)
    return msgspec.structs.replace(made, rung=rung, attempt=attempt)


def climbed(
    responses: Sequence[Response], now: datetime, settings: LadderSettings, *, progressed: bool
) -> list[Response]:
    """Return the responses since the ground; none if the last one has worked."""
    counted = [one for one in responses if one.attempt]
    if not counted or progressed:
        return []
    return counted if seconds_left(counted[-1].at, now, settings.settled) > 0 else []


def with_response(earlier: Sequence[Response], made: Response) -> list[Response]:
    """Return the responses with another one, if it counts as an attempt."""
    return remembered(earlier, made, MAX_REMEMBERED) if made.attempt else list(earlier)


def _next(
    earlier: Sequence[Response], settings: LadderSettings, without: Collection[str]
) -> str | None:
    """Return the lowest rung from the last one on that may be tried once more."""
    last = RUNGS.index(earlier[-1].rung) if earlier else 0
    for rung in RUNGS[last:]:
        tried = sum(one.rung == rung for one in earlier)
        if rung not in without and tried < getattr(settings, rung):
            return rung
    return None


def _cooldown(earlier: Sequence[Response], now: datetime, settings: LadderSettings) -> float:
    acted = [one for one in earlier if one.rung not in (NOTE, CHECKPOINT)]
    return seconds_left(acted[-1].at, now, settings.cooldown) if acted else 0.0
