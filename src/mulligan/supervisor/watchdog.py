"""The guard: ends stopped agents when the supervisor itself is held up.

An agent that is stopped (SIGSTOP) in the middle of a write keeps the lock of the journal's writers.
The supervisor waits for it at its own next write, and would never come to see that it hangs. So a
thread that writes nothing watches whether the supervisor gets on.
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
"""Seconds that the supervisor may be held up before stopped agents are ended."""

POLL_SECONDS = 1.0


class Watchdog:
    """Watches over a supervisor's loop; ``groups`` are the process groups of its agents."""

    def __init__(
        self, groups: Callable[[], Iterable[int]], patience: float = STALL_SECONDS
    ) -> None:
        self._groups = groups
        self._patience = patience
        self._turned = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mulligan-guard", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._stop.set()

    def turn(self) -> None:
        """Take note that the supervisor gets on."""
        self._turned = time.monotonic()

    def _run(self) -> None:
        while not self._stop.wait(min(POLL_SECONDS, self._patience)):
            if time.monotonic() - self._turned >= self._patience:
                # Their leaders are not waited for while the loop stands still, so the numbers hold.
                end_stopped({*self._groups()})


def end_stopped(groups: set[int]) -> list[int]:
    """End those process groups of which a process is stopped; return which."""
    ended = {group for pid in pids() if (group := _stopped_group(pid)) in groups}
    for group in ended:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    return sorted(ended)


def _stopped_group(pid: int) -> int:
    """Return the group of a process that is stopped; 0 for one that is not."""
    found = stat(pid)
    return found.group if found is not None and found.is_stopped else 0
