"""Signals that measure: counts, age, rates, speed and the size of the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from mulligan.drift.observation import ACTION, CYCLE, Kind
from mulligan.drift.settings import DriftSettings
from mulligan.drift.signals.signal import MAX_EVIDENCE, Signal, Step, keep

MIN_ACTIONS = 10
"""How many actions a rate of errors needs."""

SPAN = 10
"""How many cycles a median of their length needs."""

MIN_SLOW_SECONDS = 0.5
"""Below this length of a cycle, being slower says nothing."""

MAX_ACTORS = 16
"""How many contexts are compared with what they were."""

MIN_CONTEXT = 8_000
"""By how much a context must have grown, whatever the factor is."""


def median(values: Sequence[float]) -> float:
    """Return the median; the module of the standard library takes long to import."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Cycles(Signal):
    """How many cycles the agent has done since it started, or was refreshed."""

    name: ClassVar[str] = "cycles"
    acts: ClassVar[bool] = False
    takes: ClassVar[tuple[Kind, ...]] = (ACTION, CYCLE)
    count: int = 0
    noted: int = 0

    def observe(self, step: Step, settings: DriftSettings) -> None:
        """Count a cycle."""
        if step.ends_cycle:
            self.count += 1
            # Past the number, not at it.
            self.level = (self.count - self.noted - 1) / settings.cycles
            self.evidence = [step.seen.seq]

    def why(self) -> str:
        """Return the number."""
        return f"the agent has done {self.count} cycles without a fresh start"

    def spend(self) -> None:
        """Count on from here."""
        super().spend()
        self.noted = self.count


class Age(Signal):
    """How long the agent has been at work since it started, or was refreshed."""

    name: ClassVar[str] = "age"
    acts: ClassVar[bool] = False
    started: float | None = None
    noted: float = 0.0
    seconds: float = 0.0

    def observe(self, step: Step, settings: DriftSettings) -> None:
        """Look at the time."""
        now = step.seen.time
        if now is None:
            return
        if self.started is None:
            self.started = now
        self.seconds = max(0.0, now - self.started)
        self.level = (self.seconds - self.noted) / settings.age
        self.evidence = [step.seen.seq]

    def why(self) -> str:
        """Return the age."""
        return f"the agent has worked for {self.seconds / 3600:.1f} hours without a fresh start"

    def spend(self) -> None:
        """Count on from here."""
        super().spend()
        self.noted = self.seconds


class Errors(Signal):
    """The share of the last actions that failed.

    A failure and its retries, with like arguments, count once, and not at all if one succeeds.
    """

    name: ClassVar[str] = "errors"
    takes: ClassVar[tuple[Kind, ...]] = (ACTION,)
    acts_done: list[int] = msgspec.field(default_factory=list)
    failures: list[int] = msgspec.field(default_factory=list)
    """The events of the last actions; -1 where one succeeded."""
    usual: float = 0.0

    def observe(self, step: Step, settings: DriftSettings) -> None:
        """Take an action into the window."""
        seen = step.seen
        if seen.kind != ACTION:
            return
        if self.acts_done and self.acts_done[-1] == step.act and self.failures[-1] >= 0:
            del self.acts_done[-1], self.failures[-1]
        self.acts_done.append(step.act)
        self.failures.append(seen.seq if seen.failed else -1)
        del self.acts_done[: -settings.error_window], self.failures[: -settings.error_window]
        if not seen.failed and step.act in self.acts_done[:-1]:
            pairs = zip(self.acts_done, self.failures, strict=True)
            self.failures = [-1 if act == step.act else seq for act, seq in pairs]
        settled = self._settled()
        self.level = self._rate() / self._limit(settings) if len(settled) >= MIN_ACTIONS else 0.0
        if self.level:
            self.evidence = [seq for seq in settled if seq >= 0][-MAX_EVIDENCE:]

    def _settled(self) -> list[int]:
        """Return the window without a failure at its end: its retry may succeed."""
        return self.failures[:-1] if self.failures and self.failures[-1] >= 0 else self.failures

    def _rate(self) -> float:
        settled = self._settled()
        return 1.0 - settled.count(-1) / max(1, len(settled))

    def _limit(self, settings: DriftSettings) -> float:
        """Return the share that is alarming; a session that always had many failures gets more."""
        return max(settings.error_rate, min(0.9, 1.5 * self.usual))

    def warns_at(self, settings: DriftSettings) -> float:
        """Return the level of the lower threshold."""
        return min(1.0, max(settings.error_warning, 1.5 * self.usual) / self._limit(settings))

    def why(self) -> str:
        """Return the share."""
        settled = self._settled()
        return f"{len(settled) - settled.count(-1)} of the last {len(settled)} actions failed"

    def spend(self) -> None:
        """Start with an empty window."""
        super().spend()
        self.acts_done, self.failures = [], []

    def baseline(self) -> float:
        """Return the share of failures so far."""
        return self._rate() if len(self._settled()) >= MIN_ACTIONS else 0.0

    def calibrate(self, usual: float) -> None:
        """Expect this share of failures."""
        self.usual = usual


