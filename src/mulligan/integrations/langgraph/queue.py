"""Calls that save pending writes, on their way into one transaction with what follows them.

LangGraph saves what the last task of a step wrote in one thread, and right after it, in another,
the checkpoint that follows. Each would wait for the disk by itself. So such a call waits for a
moment until the checkpoint takes it along; both are durable when they return. It waits only while
that has been of use, and never with an answer, an interrupt or an error: no checkpoint follows
these, and a task that acts upon an answer would act before the answer is durable.
"""

from __future__ import annotations

import threading
from typing import Any

from mulligan.document.values import freeze

MOMENT = 0.005
"""How many seconds a call waits at most to be taken along.

The checkpoint mostly comes within 0.1 ms. If that waited for a processor and this one gave up, the
checkpoint would wait for the commit of this one before its own.
"""


class QueuedCall:
    """The pending writes that one call saves."""

    __slots__ = (
        "_is_written",
        "checkpoint",
        "is_early",
        "is_special",
        "position",
        "stored",
        "writes",
    )

    def __init__(
        self, namespace: str, id: str, task: str, path: str, writes: list[list[Any]]
    ) -> None:
        # Checked here: what cannot be stored must not fail the transaction of another call.
        self.stored = freeze([namespace, id, task, path, writes])
        self.writes = writes
        self.checkpoint = namespace, id
        """The checkpoint that they belong to."""
        self.position = 0
        """Where the state has them, once they are decided."""
        self.is_early = False
        """Whether they are saved before their checkpoint."""
        # LangGraph gives special writes negative places.
        self.is_special = any(index < 0 for index, _, _ in writes)
        """Whether an answer, an interrupt or an error is among them."""
        self._is_written = threading.Event()

    @property
    def is_written(self) -> bool:
        """Whether they are durable."""
        return self._is_written.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until another call has written them; whether one has."""
        return self._is_written.wait(seconds)

    def set_written(self) -> None:
        """Wake the thread that waits for them."""
        self._is_written.set()


class WritesQueue:
    """The calls of one thread of a graph that are not written yet, in their order."""

    def __init__(self) -> None:
        # For the list alone, never during a transaction: a call must be queued while one runs.
        self._lock = threading.Lock()
        self._calls: list[QueuedCall] = []
        self._is_useful = False

    def add(self, call: QueuedCall) -> None:
        """Add a call; it is written by the next transaction of the thread."""
        with self._lock:
            self._calls.append(call)

    def waiting(self) -> list[QueuedCall]:
        """Return the calls that are to be written."""
        with self._lock:
            return list(self._calls)

    def written(self, calls: list[QueuedCall]) -> None:
        """Remove calls that are durable now."""
        with self._lock:
            self._calls = [call for call in self._calls if call not in calls]
        for call in calls:
            call.set_written()

    def remove(self, call: QueuedCall) -> None:
        """Remove a call that could not be written."""
        with self._lock:
            self._calls = [other for other in self._calls if other is not call]

    def met(self) -> None:
        """Note that a checkpoint had to wait for a call: the next one may take it along."""
        self._is_useful = True

    def let_take(self, call: QueuedCall) -> bool:
        """Give a checkpoint that follows the time to take a call along; whether it has."""
        if self._is_useful and not call.is_special:
            self._is_useful = call.wait(MOMENT)
        return call.is_written
