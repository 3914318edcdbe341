"""The write lock of LMDB: which process holds it, and how long waits are reported."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

from mulligan import procfs
from mulligan.journal.lmdb import layout, lockfile
from mulligan.journal.lock_owner import (
    REPORT_AFTER_SECONDS,
    STOPPED_POLL_SECONDS,
    LockOwner,
    OnWait,
)

POLL_SECONDS = 0.5
"""How often the monitor looks at the waits of this process."""


def find_write_lock_owner(directory: Path) -> LockOwner | None:
    """Return the owner of a journal's write lock; None if it is free or the owner is not visible.

    The lock holds the number of its thread. That counts only for a process that has the lock file
    mapped: in another container, the same number may be another process. If the layout of the lock
    file is unknown, so is the owner.
    """
    if not layout.has_known_lock():
        return None
    try:
        thread = _owner(directory)
        if thread == 0 or not procfs.has_mapped(thread, directory / lockfile.NAME):
            return None
    except (OSError, ValueError):
        return None  # it has ended, or belongs to another user
    stat, status = procfs.stat(thread), procfs.status(thread)
    if stat is None or status is None:
        return None
    return LockOwner(int(status["Tgid"]), procfs.command(thread), stat.is_stopped)


def _owner(directory: Path) -> int:
    """Return the thread in the word of the writers' mutex; 0 if it is free."""
    lock = lockfile.LockFile(directory)
    try:
        return layout.write_lock_thread(lock.read(layout.LOCK_SIZE))
    finally:
        lock.release()


class LockWaitMonitor:
    """Tracks the threads of this process that wait to write; each enters it while it waits.

    If the lock's owner is stopped, the wait happens outside LMDB, where a signal, or an exception
    from ``on_wait``, can end it. A thread reports the other waits.
    """

    def __init__(self, directory: Path, on_wait: OnWait) -> None:
        self._directory = directory
        self._on_wait = on_wait
        # No lock, which a fork could copy while it is held: each thread touches only its own key.
        self._since: dict[int, float] = {}
        self._reported: dict[int, LockOwner | None] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        # Before LMDB waits for its mutex: that wait cannot be interrupted.
        self._wait_for_stopped()
        self._since[threading.get_ident()] = time.monotonic()
        if self._thread is None:
            # A daemon: it must not keep a program from exiting.
            thread = threading.Thread(target=self._run, name="mulligan-waits", daemon=True)
            with suppress(RuntimeError):  # the program exits, or may have no more threads
                thread.start()
                self._thread = thread

    def __exit__(self, *_: object) -> None:
        self._since.pop(threading.get_ident(), None)

    def stop(self) -> None:
        """Stop the monitor."""
        self._stop.set()

    def _wait_for_stopped(self) -> None:
        began, is_reported = time.monotonic(), False
        while (holder := find_write_lock_owner(self._directory)) is not None and holder.is_stopped:
            if not is_reported and time.monotonic() - began >= REPORT_AFTER_SECONDS:
                self._on_wait(holder)
                is_reported = True
            # Polled: nothing tells when a process is continued.
            time.sleep(STOPPED_POLL_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(min(POLL_SECONDS, REPORT_AFTER_SECONDS)):
            # A copy: other threads start and end their waits during the loop.
            since = dict(self._since)
            self._reported = {
                thread: reported for thread, reported in self._reported.items() if thread in since
            }
            now = time.monotonic()
            late = [
                thread for thread, began in since.items() if now - began >= REPORT_AFTER_SECONDS
            ]
            if late:
                self._look(late)

    def _look(self, late: list[int]) -> None:
        """Report a wait once, and again if the owner of the lock turns out to be stopped."""
        holder = find_write_lock_owner(self._directory)
        reported = {self._reported.get(thread) for thread in late if thread in self._reported}
        is_news = holder is not None and holder.is_stopped and holder not in reported
        if not reported or is_news:
            self._on_wait(holder)
        self._reported |= dict.fromkeys(late, holder)
