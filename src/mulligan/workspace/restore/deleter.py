"""Delete many files, several at a time where the disk makes each one wait.

A filesystem may wait for the disk whenever it frees blocks (ext4 without a journal, mounted with
``discard``, does). A restore of some thousand files would then spend most of its time deleting what
it replaced. Elsewhere one thread is faster, so more are started only once deletions prove slow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from queue import Queue
from threading import Thread
from typing import Generic, TypeVar

from mulligan.workspace.handles import room_for

DELETE_THREADS = 8
SERIAL_SECONDS = 0.05
"""Total seconds of deletions after which threads are started."""

MAX_QUEUED_FILES = 64
"""Maximum number of queued deletions; each keeps a directory open."""

Key = TypeVar("Key")


class Deleter(Generic[Key]):
    """Delete files now or soon; ``failed`` gets the errors, in the caller's thread."""

    def __init__(
        self, failed: Callable[[Key, OSError], None], *, patience: float | None = None
    ) -> None:
        self._failed = failed
        self._patience = SERIAL_SECONDS if patience is None else patience
        self._threads: list[Thread] = []
        self._queue: Queue[tuple[Key, int, bytes] | None] = Queue(room_for(MAX_QUEUED_FILES))
        self._errors: list[tuple[Key, OSError]] = []

    def unlink(self, key: Key, parent: int, name: bytes) -> None:
        """Delete a file in an open directory, by the next :meth:`settle` at the latest."""
        if self._patience < 0 and self._start():
            # A duplicate, because the caller may close its handle first. The queue is bounded: put
            # blocks instead of exhausting the open-file limit.
            self._queue.put((key, os.dup(parent), name))
            return
        started = time.perf_counter()
        os.unlink(name, dir_fd=parent)
        self._patience -= time.perf_counter() - started

    def settle(self) -> None:
        """Wait until all queued deletions are done."""
        self._queue.join()
        errors, self._errors = self._errors, []
        for key, error in errors:
            self._failed(key, error)

    def close(self) -> None:
        """Finish the queued deletions and end the threads. Idempotent."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _start(self) -> bool:
        """Start the threads; return whether there are any, since the system may allow none."""
        while len(self._threads) < DELETE_THREADS:
            # A daemon: a program that is interrupted must not wait for deletions.
            thread = Thread(target=self._work, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                break
            self._threads.append(thread)
        return bool(self._threads)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            key, parent, name = item
            try:
                os.unlink(name, dir_fd=parent)
            except OSError as error:
                # Reported by settle in the caller's thread; list.append is atomic.
                self._errors.append((key, error))
            finally:
                os.close(parent)
                self._queue.task_done()
        self._queue.task_done()
