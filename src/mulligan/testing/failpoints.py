"""Hooks for ``open_store(..., failpoint=hook)`` that act at a failpoint."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable

from mulligan.failpoints import Failpoint, FailpointHook


def kill_at(point: Failpoint, nth: int = 1) -> FailpointHook:
    """Return a hook that kills this process with SIGKILL at the nth pass of a failpoint."""
    return _at(point, nth, _die)


def fail_at(point: Failpoint, error: BaseException, nth: int = 1) -> FailpointHook:
    """Return a hook that raises the error at the nth pass of a failpoint, and only then."""

    def fail() -> None:
        raise error

    return _at(point, nth, fail)


class FailpointCounter:
    """A hook that counts how often each failpoint is reached."""

    def __init__(self) -> None:
        self.counts: Counter[Failpoint] = Counter()

    def __call__(self, point: Failpoint) -> None:
        """Count a failpoint."""
        self.counts[point] += 1


def _at(point: Failpoint, nth: int, act: Callable[[], None]) -> FailpointHook:
    if nth < 1:
        raise ValueError("nth starts at 1")
    counted = 0
    lock = threading.Lock()

    def hook(reached: Failpoint) -> None:
        nonlocal counted
        if reached is not point:
            return
        # Several threads may pass the failpoint at once; exactly one of them is the nth.
        with lock:
            counted += 1
            due = counted == nth
        if due:
            act()

    return hook


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # SIGKILL may take a moment, and nothing else may run until then
