"""Races: contenders write the same messages in turns, each beside a floor of its own race."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.contenders import Contender, Floor, MulliganStep, opened, place
from benchmarks.messages import Message, raw_size
from benchmarks.timing import disk_usage, median, ratio

PER_TURN = 10


@dataclass(frozen=True, slots=True)
class Run:
    """What one contender needed in one race, and what it left on the disk."""

    name: str
    seconds: Sequence[float]
    checkpoints: Sequence[float]
    """The part of each step that was a checkpoint, where there is one."""
    floor: float
    """The median second of the floor in the same race."""
    store: int
    raw: int


@dataclass(slots=True)
class Races:
    """The runs of several races, and who could not take part."""

    runs: list[Run] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def of(self, kind: type[Contender]) -> list[Run]:
        """All runs of one contender."""
        return [run for run in self.runs if run.name == kind.name]

    def hold(
        self, kinds: Sequence[type[Contender]], directory: Path, messages: Sequence[Message]
    ) -> list[Run]:
        """Hold one more race, with the floor in it; its runs."""
        with opened((Floor, *kinds), directory) as (present, missing):
            seconds = interleave(present, messages)
        floor, raw = median(seconds[Floor.name]), raw_size(messages)
        runs = [
            Run(
                name=contender.name,
                seconds=seconds[contender.name],
                checkpoints=_checkpoints(contender),
                floor=floor,
                store=disk_usage(place(directory, type(contender))),
                raw=raw,
            )
            for contender in present
        ]
        self.runs += runs
        self.missing += [name for name in missing if name not in self.missing]
        return runs


def interleave(
    contenders: Sequence[Contender], messages: Sequence[Message]
) -> dict[str, list[float]]:
    """Give all contenders the same messages, a few at a time in turns.

    The machine is shared and its disk has moods: taking turns lets everybody have the same
    ones. Who begins a turn rotates, so nobody always follows the same neighbour.
    """
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for turn, start in enumerate(range(0, len(messages), PER_TURN)):
        first = turn % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            seconds[contender.name] += contender.batch(messages[start : start + PER_TURN])
    return seconds


def seconds_of(runs: Sequence[Run]) -> float | None:
    """The median second over all runs, if there are any."""
    return median([second for run in runs for second in run.seconds]) if runs else None


def beside_floor(runs: Sequence[Run]) -> float | None:
    """How many times the floor of its own race a run takes: the median over the races."""
    return median([median(run.seconds) / run.floor for run in runs]) if runs else None


def checkpoint_beside_floor(runs: Sequence[Run]) -> float | None:
    """The same for the checkpoints alone."""
    ratios = [ratio(median(run.checkpoints), run.floor) for run in runs if run.checkpoints]
    found = [value for value in ratios if value is not None]
    return median(found) if found else None


def _checkpoints(contender: Contender) -> Sequence[float]:
    return contender.checkpoint_seconds if isinstance(contender, MulliganStep) else ()
