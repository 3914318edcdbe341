"""Signals of repetition: the same again, and loops of several steps."""

from __future__ import annotations

import re
from typing import ClassVar

import msgspec

from mulligan.drift.observation import ACTION, MESSAGE, PROGRESS, Kind, digest, near
from mulligan.drift.settings import DriftSettings
from mulligan.drift.signals.signal import Signal, Step, keep, named, times

MAX_KEYS = 256
"""How many different steps a signal counts at a time."""

MAX_PERIOD = 8
"""The longest loop that is looked for, in actions."""

MAX_ERROR = 120
"""How much of an error is told."""

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


class Count(msgspec.Struct, gc=False):
    """How often something was seen, and in which events."""

    times: int = 0
    seqs: list[int] = []

    def add(self, seq: int) -> None:
        """Count one more."""
        self.times += 1
        self.seqs = named(self.seqs, seq)


class SameResult(Signal):
    """The same action with the same result, and nothing new in between.

    A result that changes makes the action a new one: so it is with a job that is polled. Work on
    other things in between is new, too: tests that pass after each of many edits are no loop.
    """

    name: ClassVar[str] = "same_result"
    counts: dict[int, Count] = msgspec.field(default_factory=dict)
    action: str = ""
    most: int = 0

    def observe(self, step: Step, settings: DriftSettings) -> None:
        """Count the whole of an action."""
        seen = step.seen
        if seen.kind == PROGRESS and seen.name == "task" and not seen.failed:
            self.spend()
        if seen.kind != ACTION:
            return
        if step.is_new and not seen.failed:
            self.spend()
        count = self.counts.get(step.whole) or Count()
        count.add(seen.seq)
        keep(self.counts, step.whole, count, MAX_KEYS)
        if count.times >= self.most:
            self.most, self.action, self.evidence = count.times, seen.name, count.seqs
        # Once is no repetition, and says nothing.
        self.level = self.most / settings.same_result if self.most > 1 else 0.0

    def why(self) -> str:
        """Return what was done again."""
        return f"{self.action!r} was called {times(self.most)} and returned the same every time"

    def spend(self) -> None:
        """Forget all counts."""
        super().spend()
        self.counts, self.most = {}, 0


class SameFailure(Signal):
    """The same action fails again and again: with like arguments, or with a like error.

    One success of the action ends it, so retries that succeed are not counted.
    """

    name: ClassVar[str] = "same_failure"
    takes: ClassVar[tuple[Kind, ...]] = (ACTION,)
    failures: dict[int, dict[int, Count]] = msgspec.field(default_factory=dict)
    action: str = ""
    error: str = ""
    most: int = 0

    def observe(self, step: Step, settings: DriftSettings) -> None:
        """Count a failure by its cause, or forget those of an action that succeeded."""
        seen = step.seen
        if seen.kind != ACTION:
            return
        if not seen.failed:
            if self.failures.pop(step.tool, None) is not None:
                self._weigh(settings)
            return
        causes = self.failures.get(step.tool) or {}
        for cause in (step.act, digest("error", _cause(seen.result))):
            count = causes.get(cause) or Count()
            count.add(seen.seq)
            keep(causes, cause, count, 16)
        keep(self.failures, step.tool, causes, 16)
        most = max(causes.values(), key=lambda count: count.times)
        if most.times >= self.most:
            self.most, self.action, self.evidence = most.times, seen.name, most.seqs
            self.error = " ".join(seen.result[:MAX_ERROR].split())
        self.level = self.most / settings.same_failure

    def _weigh(self, settings: DriftSettings) -> None:
        """Look for the longest streak that is left."""
        counts = [count for causes in self.failures.values() for count in causes.values()]
        longest = max(counts, key=lambda count: count.times, default=Count())
        self.most, self.evidence = longest.times, longest.seqs
        self.level = self.most / settings.same_failure

    def why(self) -> str:
        """Return what failed."""
        error = f": {self.error}" if self.error else ""
        return f"{self.action!r} failed {times(self.most)} in a row{error}"

    def spend(self) -> None:
        """Forget all failures."""
        super().spend()
        self.failures, self.most = {}, 0


def _cause(error: str) -> str:
    """Return the kind of an error: its beginning without names, numbers and quoted texts."""
    words = _QUOTED.sub(" ", error[:300].lower()).split()
    return " ".join(words[:8])


