"""One durable act: how long until a message, a checkpoint or a step survives a power cut."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import harness
from benchmarks.contenders import (
    Contender,
    DbosStep,
    LangGraphSaver,
    MulliganAppend,
    MulliganCheckpoint,
    SqliteWal,
)
from benchmarks.harness import Result, Row, Setting, Table, Target
from benchmarks.messages import text_messages
from benchmarks.race import Races, Run, beside_floor, seconds_of
from benchmarks.timing import MILLISECONDS, median_ms, percentile, ratio

TARGETS = (
    Target("append/floor", "a durable event beside the floor", at_most=1.5, unit="×"),
    Target("dbos/append", "a DBOS step beside a durable event", at_least=4.0, unit="×"),
)

TOGETHER: tuple[type[Contender], ...] = (MulliganAppend, MulliganCheckpoint, SqliteWal, DbosStep)
APART: tuple[type[Contender], ...] = (LangGraphSaver,)
"""Writes so much that it would slow its neighbours, so it races the floor alone."""


def run(setting: Setting) -> Result:
    """Let everybody write the same messages."""
    messages = text_messages(setting.choose(full=800, quick=200))
    races = Races()
    together = races.hold(TOGETHER, setting.directory / "together", messages)
    apart = races.hold(APART, setting.directory / "apart", messages)
    rows = _rows([*together, *apart[1:]], races.missing)
    return Result([Table("one durable act", rows, _notes(len(messages)))], _measures(races))


def _rows(runs: Sequence[Run], missing: Sequence[str]) -> list[Row]:
    rows: list[Row] = [
        {
            "contender": run.name,
            "median ms": median_ms(run.seconds),
            "p95 ms": percentile(run.seconds, 95) * MILLISECONDS,
            "× floor": beside_floor([run]),
        }
        for run in runs
    ]
    return rows + [{"contender": name, "median ms": "not installed"} for name in missing]


def _measures(races: Races) -> dict[str, float]:
    append = races.of(MulliganAppend)
    result = Result()
    result.measure("append/floor", beside_floor(append))
    result.measure("checkpoint/floor", beside_floor(races.of(MulliganCheckpoint)))
    result.measure("dbos/append", ratio(seconds_of(races.of(DbosStep)), seconds_of(append)))
    return result.measures


def _notes(count: int) -> list[str]:
    return [
        f"{count} messages of 1 KB each, in turns",
        "the LangGraph saver stores all messages so far with each checkpoint, so it races the"
        " floor alone",
    ]


BENCHMARK = harness.Benchmark("append", "A durable append", TARGETS, run)

if __name__ == "__main__":
    raise SystemExit(harness.main(BENCHMARK))
