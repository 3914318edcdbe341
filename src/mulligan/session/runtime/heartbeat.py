"""Heartbeats: a small file that tells a supervisor that its agent lives and gets on.

Its modification time is the sign of life; its content says until when the step under way should
be over, so that a slow call to a model is not taken for a hang.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

HEARTBEAT_SECONDS = 1.0
"""Seconds between two signs of life."""


class AgentStep(msgspec.Struct, frozen=True):
    """What an agent is doing, and how many seconds it may take from when it said so."""

    deadline: float | None = None
    doing: str | None = None
    number: int = 0
    """Counts the steps, so that a new one shows even if it is said in the same words."""


class HeartbeatWriter:
    """Beats from a thread of its own until it is stopped; ``also`` is called now and then, too."""

    def __init__(
        self, file: Path, also: Callable[[], None], interval: float = HEARTBEAT_SECONDS
    ) -> None:
        self._file = file
        self._also = also
        self._interval = interval
        self._stop = threading.Event()
        self._pid = os.getpid()
        self._steps = 0
        # Apart, so that no sign of life has to wait for whatever else is done.
        self._threads = [
            threading.Thread(target=run, name="mulligan-heart", daemon=True)
            for run in (self._run, self._run_also)
        ]

    def start(self) -> None:
        """Begin to beat."""
        self.beat()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Beat no more."""
        self._stop.set()
        for thread in self._threads:
            if self._pid == os.getpid() and thread.is_alive():
                thread.join(self._interval)

    def beat(self) -> None:
        """Give one sign of life."""
        with open(self._file, "ab"):
            os.utime(self._file)

    def expect(self, deadline: float | None, doing: str | None = None) -> None:
        """Say how many seconds the step that begins now may take; None is for as long as it likes.

        It takes the place of what was said before, and is a sign of life, too.
        """
        draft = self._file.with_name(self._file.name + ".draft")
        self._steps += 1
        # The directory goes with the store, of which the next safe point or write tells.
        with suppress(FileNotFoundError, NotADirectoryError):
            draft.write_bytes(msgspec.json.encode(AgentStep(deadline, doing, self._steps)))
            os.replace(draft, self._file)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self.beat()
            except (FileNotFoundError, NotADirectoryError):
                return  # the directory is gone, and with it the supervisor that would look
            except OSError:
                continue  # one beat is missed; the supervisor waits for several

    def _run_also(self) -> None:
        while not self._stop.wait(self._interval):
            self._also()


def read_step(file: Path) -> tuple[int, AgentStep]:
    """Return when the last sign of life was, in nanoseconds, and the step under way."""
    try:
        status = os.stat(file)
        data = file.read_bytes()
    except OSError:
        return 0, AgentStep()
    try:
        return status.st_mtime_ns, msgspec.json.decode(
            data, type=AgentStep
        ) if data else AgentStep()
    except ValueError:  # not JSON, not a step, or not UTF-8: a heartbeat that says nothing more
        return status.st_mtime_ns, AgentStep()
