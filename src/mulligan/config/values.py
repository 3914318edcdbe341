"""Durations and sizes as people write them: 30s, 7d, 10GB."""

from __future__ import annotations

import re
from typing import Any

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII)

_BYTES = {"B": 1} | {
    f"{letter}{end}": base**power
    for power, letter in enumerate("KMGT", 1)
    for end, base in (("B", 1000), ("iB", 1024))
}
_SIZE = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_BYTES)})", re.ASCII)

MAX_BYTES = 1 << 62
"""No store is larger; larger numbers would not fit into every encoding."""


MAX_SECONDS = 36_500 * 86_400.0
"""A hundred years. A longer time before now may have no date."""


def duration(value: Any) -> float:
    """Return a duration in seconds: a number of them, or text such as 30s, 5m, 2h, 500ms."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"{value!r} is not a duration such as '30s', '5m' or '2h'")
        seconds = float(found[1]) * _SECONDS[found[2]]
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(f"a duration is more than 0 and at most 36500d, not {value!r}")
    return seconds


def duration_text(seconds: float) -> str:
    """Return a duration as ``duration`` reads it, in the largest unit that it is a multiple of."""
    for unit in ("d", "h", "m"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:.12g}s"


def size(value: Any) -> int:
    """Return a size in bytes: a number of them, or text such as 500MB, 10GB, 1.5TiB."""
    if isinstance(value, int) and not isinstance(value, bool):
        count = value
    else:
        found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"{value!r} is not a size such as '500MB' or '10GB'")
        number, unit = found[1], _BYTES[found[2]]
        count = int(number) * unit if number.isdecimal() else round(float(number) * unit)
    if not 0 < count <= MAX_BYTES:
        raise ValueError(f"a size is more than 0 bytes and at most 4 EiB, not {value!r}")
    return count
