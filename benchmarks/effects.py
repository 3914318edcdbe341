"""Durable steps and effects: what one costs, what its replay costs, and how soon a fork goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import mulligan
from benchmarks import harness
from benchmarks.contenders import (
    Contender,
    DbosStep,
    MulliganEffect,
    MulliganRecordedStep,
)
from benchmarks.harness import Result, Row, Setting, Table, Target
from benchmarks.messages import text_messages
from benchmarks.race import Races, Run, beside_floor, seconds_of
from benchmarks.timing import MILLISECONDS, median, median_ms, percentile, ratio

TARGETS = (
    Target("step/floor", "a recorded step beside the floor", at_most=2.5, unit="×"),
    Target("dbos/step", "a DBOS step beside a recorded step", at_least=3.0, unit="×"),
    Target("replay", "the replay of a completed step", at_most=0.05, unit="ms"),
    Target("fork", "500 steps, forked at the last, until the first new one", at_most=50, unit="ms"),
)

TOGETHER: tuple[type[Contender], ...] = (MulliganRecordedStep, MulliganEffect, DbosStep)
STEPS = 500


def run(setting: Setting) -> Result:
    """Let everybody record the same messages; then replay, and fork."""
    messages = text_messages(setting.choose(full=800, quick=200))
    races = Races()
    runs = races.hold(TOGETHER, setting.directory / "together", messages)
    again = _Again(setting.directory / "again")
    replay = again.replay_ms()
    forks = [again.fork_ms(number) for number in range(setting.choose(full=9, quick=3))]
    rows = [*_rows(runs, races.missing), *_again_rows(replay, forks)]
    result = Result([Table("steps and effects", rows, _notes(len(messages)))])
    step = races.of(MulliganRecordedStep)
    result.measure("step/floor", beside_floor(step))
    result.measure("dbos/step", ratio(seconds_of(races.of(DbosStep)), seconds_of(step)))
    result.measure("replay", replay)
    result.measure("fork", median(forks))
    return result


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


def _again_rows(replay: float, forks: Sequence[float]) -> list[Row]:
    return [
        {"contender": "replay of a completed step", "median ms": replay},
        {
            "contender": f"fork of {STEPS} steps, until the first new one",
            "median ms": median(forks),
        },
    ]


class _Again:
    """A session with completed steps that a program runs again."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._store = mulligan.open(directory)
        self._session = self._store.session("run")
        self._program(self._session)

    def _program(self, session: mulligan.Session) -> None:
        for number in range(STEPS):
            session.step("think", _thought, number)

    def replay_ms(self) -> float:
        """Return the processor time of one replayed step: the machine is shared."""
        session = self._store.session("run")
        session.step("think", _thought, 0)
        started = time.process_time()
        for number in range(1, STEPS):
            session.step("think", _thought, number)
        return (time.process_time() - started) * MILLISECONDS / (STEPS - 1)

    def fork_ms(self, number: int) -> float:
        """Return the processor time of a fork at the last step, until its first new step."""
        started = time.process_time()
        fork = self._session.fork(self._session.head, f"fork-{number}")
        self._program(fork)
        fork.step("new", _thought, number)
        return (time.process_time() - started) * MILLISECONDS


def _thought(number: int) -> dict[str, object]:
    return {"number": number, "text": "x" * 200}


def _notes(count: int) -> list[str]:
    return [
        f"{count} results of 1 KB each, in turns; an effect is two transactions",
        "replay and fork are processor time: the machine is shared; a fork is all of it: the fork,"
        " 500 replayed steps and a new one; two synced commits come on top",
    ]


BENCHMARK = harness.Benchmark("effects", "Durable steps and effects", TARGETS, run)

if __name__ == "__main__":
    raise SystemExit(harness.main(BENCHMARK))
