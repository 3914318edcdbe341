"""Moments: which event of a timeline was the last at a time, also where events were folded away."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from mulligan.timeline.checkpoints import event_at

if TYPE_CHECKING:
    from mulligan.journal.protocol import View
    from mulligan.model import Fold


def seq_at(view: View, number: int, moment: datetime) -> int | None:
    """Return the seq of the last event at or before a time; None if the session began later.

    It may have been folded away. Inside of a fold, times are unknown: then it is the fold's first.
    """
    # The clock may have been set back, so a time can occur more than once. Use the newest
    # stretch that had started by then: events before a step back are really earlier.
    last = view.head(number).seq
    # The first event, and one where the clock was set back, are never folded.
    for first in reversed([1, *view.steps_back(number)]):
        if time_at(view, number, first) <= moment:
            return _last_until(view, number, moment, first, last)
        last = first - 1
    return None


def fold_at(view: View, number: int, seq: int) -> Fold | None:
    """Return the fold that took the event at ``seq``; None if it was not folded away."""
    return next(iter(view.folded(number, seq, seq)), None)


def time_at(view: View, number: int, seq: int) -> datetime:
    """Return the time of an event that was not folded away."""
    return event_at(view, number, seq).time


def _last_until(view: View, number: int, moment: datetime, first: int, last: int) -> int:
    """Return the last event at or before a time, where time does not go backwards."""
    while first < last:
        middle = (first + last + 1) // 2
        fold = fold_at(view, number, middle)
        started, ended = (
            (fold.started, fold.ended) if fold else (time_at(view, number, middle),) * 2
        )
        if started > moment:
            last = (fold.first if fold else middle) - 1
        elif fold and ended > moment:
            return fold.first
        else:
            first = fold.last if fold else middle
    return first
