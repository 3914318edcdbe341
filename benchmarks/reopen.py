"""A store with 100,000 events: open it, look anywhere in it, fork it.

Every figure is taken in a fresh process, several times; the files are in the page cache.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.archives import ARCHIVES, MulliganArchive, Probe
from benchmarks.harness import Result, Row, Setting, Table, Target
from benchmarks.history import Change, Document, apply, changes, said
from benchmarks.timing import MEGABYTE, MILLISECONDS, disk_usage, median, timed

TARGETS = (
    Target("latest ms", "open and read the latest state", at_most=150, unit=" ms"),
    Target("worst point ms", "the state at the slowest Point", at_most=100, unit=" ms"),
    Target("worst fork ms", "a fork at the slowest Point", at_most=5, unit=" ms"),
    Target("peak MB", "the peak memory of reopening", at_most=150, unit=" MB"),
)

Probes = Mapping[str, Sequence[Probe]]


def run(setting: Setting) -> Result:
    """Write the past once, then reopen it again and again."""
    count = setting.choose(full=100_000, quick=10_000)
    history = list(changes(count))
    written = _write_all(setting.directory, history)
    points = _points(count, setting.choose(full=40, quick=10))
    probes = _probe_all(setting.directory, written, points, setting.choose(full=5, quick=3))
    _agree(probes, history)
    rows = [_row(name, setting.directory, written, probes.get(name)) for name in ARCHIVES]
    table = Table(f"{count:,} events", rows, _notes(len(points)))
    return Result([table], _measures(probes.get(MulliganArchive.__name__)))


def _write_all(directory: Path, history: Sequence[Change]) -> dict[str, float]:
    """The seconds each archive needed to be written; those not installed are left out."""
    written: dict[str, float] = {}
    for name, archive in ARCHIVES.items():
        place = directory / name
        place.mkdir()
        try:
            written[name], _ = timed(archive.write, place, history)
        except ModuleNotFoundError as error:
            if error.name not in archive.modules:
                raise
    return written


def _points(count: int, wanted: int) -> list[int]:
    """The ends of the past and places between, in no order."""
    inner = random.Random(7).sample(range(2, count), wanted - 2)
    return [count, 2, *inner]


def _probe_all(
    directory: Path, names: Sequence[str] | Mapping[str, float], points: Sequence[int], rounds: int
) -> Probes:
    probes: dict[str, list[Probe]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            probes[name].append(_probe(name, directory / name, points))
    return probes


def _probe(name: str, directory: Path, points: Sequence[int]) -> Probe:
    command = [sys.executable, "-m", "benchmarks.archives", name, str(directory)]
    arguments = [str(point) for point in points]
    done = subprocess.run([*command, *arguments], check=True, stdout=subprocess.PIPE)
    return Probe.from_json(done.stdout)


def _agree(probes: Probes, history: Sequence[Change]) -> None:
    """A fast wrong answer is no answer: everybody must have read every message."""
    document: Document = {}
    for change in history:
        apply(document, change)
    for name, found in probes.items():
        if {probe.messages for probe in found} != {said(document)}:
            raise AssertionError(f"{name} did not read back the messages it was given")


def _row(
    name: str, directory: Path, written: Mapping[str, float], probes: Sequence[Probe] | None
) -> Row:
    if not probes:
        return {"contender": ARCHIVES[name].name, "open + latest ms": "not installed"}
    return {
        "contender": ARCHIVES[name].name,
        "import ms": _ms(probes, lambda p: p.imported),
        "open + latest ms": _ms(probes, lambda p: p.latest),
        "median Point ms": _over_points(probes, lambda p: p.points, median),
        "worst Point ms": _over_points(probes, lambda p: p.points, max),
        "median fork ms": _over_points(probes, lambda p: p.forks, median),
        "worst fork ms": _over_points(probes, lambda p: p.forks, max),
        "peak MB": _peak(probes),
        "written s": written[name],
        "store MB": disk_usage(directory / name) / MEGABYTE,
    }


def _measures(probes: Sequence[Probe] | None) -> dict[str, float]:
    result = Result()
    if probes:
        result.measure("import ms", _ms(probes, lambda p: p.imported))
        result.measure("latest ms", _ms(probes, lambda p: p.latest))
        result.measure("worst point ms", _over_points(probes, lambda p: p.points, max))
        result.measure("worst fork ms", _over_points(probes, lambda p: p.forks, max))
        result.measure("peak MB", _peak(probes))
    return result.measures


def _ms(probes: Sequence[Probe], seconds: Callable[[Probe], float]) -> float:
    return median([seconds(probe) for probe in probes]) * MILLISECONDS


def _over_points(
    probes: Sequence[Probe],
    seconds: Callable[[Probe], Mapping[str, float]],
    choose: Callable[[Sequence[float]], float],
) -> float | None:
    """The median of each point over the processes, then one of these medians."""
    medians = [median([seconds(p)[point] for p in probes]) for point in seconds(probes[0])]
    return choose(medians) * MILLISECONDS if medians else None


def _peak(probes: Sequence[Probe]) -> float:
    return median([float(probe.peak) for probe in probes]) / MEGABYTE


def _notes(points: int) -> list[str]:
    return [
        f"fresh processes; {points} points, each the median over the processes; import apart",
        "SQLite has no keyframes: each state is folded from the first row",
        "LangGraph holds its last checkpoint only; one for every event would be about a terabyte",
    ]


BENCHMARK = harness.Benchmark("reopen", "Reopening 100,000 events", TARGETS, run)

if __name__ == "__main__":
    raise SystemExit(harness.main(BENCHMARK))
