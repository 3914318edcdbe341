"""Threads that answer requests in order, so that reading the next one never waits."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

Job = Callable[[], None]


class Lane:
    """One thread and its queue. Jobs must not raise."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # A daemon: a job that hangs, for example on a lock of a stopped process, must not keep the
        # server alive after its client is gone.
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def finish(self, seconds: float) -> None:
        """Let the queued jobs be done, for at most this long."""
        self._jobs.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
