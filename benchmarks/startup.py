"""The command line as it is felt: whole processes, from their start to their end.

On a busy machine the wall time says more about the others than about us, so the processor time of
each process (user and system) stands beside it. Targets are about the wall time of a quiet machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter

import mulligan
from benchmarks import harness
from benchmarks.harness import Result, Row, Setting, Table, Target
from benchmarks.timing import MILLISECONDS, Spent, beside_python, median, percentile, ratio

CHECKPOINTS = 1000
VIEWS = ("status", "log", "show", "tasks")
FILES = {2_000: 200, 20_000: 300, 100_000: 600}
"""How many files a workspace has, and the target in milliseconds for a checkpoint of it."""

FLOOR = "python -c pass (the floor)"
"""Measured beside every group of commands: it shows how quick the machine was at that moment."""
_FLOOR = [sys.executable, "-c", "pass"]
HELP = "mulligan --help"

TARGETS = (
    Target("--help ms", HELP, at_most=80, unit=" ms"),
    *(
        Target(f"{view} ms", f"{view} with 1,000 checkpoints", at_most=150, unit=" ms")
        for view in VIEWS
    ),
    *(
        Target(
            f"checkpoint {files} ms",
            f"checkpoint after a step in {files:,} files, a fresh process",
            at_most=limit,
            unit=" ms",
            full_only=files > 2_000,
        )
        for files, limit in FILES.items()
    ),
)

Command = Sequence[str]


def run(setting: Setting) -> Result:
    """Measure starts, then looks at a long timeline, then checkpoints of larger workspaces."""
    rounds = setting.choose(full=31, quick=11)
    commands = {
        FLOOR: _FLOOR,
        HELP: _command("mulligan", "--help"),
        "dbos --help": _command("dbos", "--help"),
    }
    result = Result()
    starts = _in_turns(commands, rounds, setting.directory)
    result.tables.append(Table("wall and processor time of a whole process", _rows(starts)))
    result.measure("--help ms", _wall_ms(starts[HELP]))
    _look(setting, result)
    _checkpoint(setting, result)
    return result


def _look(setting: Setting, result: Result) -> None:
    project = setting.directory / "timeline"
    _make_timeline(project)
    commands = {FLOOR: _FLOOR, **{view: _command("mulligan", view) for view in VIEWS}}
    spent = _in_turns(commands, setting.choose(full=15, quick=7), project)
    result.tables.append(Table(f"looking at {CHECKPOINTS:,} checkpoints", _rows(spent)))
    for view in VIEWS:
        result.measure(f"{view} ms", _wall_ms(spent[view]))


def _checkpoint(setting: Setting, result: Result) -> None:
    spent: dict[str, list[Spent]] = {}
    for files in FILES if not setting.quick else [min(FILES)]:
        project = setting.directory / f"files-{files}"
        step = _make_workspace(project, files)
        name = f"checkpoint in {files:,} files"
        command = {name: _command("mulligan", "checkpoint")}
        rounds = setting.choose(full=11, quick=5)
        spent |= _in_turns({FLOOR: _FLOOR}, rounds, project)
        spent |= _in_turns(command, rounds, project, step)
        result.measure(f"checkpoint {files} ms", _wall_ms(spent[name]))
    note = "each after a step: three files edited, one added, one deleted"
    result.tables.append(Table("a checkpoint by a fresh process", _rows(spent), [note]))


def _make_timeline(project: Path) -> None:
    """Make a store with tasks, messages and checkpoints, as a long run of an agent leaves it."""
    project.mkdir()
    notes = project / "notes.md"
    with mulligan.open(project) as store:
        session = store.session("main", workspace=project)
        for number in range(20):
            session.tasks.add(f"task {number}")
        for number in range(CHECKPOINTS):
            notes.write_text(f"step {number}\n")
            session.state.append("conversation", {"role": "assistant", "content": "done " * 40})
            session.checkpoint("routine", note=f"step {number}")


def _make_workspace(project: Path, count: int) -> Callable[[int], None]:
    """Make a project of small files with one checkpoint; return what takes a step in it."""
    files = [project / f"{i // 400:04}" / f"{i // 20 % 20:02}" / f"{i}.py" for i in range(count)]
    for number, file in enumerate(files):
        if number % 20 == 0:
            file.parent.mkdir(parents=True)
        file.write_text(f"x = {number}\n" * (number % 50 + 3))
    for command in (["init"], ["checkpoint"]):
        _spent(_command("mulligan", *command), project)

    def step(turn: int) -> None:
        for file in (files[turn], files[turn + 500], files[turn + 1000]):
            file.write_text(f"edited = {turn}\n" * 20)
        (project / f"added-{turn}").write_text("new\n")
        files.pop().unlink()

    return step


def _command(program: str, *arguments: str) -> list[str]:
    path = beside_python(program)
    return [path, *arguments] if path else []


def _in_turns(
    commands: Mapping[str, Command],
    rounds: int,
    directory: Path,
    before: Callable[[int], None] = lambda _: None,
) -> dict[str, list[Spent]]:
    """Start every command in turns; the first turn fills caches and does not count."""
    found: dict[str, list[Spent]] = {name: [] for name in commands}
    for turn in range(rounds):
        for name, command in commands.items():
            before(turn)
            if command:
                spent = _spent(command, directory)
                found[name] += [spent] if turn else []
    return found


def _spent(command: Command, directory: Path) -> Spent:
    """Return what a process takes, with those it waits for."""
    quiet = subprocess.DEVNULL
    start = perf_counter()
    process = subprocess.Popen(command, cwd=directory, stdin=quiet, stdout=quiet, stderr=quiet)
    _, status, usage = os.wait4(process.pid, 0)
    wall = perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Spent(wall, usage.ru_utime + usage.ru_stime)


def _wall_ms(spent: Sequence[Spent]) -> float | None:
    return median([one.wall for one in spent]) * MILLISECONDS if spent else None


def _rows(found: Mapping[str, Sequence[Spent]]) -> list[Row]:
    floor = _wall_ms(found.get(FLOOR, ()))
    return [_row(name, spent, floor) for name, spent in found.items()]


def _row(name: str, spent: Sequence[Spent], floor: float | None) -> Row:
    if not spent:
        return {"command": name, "median ms": "not installed"}
    wall = _wall_ms(spent)
    row: dict[str, harness.Cell] = {
        "command": name,
        "median ms": wall,
        "p95 ms": percentile([one.wall for one in spent], 95) * MILLISECONDS,
        "processor ms": median([one.cpu for one in spent]) * MILLISECONDS,
    }
    return {**row, "× floor": ratio(wall, floor)} if floor else row


BENCHMARK = harness.Benchmark("startup", "Felt speed of the command line", TARGETS, run)

if __name__ == "__main__":
    raise SystemExit(harness.main(BENCHMARK))