class Slowing(Signal):
    """Cycles take longer than the ones before: the medians of ten each."""

    name: ClassVar[str] = "slowing"
    acts: ClassVar[bool] = False
    takes: ClassVar[tuple[Kind, ...]] = (ACTION, CYCLE)
    lengths: list[float] = msgspec.field(default_factory=list)
    seqs: list[int] = msgspec.field(default_factory=list)

    def observe(self, step: Step, settings: DriftSettings) -> None:
        """Take the length of a cycle."""
        if not step.ends_cycle or step.seconds is None:
            return
        self.lengths = [*self.lengths, step.seconds][-2 * SPAN :]
        self.seqs = [*self.seqs, step.seen.seq][-MAX_EVIDENCE:]
        self.level, self.evidence = 0.0, self.seqs
        if len(self.lengths) == 2 * SPAN:
            before, now = median(self.lengths[:SPAN]), median(self.lengths[SPAN:])
            if now >= MIN_SLOW_SECONDS and before > 0:
                self.level = max(0.0, now / before - 1.0) / settings.slower

    def why(self) -> str:
        """Return both medians."""
        before, now = median(self.lengths[:SPAN]), median(self.lengths[SPAN:])
        return f"the last {SPAN} cycles took {now:.1f} s in the median, those before {before:.1f} s"

    def spend(self) -> None:
        """Start with no cycles."""
        super().spend()
        self.lengths, self.seqs = [], []


class ContextGrowth(Signal):
    """The context grows, and the run does not get further."""

    name: ClassVar[str] = "context_growth"
    acts: ClassVar[bool] = False
    sizes: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """The size of each actor's context when the run last got further, and now."""
    grown: tuple[int, int] = (0, 0)

    def observe(self, step: Step, settings: DriftSettings) -> None:
        """Compare the size with that at the last progress."""
        seen = step.seen
        if step.advances and self.sizes:
            self.spend()
        if seen.context is None:
            return
        # A context that shrank was cleaned up: the smaller one is what it grows from.
        since = min(self.sizes.get(seen.actor, (seen.context, 0))[0], seen.context)
        keep(self.sizes, seen.actor, (since, seen.context), MAX_ACTORS)
        self.grown, self.evidence = (since, seen.context), [seen.seq]
        is_large = since > 0 and seen.context - since >= MIN_CONTEXT
        self.level = seen.context / since / settings.context_growth if is_large else 0.0

    def why(self) -> str:
        """Return both sizes."""
        return "the context grew from {} to {} without any progress".format(*self.grown)

    def spend(self) -> None:
        """Grow from here."""
        super().spend()
        self.sizes = {actor: (now, now) for actor, (_, now) in self.sizes.items()}
