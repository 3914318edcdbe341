"""A session of 2,000 steps: does the last cost what the first did, and how much is kept.

Each step adds one message of 1 KB and takes a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import harness
from benchmarks.contenders import (
    Contender,
    DbosStep,
    Floor,
    LangGraphSaver,
    MulliganBatch,
    MulliganStep,
    SqliteWal,
)
from benchmarks.harness import Result, Row, Setting, Table, Target
from benchmarks.messages import noise_messages, text_messages
from benchmarks.race import Races, Run, beside_floor, checkpoint_beside_floor, seconds_of
from benchmarks.timing import MEGABYTE, median, median_ms, ratio

TARGETS = (
    Target("checkpoint/floor", "a checkpoint beside the floor", at_most=2.0, unit="×"),
    Target("last/first", "the last 50 steps beside the first 50", at_most=1.5, unit="×"),
    Target("batch/step", "a step in a batch beside one of two calls", at_most=0.65, unit="×"),
    Target("store/raw", "the store beside the raw text messages", at_most=2.5, unit="×"),
)

TOGETHER: tuple[type[Contender], ...] = (MulliganStep, MulliganBatch, SqliteWal, DbosStep)
APART: tuple[type[Contender], ...] = (LangGraphSaver,)
"""Writes gigabytes in all, which would slow its neighbours, so it races the floor alone."""
OURS: tuple[type[Contender], ...] = (MulliganStep, MulliganBatch)

EDGE = 50
"""How many steps count as the first ones and as the last ones."""


def run(setting: Setting) -> Result:
    """All peers once; ours and the floor several times, for steady medians."""
    count = setting.choose(full=2000, quick=300)
    text, noise = Races(), Races()
    messages = text_messages(count)
    text.hold(TOGETHER, setting.directory / "together", messages)
    for number in range(setting.choose(full=4, quick=2)):
        text.hold(OURS, setting.directory / f"again-{number}", messages)
    text.hold(APART, setting.directory / "apart", messages)
    noise.hold(OURS, setting.directory / "noise", noise_messages(count))
    return Result([Table(f"{count:,} steps", _rows(text, noise), _notes())], _measures(text))


def _rows(text: Races, noise: Races) -> list[Row]:
    kinds: tuple[type[Contender], ...] = (Floor, *TOGETHER, *APART)
    rows = [_row(kind.name, text.of(kind)) for kind in kinds]
    return [*rows, _row(f"{MulliganStep.name}, incompressible", noise.of(MulliganStep))]


def _row(name: str, runs: Sequence[Run]) -> Row:
    if not runs:
        return {"contender": name, "step ms": "not installed"}
    return {
        "contender": name,
        "step ms": median_ms([second for run in runs for second in run.seconds]),
        "checkpoint ms": median_ms([second for run in runs for second in run.checkpoints]),
        "step × floor": beside_floor(runs),
        "last/first 50": _growth(runs),
        "store MB": runs[0].store / MEGABYTE,
        "store × raw": _kept(runs),
    }


def _measures(text: Races) -> dict[str, float]:
    ours = text.of(MulliganStep)
    result = Result()
    result.measure("checkpoint/floor", checkpoint_beside_floor(ours))
    result.measure("last/first", _growth(ours))
    result.measure("batch/step", ratio(seconds_of(text.of(MulliganBatch)), seconds_of(ours)))
    result.measure("store/raw", _kept(ours))
    return result.measures


def _growth(runs: Sequence[Run]) -> float | None:
    """The cost of the last steps beside that of the first: the median over the races."""
    ratios = [sum(run.seconds[-EDGE:]) / sum(run.seconds[:EDGE]) for run in runs]
    return median(ratios) if ratios else None


def _kept(runs: Sequence[Run]) -> float | None:
    """What is on the disk beside what was said, at worst."""
    return max((run.store / run.raw for run in runs), default=None)


def _notes() -> list[str]:
    return [
        "a step of ours is a durable event and a checkpoint, as two calls or as one batch; of the "
        "others, one durable write",
        "store: by length or by blocks, whichever is more; raw: the bytes of the messages",
        "the LangGraph saver races the floor alone: its writes would slow the others",
    ]


BENCHMARK = harness.Benchmark("steps", "A session of 2,000 steps", TARGETS, run)

if __name__ == "__main__":
    raise SystemExit(harness.main(BENCHMARK))
