"""Measuring: seconds, medians, sizes on disk, peak memory."""

from __future__ import annotations

import os
import resource
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MILLISECONDS = 1000.0
MEGABYTE = 1_000_000.0


class Spent(NamedTuple):
    """Seconds on the clock, and seconds of processors."""

    wall: float
    cpu: float


def timed(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[float, T]:
    """The seconds a call takes, and what it returns."""
    start = perf_counter()
    value = call(*args, **kwargs)
    return perf_counter() - start, value


def timed_with_cpu(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Spent:
    """The seconds a call takes, on the clock and of processors, child processes included.

    A busy machine stretches the first; the second shows what the work itself is.
    """
    before = _cpu_seconds()
    seconds, _ = timed(call, *args, **kwargs)
    return Spent(seconds, _cpu_seconds() - before)


def _cpu_seconds() -> float:
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def timed_each(call: Callable[[T], object], values: Iterable[T]) -> list[float]:
    """The seconds a call takes on each value in turn."""
    return [timed(call, value)[0] for value in values]


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that ``percent`` of the others do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def median_ms(seconds: Sequence[float] | None) -> float | None:
    """The median in milliseconds, if anything was measured."""
    return median(seconds) * MILLISECONDS if seconds else None


def ratio(value: float | None, base: float | None) -> float | None:
    """How many times ``base`` a value is, if both were measured."""
    return value / base if value is not None and base else None


def disk_usage(directory: Path) -> int:
    """The bytes a directory takes: by length or by blocks, whichever is more.

    A sparse file is longer than its blocks and many small files take more blocks than their
    length; the larger of the two sums flatters nobody.
    """
    stats = [path.stat() for path in directory.rglob("*") if path.is_file()]
    return max(sum(s.st_size for s in stats), sum(s.st_blocks * 512 for s in stats))


def occupied(directory: Path) -> int:
    """The bytes of a directory on the disk, where holes in files take none."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def peak_memory() -> int:
    """The most bytes this process ever held in memory.

    Linux keeps the figure of the process before ``exec`` in ``ru_maxrss``, which would charge
    a child with its parent's memory, so ``VmHWM`` is asked first.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def beside_python(command: str) -> str | None:
    """A command installed in the environment of this Python, if it is there."""
    path = Path(sys.executable).with_name(command)
    return str(path) if os.access(path, os.X_OK) else None
