"""What the copies of events cost, from which a damaged journal is rebuilt: with them and without.

In turns in the same process, by processor time, because a busy machine stretches seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from benchmarks import harness
from benchmarks.harness import Result, Row, Setting, Table, Target
from benchmarks.timing import MILLISECONDS, median, occupied

TARGETS = (
    Target("append", "processor time of an append with copies", at_most=1.03, unit="×"),
    Target(
        "step", "that of a step: a message of 1 KB, a file, a checkpoint", at_most=1.03, unit="×"
    ),
)

TURNS = 5


def run(setting: Setting) -> Result:
    """Append, and take steps, in stores with copies and in others without."""
    result, steps = Result(), setting.choose(full=1_000, quick=200)
    rows: list[Row] = []
    for what, work in (("append", _append), ("step", _step)):
        spent: dict[bool, list[float]] = {True: [], False: []}
        sizes: dict[bool, int] = {}
        for turn in range(TURNS):
            for has_copies in (True, False) if turn % 2 else (False, True):
                place = setting.directory / f"{what}-{turn}-{has_copies}"
                with _copies(on=has_copies):
                    spent[has_copies].append(work(place, steps) / steps)
                sizes[has_copies] = occupied(place / "store")
        ratio = median([w / o for w, o in zip(spent[True], spent[False], strict=True)])
        result.measure(what, ratio)
        rows.append(
            {
                "copies of events": f"{what}, {steps:,} times",
                "cpu ms without": median(spent[False]) * MILLISECONDS,
                "cpu ms with": median(spent[True]) * MILLISECONDS,
                "×": ratio,
                "bytes without": sizes[False] / steps,
                "bytes with": sizes[True] / steps,
            }
        )
    notes = ["median of the ratios of five turns; bytes are those of packs and journal on the disk"]
    result.tables.append(Table("Copies of events", rows, notes))
    return result


@contextmanager
def _copies(*, on: bool) -> Iterator[None]:
    """Switch the copies off by replacing what makes them; the product has no such switch."""
    if on:
        yield
        return
    module = "mulligan.session.write.checkpointer"
    with (
        patch(f"{module}.events_to_copy", lambda *_: None),
        patch(f"{module}.uncopied", lambda *_: 0),
    ):
        yield


def _append(place: Path, count: int) -> float:
    import mulligan

    rng = random.Random(1)
    with mulligan.open(place / "store") as store:
        session = store.session("main")
        started = time.process_time()
        for _ in range(count):
            session.state.append("conversation", rng.randbytes(500).hex())
        session.checkpoint("routine")
        return time.process_time() - started


def _step(place: Path, count: int) -> float:
    import mulligan

    rng, work = random.Random(1), place / "work"
    work.mkdir(parents=True)
    with mulligan.open(place / "store") as store:
        session = store.session("main", workspace=work)
        session.checkpoint("routine")
        started = time.process_time()
        for number in range(count):
            session.state.append("conversation", rng.randbytes(500).hex())
            (work / f"f{number % 20}").write_bytes(rng.randbytes(4_000))
            session.checkpoint("routine")
        return time.process_time() - started


BENCHMARK = harness.Benchmark("copies", "Copies of events", TARGETS, run)

if __name__ == "__main__":
    raise SystemExit(harness.main(BENCHMARK))
