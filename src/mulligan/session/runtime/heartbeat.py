"""Heartbeats: a small file that shows a supervisor that its agent is alive and makes progress.

Its modification time is the heartbeat. Its content says how long the current step may take, so that
a slow call to a model is not taken for a hang.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from mulligan.decoding import ready

HEARTBEAT_SECONDS = 1.0
"""Seconds between two heartbeats."""


class AgentStep(msgspec.Struct, frozen=True):
    """What an agent is doing, and how many seconds it may take from its start."""

    deadline: float | None = None
    doing: str | None = None
    number: int = 0
    """Counts the steps, so that a new step with the same name is recognised."""


class HeartbeatWriter:
    """Writes heartbeats from its own thread until stopped; a second thread calls ``also``."""

    def __init__(
        self, file: Path, also: Callable[[], None], interval: float = HEARTBEAT_SECONDS
    ) -> None:
        self._file = file
        self._also = also
        self._interval = interval
        self._stop = threading.Event()
        self._pid = os.getpid()
        self._steps = 0
        # A separate thread: ``also`` may wait for a lock, and no heartbeat may wait with it.
        self._threads = [
            threading.Thread(target=run, name="mulligan-heart", daemon=True)
            for run in (self._run, self._run_also)
        ]

    def start(self) -> None:
        """Start the heartbeats."""
        self.beat()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the heartbeats."""
        self._stop.set()
        for thread in self._threads:
            # Not in a forked process, where the threads do not exist. Bounded: `also` may wait for
            # a lock that the caller holds.
            if self._pid == os.getpid() and thread.is_alive():
                thread.join(self._interval)

    def beat(self) -> None:
        """Write one heartbeat."""
        with open(self._file, "ab"):
            os.utime(self._file)

    def expect(self, deadline: float | None, doing: str | None = None) -> None:
        """Announce how many seconds the step that begins now may take; None sets no limit.

        It replaces the previous announcement, and counts as a heartbeat.
        """
        temporary = self._file.with_name(self._file.name + ".draft")
        self._steps += 1
        # The directory is gone only if the store is; the next safe point or write reports that.
        with suppress(FileNotFoundError, NotADirectoryError):
            # Renamed into place: the supervisor must never read a partial step. Not synced:
            # after a power failure there is no process that it could describe.
            temporary.write_bytes(msgspec.json.encode(AgentStep(deadline, doing, self._steps)))
            os.replace(temporary, self._file)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self.beat()
            except (FileNotFoundError, NotADirectoryError):
                return  # the directory is gone, and so is the supervisor that would read it
            except OSError:
                continue  # one beat is missed; the supervisor waits for several

    def _run_also(self) -> None:
        while not self._stop.wait(self._interval):
            self._also()


def read_step(file: Path) -> tuple[int, AgentStep]:
    """Return the time of the last heartbeat in nanoseconds, and the current step."""
    try:
        # The time first: a heartbeat between the two reads then only looks older than it is.
        status = os.stat(file)
        data = file.read_bytes()
    except OSError:
        return 0, AgentStep()
    try:
        step = msgspec.json.decode(data, type=ready(AgentStep)) if data else AgentStep()
        return status.st_mtime_ns, step
    except ValueError:  # not JSON, not a step, or not UTF-8: a heartbeat without a step
        return status.st_mtime_ns, AgentStep()
