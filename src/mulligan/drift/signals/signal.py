"""What a signal is: it sees one step after the other, and says how far it is from its threshold."""

from __future__ import annotations

from typing import Any, ClassVar, Self, TypeVar

import msgspec

from mulligan.decoding import ready
from mulligan.drift.observation import KINDS, Kind, Observation
from mulligan.drift.settings import DriftSettings

MAX_EVIDENCE = 8
"""How many events a signal names; the oldest and the newest ones count."""

K = TypeVar("K")
V = TypeVar("V")


class Step(msgspec.Struct, gc=False):
    """An observation with what all signals need to know of it.

    ``tool`` identifies actor and name of an action, ``act`` also its arguments up to wording, and
    ``whole`` also what came back. ``is_new`` says that the whole was not seen before, ``advances``
    that the run gets further: a task, a file or a part of the state is where it never was; where a
    run records no such progress, any new result counts. ``cycle`` counts cycles, and
    ``ends_cycle`` says that one ends here; ``seconds`` is what it took.
    """

    seen: Observation
    tool: int = 0
    act: int = 0
    whole: int = 0
    is_new: bool = False
    advances: bool = False
    cycle: int = 0
    ends_cycle: bool = False
    seconds: float | None = None


class Signal(msgspec.Struct):
    """The protocol of signals. The fields of a subclass are its state, and must stay small.

    ``level`` is how far it is: 1 is the threshold. A signal that ``acts`` may lead to a response,
    the others are only noted. ``name`` is what settings and events call it. ``takes`` are the kinds
    of observations that it is given; it stays as it is at all others.
    """

    name: ClassVar[str]
    acts: ClassVar[bool] = True
    takes: ClassVar[tuple[Kind, ...]] = KINDS

    level: float = 0.0
    evidence: list[int] = []

    def observe(self, step: Step, settings: DriftSettings) -> None:
        """Take a step, and set ``level`` and ``evidence``. Must not take longer as runs grow."""
        raise NotImplementedError

    def why(self) -> str:
        """Return one sentence on what was found."""
        raise NotImplementedError

    def warns_at(self, settings: DriftSettings) -> float:
        """Return the level from which on it is noted."""
        return 1.0

    def spend(self) -> None:
        """Forget the evidence: it has led to an alarm, and must not lead to another one."""
        self.level, self.evidence = 0.0, []

    def baseline(self) -> float:
        """Return what is usual in this session, seen in its first cycles; 0 if nothing is."""
        return 0.0

    def calibrate(self, usual: float) -> None:
        """Take what ``baseline`` returned at the end of the first cycles, or was kept of it."""

    @property
    def score(self) -> float:
        """From 0 to 1; 0.5 is the threshold."""
        return self.level / (1.0 + self.level)

    def dump(self) -> Any:
        """Return the state as plain values."""
        return msgspec.to_builtins(self, str_keys=False)

    @classmethod
    def load(cls, plain: Any) -> Self:
        """Return the signal from what ``dump`` returned; raises ``msgspec.ValidationError``."""
        return msgspec.convert(plain, ready(cls), str_keys=False)


def named(evidence: list[int], seq: int) -> list[int]:
    """Return evidence with another event; those in the middle are the first to go."""
    kept = [*evidence, seq]
    return kept if len(kept) <= MAX_EVIDENCE else [*kept[:2], *kept[3:]]


def keep(known: dict[K, V], key: K, value: V, limit: int) -> None:
    """Set a value in a dict that forgets what was set longest ago beyond a limit."""
    known.pop(key, None)
    known[key] = value
    if len(known) > limit:
        del known[next(iter(known))]


def times(count: int) -> str:
    """Return a number of times in words."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
