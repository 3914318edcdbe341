"""Working in slices: between two of them, upkeep may be stopped and others get their turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from mulligan.clock import Clock
from mulligan.journal.protocol import Txn

SLICE_SECONDS = 0.015
"""How long one transaction should hold the write lock, its sync included: writers wait for it."""

Stop = Callable[[], bool]
"""Whether the caller wants the work to end; called between slices."""


class Stopped(Exception):
    """The caller wants the work to end."""


def never() -> bool:
    """Never stop."""
    return False


def check(stop: Stop) -> None:
    """Raise ``Stopped`` if the caller wants the work to end."""
    if stop():
        raise Stopped


class SliceSize:
    """How much one transaction does, by how long the earlier ones held the write lock.

    It starts with ``most``, which takes two milliseconds of a processor, and goes down to ``least``
    on a slow disk: with less, the fixed cost of a transaction would be most of it.
    """

    def __init__(self, clock: Clock, most: int, least: int = 16) -> None:
        self._clock = clock
        self._most = most
        self._least = min(least, most)
        self._started = 0.0
        self.now = most

    @contextmanager
    def transaction(self, write: AbstractContextManager[Txn]) -> Iterator[Txn]:
        """Run a write transaction, and learn from how long it held the lock."""
        with write as txn:
            # From here on, not before: the wait for the lock is not what others wait for.
            self._started = self._clock.monotonic()
            yield txn
        took = self._clock.monotonic() - self._started
        if took > SLICE_SECONDS:
            self.now = max(self._least, min(self.now // 2, int(self.now * SLICE_SECONDS / took)))
        else:
            self.now = min(self._most, 2 * self.now)

    @property
    def is_over(self) -> bool:
        """Whether the present transaction should do no more."""
        return self._clock.monotonic() - self._started >= SLICE_SECONDS

    def shorten(self) -> bool:
        """Take much smaller slices from now on, down to single items; False if it is one."""
        before, self._least = self.now, 1
        self.now = self._most = max(1, before // 4)
        return before > 1
