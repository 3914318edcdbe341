"""Checks of the store by itself: when, how much, and how fast.

It is the table ``[verify]`` of a store's ``config.toml`` or of a workflow file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from mulligan import layout
from mulligan.clock import Clock
from mulligan.config.tables import Place, TableReader, described
from mulligan.config.values import duration, size

TABLE = "verify"
DAY = 86_400.0

SAMPLE = 0.05
"""The part of the stored bytes that is read each time, unless told otherwise."""

RATE = 50_000_000
"""The bytes that are read per second: a small part of what any disk can do."""

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%", re.ASCII)


def fraction(value: Any) -> float:
    """Return a part of the whole, from 0 to 1: text such as 5%."""
    found = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or not 0 < float(found[1]) <= 100:
        raise ValueError(f"{value!r} is not a part such as '5%', more than 0% and at most 100%")
    return float(found[1]) / 100


def fraction_text(value: float) -> str:
    """Return a part of the whole as ``fraction`` reads it."""
    return f"{value * 100:.10g}%"


def _every(value: Any) -> float | None:
    return None if value == 0 else duration(value)


class VerifySettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a store is checked by itself, which part of it, and how fast.

    ``every`` is None for never. Each check reads another random part.
    """

    every: float | None = DAY
    sample: float = SAMPLE
    rate: int = RATE


class _Table(msgspec.Struct):
    """The keys of ``[verify]``."""

    every: Annotated[str | int | float, described("a duration such as '12h' or '7d', or 0", _every)]
    sample: Annotated[str, described("a part such as '5%'", fraction)]
    rate: Annotated[str | int, described("a size such as '50MB', per second", size)]


def parse_verify(table: Any, reader: TableReader, place: Place = (TABLE,)) -> VerifySettings:
    """Return the settings of a table; errors are the reader's, with file, line and key."""
    return VerifySettings(**reader.fields(table, place, _Table))


def read_verify(directory: Path) -> VerifySettings:
    """Return the settings in a store's ``config.toml``; raises ``InvalidConfig``."""
    config = layout.read_config(directory)
    return VerifySettings() if config is None else parse_verify(config.table(TABLE), config.reader)


def verify_command(settings: VerifySettings, store: str) -> list[str]:
    """Return what follows ``mulligan`` on the command line of a check in the background."""
    sample, rate = fraction_text(settings.sample), f"{settings.rate}B"
    return [TABLE, "--background", "--quiet", "--sample", sample, "--rate", rate, "--store", store]


class Pace:
    """Waits after reads, so that no more than ``rate`` bytes are read per second."""

    def __init__(self, rate: int, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._began = clock.monotonic()
        self._read = 0

    def __call__(self, count: int) -> None:
        """Count bytes that were just read, and wait until they may have been."""
        self._read += count
        ahead = self._read / self._rate - (self._clock.monotonic() - self._began)
        if ahead > 0:
            self._clock.sleep(ahead)
