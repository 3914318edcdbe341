"""The watchdog: ends stopped agents when the supervisor itself is blocked.

An agent that is stopped (SIGSTOP) during a write keeps the journal's write lock. The supervisor
then blocks at its own next write and cannot notice the hang. So a thread that never writes watches
the supervisor's loop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable

from mulligan.procfs import pids, stat

STALL_SECONDS = 5.0
"""Seconds that the supervisor may be blocked before stopped agents are ended."""

POLL_SECONDS = 1.0


class Watchdog:
    """Watches a supervisor's loop; ``groups`` are the process groups of its agents."""

    def __init__(self, groups: Callable[[], Iterable[int]], patience: float) -> None:
        self._groups = groups
        self._patience = patience
        self._turned = time.monotonic()
        self._stop = threading.Event()
        # A daemon: it must not keep a process alive whose main thread has ended.
        self._thread = threading.Thread(target=self._run, name="mulligan-watchdog", daemon=True)

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()

    def turn(self) -> None:
        """Record that the supervisor's loop made a turn."""
        self._turned = time.monotonic()

    def _run(self) -> None:
        # On the event, not with sleep: closing the supervisor does not wait for the next poll.
        while not self._stop.wait(min(POLL_SECONDS, self._patience)):
            if time.monotonic() - self._turned >= self._patience:
                # A blocked loop reaps no process, so these pids cannot have been reused.
                end_stopped({*self._groups()})


def end_stopped(groups: set[int]) -> list[int]:
    """End the process groups that have a stopped process, and return them."""
    ended = {group for pid in pids() if (group := _stopped_group(pid)) in groups}
    for group in ended:
        # SIGKILL: a stopped process handles no other signal. LMDB rolls its transaction back.
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    return sorted(ended)


def _stopped_group(pid: int) -> int:
    """Return the group of a process that is stopped; 0 for one that is not."""
    found = stat(pid)
    return found.group if found is not None and found.is_stopped else 0
