"""Times as people write them: ISO 8601, ``10m ago``, ``36 minutes ago``, ``11:26``."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_UNITS = "seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w"
_AMOUNT = rf"(\d+(?:\.\d+)?)\s*({_UNITS})"
_AGO = rf"(?:{_AMOUNT}[\s,]*)+\bago"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_CLOCK = r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?"


def parse_ago(text: str, now: datetime) -> datetime | None:
    """Return the time that ``10m ago`` or ``1 hour 30 minutes ago`` means; None if it is neither.

    A time before the calendar begins is its first moment.
    """
    if not re.fullmatch(_AGO, text, re.IGNORECASE):
        return None
    amounts = re.findall(_AMOUNT, text, re.IGNORECASE)
    seconds = sum(float(number) * _SECONDS[unit[0].lower()] for number, unit in amounts)
    try:
        return now - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def parse_iso(text: str) -> datetime | None:
    """Return the time that a date or a date with a time means; without an offset it is local."""
    # A shorter form, such as 20260101, may be the prefix of an id.
    if len(text) < len("2026-01-01"):
        return None
    try:
        return aware(datetime.fromisoformat(text))
    except ValueError:
        return None


def parse_clock(text: str, now: datetime) -> datetime | None:
    """Return the end of the last local ``11:26`` or ``11:26:05`` that has started.

    The whole minute or second counts, because times are shown without the fraction: what is
    listed as 11:26:05 is found by that time.
    """
    match = re.fullmatch(_CLOCK, text)
    if match is None:
        return None
    hour, minute, second = (int(part or 0) for part in match.groups())
    length = timedelta(seconds=1) if match[3] else timedelta(minutes=1)
    # Without an offset until the day is chosen: then a change of summer time is accounted for.
    naive = now.astimezone().replace(tzinfo=None)
    begin = naive.replace(hour=hour, minute=minute, second=second, microsecond=0)
    if begin > naive:
        begin -= timedelta(days=1)
    return aware(begin + length - timedelta(microseconds=1))


def aware(moment: datetime) -> datetime:
    """Return a time with an offset; the ends of the calendar have no local time."""
    try:
        return moment.astimezone()
    except (OverflowError, ValueError):
        return moment.replace(tzinfo=UTC)


def shown(moment: datetime) -> str:
    """Return a time for a message: local, with its offset, as it can be given as a point."""
    return aware(moment).isoformat(" ", "seconds")
