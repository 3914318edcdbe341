"""Which signals there are: the built-in ones, and those of installed packages.

A package adds one by an entry point of the group ``mulligan.drift`` that names a subclass of
``Signal``.
"""

from __future__ import annotations

from functools import cache

from mulligan.drift.signals.measures import Age, ContextGrowth, Cycles, Errors, Slowing
from mulligan.drift.signals.progress import Backwards, GoalDistance, Stall
from mulligan.drift.signals.repetition import (
    Alternation,
    Periodic,
    SameFailure,
    SameMessage,
    SameResult,
)
from mulligan.drift.signals.signal import Signal
from mulligan.errors import InvalidSignal

GROUP = "mulligan.drift"

BUILT_IN: tuple[type[Signal], ...] = (
    SameResult,
    SameFailure,
    SameMessage,
    Alternation,
    Periodic,
    Errors,
    Stall,
    Backwards,
    Cycles,
    Age,
    Slowing,
    ContextGrowth,
    GoalDistance,
)


@cache
def signals() -> tuple[type[Signal], ...]:
    """Return all signals; raises ``InvalidSignal`` for an entry point that is none."""
    return (*BUILT_IN, *_installed())


def names() -> list[str]:
    """Return the names of all signals."""
    return [signal.name for signal in signals()]


def _installed() -> list[type[Signal]]:
    from importlib.metadata import entry_points  # slow to import

    found: dict[str, type[Signal]] = {}
    taken = {signal.name for signal in BUILT_IN}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            made = point.load()
        except Exception as error:
            raise InvalidSignal(f"The signal {point.name!r} cannot be loaded: {error}.") from error
        if not (isinstance(made, type) and issubclass(made, Signal)):
            raise InvalidSignal(f"The signal {point.name!r} is no subclass of Signal.")
        name = getattr(made, "name", None)
        if not isinstance(name, str) or name in taken or name in found:
            raise InvalidSignal(f"The signal {point.name!r} has no name of its own: {name!r}.")
        found[name] = made
    return list(found.values())
