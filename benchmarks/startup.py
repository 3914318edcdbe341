"""The command line, from nothing to its help."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

from benchmarks import harness
from benchmarks.harness import Result, Row, Setting, Table, Target
from benchmarks.timing import (
    MILLISECONDS,
    beside_python,
    median_ms,
    percentile,
    ratio,
    timed,
)

TARGETS = (Target("help ms", "mulligan --help", at_most=150, unit=" ms"),)

FLOOR = "python -c pass (the floor)"
OURS = "mulligan --help"


def run(setting: Setting) -> Result:
    """Start every command in turns, after one start that nobody counts."""
    commands = _commands()
    present = {name: command for name, command in commands.items() if command}
    seconds: dict[str, list[float]] = {name: [] for name in present}
    for turn in range(setting.choose(full=31, quick=11)):
        for name, command in present.items():
            elapsed = _start(command)
            if turn:
                seconds[name].append(elapsed)
    result = Result([Table("wall time of a whole process", _rows(commands, seconds))])
    result.measure("help ms", median_ms(seconds.get(OURS)))
    return result


def _commands() -> dict[str, list[str] | None]:
    return {
        FLOOR: [sys.executable, "-c", "pass"],
        OURS: _help("mulligan"),
        "dbos --help": _help("dbos"),
    }


def _help(command: str) -> list[str] | None:
    path = beside_python(command)
    return [path, "--help"] if path else None


def _start(command: Sequence[str]) -> float:
    quiet = subprocess.DEVNULL
    return timed(subprocess.run, command, check=True, stdout=quiet, stdin=quiet)[0]


def _rows(
    commands: Mapping[str, Sequence[str] | None], seconds: Mapping[str, Sequence[float]]
) -> list[Row]:
    floor = median_ms(seconds[FLOOR])
    return [_row(name, seconds.get(name), floor) for name in commands]


def _row(name: str, seconds: Sequence[float] | None, floor: float | None) -> Row:
    if not seconds:
        return {"command": name, "median ms": "not installed"}
    return {
        "command": name,
        "median ms": median_ms(seconds),
        "p95 ms": percentile(seconds, 95) * MILLISECONDS,
        "× floor": ratio(median_ms(seconds), floor),
    }


BENCHMARK = harness.Benchmark("startup", "Starting the command line", TARGETS, run)

if __name__ == "__main__":
    raise SystemExit(harness.main(BENCHMARK))
