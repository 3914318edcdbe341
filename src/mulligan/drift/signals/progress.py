"""Signals of progress: none for long, backwards, or away from the goal."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from mulligan.drift.observation import ACTION, MESSAGE, PROGRESS, WORD, Kind, Observation
from mulligan.drift.settings import DriftSettings
from mulligan.drift.signals.signal import Signal, Step, keep, named

MIN_STALLED_ACTIONS = 5
"""How many actions a stall by time needs: an agent that waits is not stalled."""

MAX_CALIBRATION = 4.0
"""By how much the usual time between two steps forward may raise the threshold."""

MAX_KEYS = 256
MAXWORDS = 200
WINDOW_CYCLES = 50


class Stall(Signal):
    """The agent acts, and no task, file or part of the state gets further; see ``Step``."""

    name: ClassVar[str] = "stall"
    cycles: int = 0
    actions: int = 0
    since: float | None = None
    seconds: float = 0.0
    longest: int = 0
    """The most cycles between two steps forward so far."""
    usual: float = 0.0

    def observe(self, step: Step, settings: DriftSettings) -> None:
        """Count a cycle without progress, or start over."""
        seen = step.seen
        if step.advances:
            self.longest = max(self.longest, self.cycles)
            self.spend()
            self.since = seen.time
        elif seen.kind == ACTION:
            self.actions += 1
            self.evidence = named(self.evidence, seen.seq)
        if step.ends_cycle and self.actions:
            self.cycles += 1
        self._weigh(seen.time, settings)

    def _weigh(self, now: float | None, settings: DriftSettings) -> None:
        room = min(max(1.0, 3 * self.usual / settings.stall_cycles), MAX_CALIBRATION)
        self.level = self.cycles / (room * settings.stall_cycles)
        if now is None:
            return
        if self.since is None:
            self.since = now
        self.seconds = max(0.0, now - self.since)
        if self.actions >= MIN_STALLED_ACTIONS:
            self.level = max(self.level, self.seconds / (room * settings.stall_time))

    def why(self) -> str:
        """Return how long nothing got further."""
        lasted = f" ({self.seconds / 60:.0f} minutes)" if self.seconds >= 60 else ""
        return f"nothing got further in {self.cycles} cycles{lasted} with {self.actions} actions"

    def spend(self) -> None:
        """Start over."""
        super().spend()
        self.cycles = self.actions = 0
        self.since, self.seconds = None, 0.0

    def baseline(self) -> float:
        """Return the most cycles between two steps forward."""
        return float(self.longest)

    def calibrate(self, usual: float) -> None:
        """Expect this many cycles between two steps forward."""
        self.usual = usual


class Backwards(Signal):
    """Finished tasks are opened again, or files and values go back and forth."""

    name: ClassVar[str] = "backwards"
    contents: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """The last three contents of each key."""
    turns: list[int] = msgspec.field(default_factory=list)
    """The cycles in which something went back."""
    what: str = ""

    def observe(self, step: Step, settings: DriftSettings) -> None:
        """Compare a content with the one before the last."""
        seen = step.seen
        if seen.kind == PROGRESS and (seen.failed or self._flips(seen)):
            self.turns = [*self.turns, step.cycle][-MAX_KEYS:]
            self.evidence = named(self.evidence, seen.seq)
            self.what = f"{seen.name} {seen.text}".strip()
        if self.turns and step.ends_cycle and self.turns[0] < step.cycle - WINDOW_CYCLES:
            self.turns = [cycle for cycle in self.turns if cycle >= step.cycle - WINDOW_CYCLES]
        self.level = len(self.turns) / settings.backwards

    def _flips(self, seen: Observation) -> bool:
        place, content = f"{seen.name}/{seen.text}", seen.result
        known = self.contents.get(place, [])
        if not content or (known and known[-1] == content):
            return False
        keep(self.contents, place, [*known, content][-3:], MAX_KEYS)
        return len(known) >= 2 and known[-2] == content

    def why(self) -> str:
        """Return what went back, and how often."""
        return f"progress went backwards {len(self.turns)} times, last {self.what}"

    def spend(self) -> None:
        """Forget the turns; what was there before stays known."""
        super().spend()
        self.turns = []


class GoalDistance(Signal):
    """Experimental: what is said and done shares ever fewer words with the goal."""

    name: ClassVar[str] = "goal_distance"
    acts: ClassVar[bool] = False
    takes: ClassVar[tuple[Kind, ...]] = (ACTION, MESSAGE)
    recent: list[str] = msgspec.field(default_factory=list)

    def observe(self, step: Step, settings: DriftSettings) -> None:
        """Compare the words of the last steps with those of the goal."""
        seen = step.seen
        if not settings.goal or seen.kind not in (ACTION, MESSAGE):
            return
        self.recent = [*self.recent, f"{seen.text[:MAXWORDS]} {seen.result[:MAXWORDS]}"][-20:]
        self.evidence = named(self.evidence, seen.seq)
        if len(self.recent) < 20:
            return
        goal = set(WORD.findall(settings.goal.lower()))
        said = set(WORD.findall(" ".join(self.recent).lower()))
        far = 1.0 - len(goal & said) / max(1, len(goal))
        self.level = far / settings.goal_distance

    def why(self) -> str:
        """Say so."""
        return "the last 20 steps share almost no word with the goal (experimental)"

    def spend(self) -> None:
        """Start over."""
        super().spend()
        self.recent = []
