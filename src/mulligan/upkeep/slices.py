"""Working in slices: between two of them, upkeep may be stopped and others get their turn.

A slice is one write transaction, measured on the clock from the moment it has the write lock to the
end of its sync. The next one does less if that took long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, TypeVar

from mulligan.clock import Clock
from mulligan.journal.protocol import Txn

AIM_SECONDS = 0.01
"""How long one transaction should hold the write lock, its sync included: writers wait for it.

A disk that is suddenly slower, or a busy processor, may make it a few times that; a writer should
never wait for more than 50 ms.
"""

PAUSE_SHARE, MIN_PAUSE_SECONDS = 0.5, 0.001
"""How long the lock is left alone after a slice, as a share of the time it was held, and at least.

The lock is not fair: without a pause, the process that released it would be the first to get it
again, and a writer would wait for several slices.
"""

PART_ITEMS = 64
"""After how many items a transaction looks at the time."""

FIRST_SHARE = 8
"""The first slice does this part of the most: how fast the disk is, is not known yet."""

Stop = Callable[[], bool]
"""Whether the caller wants the work to end; called between slices."""


T = TypeVar("T")


class Stopped(Exception):
    """The caller wants the work to end."""


def never() -> bool:
    """Never stop."""
    return False


def check(stop: Stop) -> None:
    """Raise ``Stopped`` if the caller wants the work to end."""
    if stop():
        raise Stopped


class TimedWrite(Protocol):
    """A write transaction that says when it got the write lock, as ``mulligan.engine.Write``."""

    locked_at: float

    def __enter__(self) -> Txn: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class SliceSize:
    """How much one transaction does, by how long the earlier ones held the write lock.

    ``most`` takes two milliseconds of a processor. It starts with ``first``, by default a part of
    that, and goes down to ``least`` on a slow disk: with less, the fixed cost of a transaction
    would be most of it.
    """

    def __init__(
        self, clock: Clock, most: int, least: int = 16, *, first: int | None = None
    ) -> None:
        self._clock = clock
        self._most = most
        self._least = min(least, most)
        self._started = 0.0
        self.now = max(self._least, most // FIRST_SHARE if first is None else first)
        self.longest = 0.0
        """The longest that a transaction held the lock, in seconds."""

    @contextmanager
    def transaction(self, write: TimedWrite) -> Iterator[Txn]:
        """Run the transaction of a slice, and learn from how long it held the lock."""
        with self.single(write) as txn:
            yield txn
        held = self._clock.monotonic() - self._started
        # At most twice as much at once: the next one may meet a slower disk.
        share = min(2.0, AIM_SECONDS / held) if held else 2.0
        self.now = max(self._least, min(self._most, int(self.now * share)))
        # Outside of the lock: a process that waits for it gets it now.
        self._clock.sleep(max(MIN_PAUSE_SECONDS, held * PAUSE_SHARE))

    @contextmanager
    def single(self, write: TimedWrite) -> Iterator[Txn]:
        """Run a transaction that is no slice, and only measure how long it held the lock."""
        started: float | None = None
        try:
            with write as txn:
                # From here on, not before: the wait for the lock is not what others wait for.
                started = self._started = write.locked_at
                yield txn
        finally:
            if started is not None:
                self.longest = max(self.longest, self._clock.monotonic() - started)

    def parts(self, items: Sequence[T], size: int = PART_ITEMS) -> Iterator[Sequence[T]]:
        """Yield items in parts, until the present transaction should do no more."""
        for start in range(0, len(items), size):
            yield items[start : start + size]
            # Between parts, because the processor may be taken away inside of a transaction.
            if self._clock.monotonic() - self._started >= AIM_SECONDS:
                return

    def shorten(self) -> bool:
        """Take much smaller slices from now on, down to single items; False if it is one."""
        before, self._least = self.now, 1
        self.now = self._most = max(1, before // 4)
        return before > 1
