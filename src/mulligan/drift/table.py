"""The table ``[drift]`` of a TOML file, turned into settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from mulligan import layout
from mulligan.config.tables import Count, Duration, Place, TableReader, described
from mulligan.drift.registry import names
from mulligan.drift.settings import TABLE, DriftSettings, LadderSettings

_Times = Annotated[int, described("a whole number from 2 to 1000", ge=2, le=1000)]
_Share = Annotated[float, described("a number above 0, up to 1", gt=0, le=1)]
_Factor = Annotated[float, described("a number above 0", gt=0, le=1000)]
_Names = Annotated[tuple[str, ...], described("a list of names of signals")]
_Window = Annotated[int, described("a whole number from 10 to 200", ge=10, le=200)]


_Attempts = Annotated[int, described("a whole number from 0 to 10", ge=0, le=10)]


class _LadderTable(msgspec.Struct):
    """The keys of ``[drift.ladder]``."""

    note: _Attempts
    checkpoint: _Attempts
    refresh: _Attempts
    rollback: _Attempts
    isolate: _Attempts
    cooldown: Duration
    settled: Duration


class _DriftTable(msgspec.Struct):
    """The keys of ``[drift]``."""

    enabled: bool
    off: _Names
    baseline: Count
    cycles: _Times
    age: Duration
    error_window: _Window
    error_warning: _Share
    error_rate: _Share
    same_result: _Times
    same_failure: _Times
    same_message: _Times
    alternation: Annotated[int, described("a whole number from 4 to 1000", ge=4, le=1000)]
    period_repeats: _Times
    stall_cycles: _Times
    stall_time: Duration
    slower: _Factor
    context_growth: Annotated[float, described("a number above 1", gt=1, le=1000)]
    backwards: _Times
    goal: str
    goal_distance: _Share
    ladder: _LadderTable


def parse_drift(table: Any, reader: TableReader, place: Place = (TABLE,)) -> DriftSettings:
    """Return the settings of a table; errors are the reader's, with file, line and key."""
    fields = reader.fields(table, place, _DriftTable)
    ladder = LadderSettings(**fields.pop("ladder", {}))
    for name in fields.get("off", ()):
        if name not in names():
            known = ", ".join(names())
            raise reader.error((*place, "off"), f"there is no signal {name!r}; there are {known}")
    return DriftSettings(ladder=ladder, **fields)


def read_drift(directory: Path | None) -> DriftSettings:
    """Return the settings in a store's ``config.toml``; raises ``InvalidConfig``."""
    config = None if directory is None else layout.read_config(directory)
    return DriftSettings() if config is None else parse_drift(config.table(TABLE), config.reader)
