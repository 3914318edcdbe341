"""The search for the first bad one of a row: which to ask about next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from mulligan.timeline.marks import BAD, GOOD

SKIP: Final = "skip"

Judge = Callable[[int], str]
"""Says of the one at an index whether it is good, bad, or cannot be judged (skip)."""


class Found(msgspec.Struct, frozen=True):
    """Between a good one and a bad one: the suspects, of which the first bad one is one.

    There is one suspect, unless those in between could not be judged.
    """

    last_good: int
    suspects: tuple[int, ...]
    judged: dict[int, str]

    @property
    def first_bad(self) -> int | None:
        """The first bad one, if there can be no doubt."""
        return self.suspects[0] if len(self.suspects) == 1 else None


def first_bad(count: int, judge: Judge) -> Found:
    """Find the first bad one of a row whose first is good and whose last is bad.

    Each question halves what is left; one that cannot be judged is replaced by its nearest
    neighbour. None is asked about twice, the ends never.
    """
    if count < 2:
        raise ValueError("a search needs a good one and a bad one")
    good, bad, judged = 0, count - 1, {0: GOOD, count - 1: BAD}
    while (index := _between(good, bad, judged)) is not None:
        verdict = judged[index] = judge(index)
        if verdict == GOOD:
            good = index
        elif verdict == BAD:
            bad = index
    return Found(good, tuple(range(good + 1, bad + 1)), judged)


def _between(good: int, bad: int, judged: dict[int, str]) -> int | None:
    """Return the one nearest to the middle that nobody has asked about."""
    open_ones = [index for index in range(good + 1, bad) if index not in judged]
    middle = (good + bad) / 2
    return min(open_ones, key=lambda index: abs(index - middle), default=None)
