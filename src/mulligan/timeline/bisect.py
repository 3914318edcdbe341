"""Binary search for the first bad item of a sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from mulligan.timeline.marks import BAD, GOOD

SKIP: Final = "skip"

Judge = Callable[[int], str]
"""Returns whether the item at an index is good, bad, or cannot be judged (skip)."""


class Found(msgspec.Struct, frozen=True):
    """The last good item, and the suspects, one of which is the first bad item.

    There is one suspect, unless items in between could not be judged.
    """

    last_good: int
    suspects: tuple[int, ...]
    judged: dict[int, str]

    @property
    def first_bad(self) -> int | None:
        """The first bad item, if it is unambiguous."""
        return self.suspects[0] if len(self.suspects) == 1 else None


def first_bad(count: int, judge: Judge) -> Found:
    """Find the first bad item of a sequence whose first is good and whose last is bad.

    Each question halves what is left; an item that cannot be judged is replaced by its nearest
    neighbour. No item is judged twice, and the ends never.
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
    """Return the unjudged item nearest to the middle."""
    open_ones = [index for index in range(good + 1, bad) if index not in judged]
    middle = (good + bad) / 2
    return min(open_ones, key=lambda index: abs(index - middle), default=None)
