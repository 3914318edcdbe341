"""Deleting many files: several at a time where the disk makes each one wait.

A filesystem may wait for the disk whenever it frees blocks (ext4 without a journal, mounted with
``discard``, does): then a restore of some thousand files would spend most of its time on deleting
what it replaced. Elsewhere one thread is quicker, so others are only started once that has proved
slow.
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
"""Seconds that all deletions together may take before others help with them."""

MAX_QUEUED_FILES = 64
"""How many files may be left to be deleted; each keeps a directory open."""

Key = TypeVar("Key")


class Deleter(Generic[Key]):
    """Deletes files, at once or soon; ``failed`` is told of errors, in the caller's thread."""

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
            self._queue.put((key, os.dup(parent), name))
            return
        started = time.perf_counter()
        os.unlink(name, dir_fd=parent)
        self._patience -= time.perf_counter() - started

    def settle(self) -> None:
        """Wait until all is deleted that was to be."""
        self._queue.join()
        errors, self._errors = self._errors, []
        for key, error in errors:
            self._failed(key, error)

    def close(self) -> None:
        """Delete what is left, and let the threads end. Idempotent."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _start(self) -> bool:
        """Start the threads; return whether there are any, for the system may allow no more."""
        while len(self._threads) < DELETE_THREADS:
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
                self._errors.append((key, error))
            finally:
                os.close(parent)
                self._queue.task_done()
        self._queue.task_done()
