"""How hard tests try that repeat something at random or at many places.

``make test`` tries a little, so that it stays short; ``make crash`` sets ``MULLIGAN_TEST_SCALE``
to let the same tests try many times more.
"""

from __future__ import annotations

import os

SCALE = int(os.environ.get("MULLIGAN_TEST_SCALE", "1"))


def times(count: int) -> int:
    """Return how often to repeat what ``make test`` repeats ``count`` times."""
    return count * SCALE


def passes(count: int) -> list[int]:
    """Return which passes of a failpoint to stop at: the first and the last, or all of them."""
    return [1, count] if SCALE == 1 else [*range(1, count + 1)]