class SameMessage(Signal):
    """The same message again, and no action in between."""

    name: ClassVar[str] = "same_message"
    takes: ClassVar[tuple[Kind, ...]] = (ACTION, MESSAGE)
    counts: dict[int, Count] = msgspec.field(default_factory=dict)
    most: int = 0

    def observe(self, step: Step, settings: DriftSettings) -> None:
        """Count a message up to its wording; an action starts over."""
        seen = step.seen
        if seen.kind == ACTION and self.most:
            self.spend()
        if seen.kind != MESSAGE or not seen.text.strip():
            return
        key = digest(seen.actor, str(near(seen.text)))
        count = self.counts.get(key) or Count()
        count.add(seen.seq)
        keep(self.counts, key, count, MAX_KEYS)
        if count.times >= self.most:
            self.most, self.evidence = count.times, count.seqs
        self.level = self.most / settings.same_message if self.most > 1 else 0.0

    def why(self) -> str:
        """Return how often it was said."""
        return f"the same message came {times(self.most)} without an action in between"

    def spend(self) -> None:
        """Forget all messages."""
        super().spend()
        self.counts, self.most = {}, 0


class _Recent(msgspec.Struct, gc=False):
    """The last actions, and for each period how many of them in a row were the ones before it."""

    wholes: list[int] = []
    names: list[str] = []
    seqs: list[int] = []
    runs: list[int] = msgspec.field(default_factory=lambda: [0] * (MAX_PERIOD + 1))

    def add(self, step: Step) -> None:
        """Take an action; constant work, whatever came before."""
        whole = step.whole if not step.seen.failed else digest(str(step.act), "failed")
        known = self.wholes
        self.runs = [
            run + 1 if 0 < period <= len(known) and known[-period] == whole else 0
            for period, run in enumerate(self.runs)
        ]
        self.wholes = [*known, whole][-MAX_PERIOD:]
        self.names = [*self.names, step.seen.name][-MAX_PERIOD:]
        self.seqs = [*self.seqs, step.seen.seq][-MAX_PERIOD * 3 :]

    def explains(self, period: int) -> bool:
        """Whether a shorter period does what this one seems to do."""
        run = self.runs[period]
        return any(period % p == 0 and self.runs[p] >= run for p in range(1, period))


class Alternation(Signal):
    """Two actions in turn, each with like arguments and the same result as before."""

    name: ClassVar[str] = "alternation"
    takes: ClassVar[tuple[Kind, ...]] = (ACTION,)
    recent: _Recent = msgspec.field(default_factory=_Recent)
    steps: int = 0

    def observe(self, step: Step, settings: DriftSettings) -> None:
        """Count how many actions in a row are the ones before the last."""
        if step.seen.kind != ACTION:
            return
        self.recent.add(step)
        run = 0 if self.recent.explains(2) else self.recent.runs[2]
        self.steps = run + 2 if run else 0
        self.level = self.steps / settings.alternation
        self.evidence = self.recent.seqs[-min(self.steps, 8) :] if self.steps else []

    def why(self) -> str:
        """Return the two actions."""
        one, other = self.recent.names[-2:]
        return f"{one!r} and {other!r} alternate for {self.steps} steps with the same results"

    def spend(self) -> None:
        """Start over."""
        super().spend()
        self.recent, self.steps = _Recent(), 0


class Periodic(Signal):
    """Three to eight actions that come again in the same order, with the same results."""

    name: ClassVar[str] = "periodic"
    takes: ClassVar[tuple[Kind, ...]] = (ACTION,)
    recent: _Recent = msgspec.field(default_factory=_Recent)
    period: int = 0

    def observe(self, step: Step, settings: DriftSettings) -> None:
        """Find the period that has come again most often."""
        if step.seen.kind != ACTION:
            return
        self.recent.add(step)
        self.level = 0.0
        for period in range(3, MAX_PERIOD + 1):
            run = self.recent.runs[period]
            level = (run + period) / (period * settings.period_repeats)
            if run and level > self.level and not self.recent.explains(period):
                self.level, self.period = level, period
        self.evidence = self.recent.seqs[-self.period :] if self.level else []

    def why(self) -> str:
        """Return the loop."""
        names = " → ".join(self.recent.names[-self.period :])
        return f"a loop of {self.period} actions comes again with the same results: {names}"

    def spend(self) -> None:
        """Start over."""
        super().spend()
        self.recent, self.period = _Recent(), 0
