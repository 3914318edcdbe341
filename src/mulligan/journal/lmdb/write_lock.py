"""The write lock of LMDB: who holds it, and waits for it that take long."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from mulligan.journal.lmdb import layout, lockfile
from mulligan.journal.lock_owner import (
    REPORT_AFTER_SECONDS,
    STOPPED_POLL_SECONDS,
    LockOwner,
    OnWait,
)
from mulligan.procfs import PROC, STOPPED

POLL_SECONDS = 0.5
"""How often the monitor looks at the waits of this process."""


def find_write_lock_owner(directory: Path) -> LockOwner | None:
    """Return who has the lock of the writers of a journal; None if nobody is seen to have it.

    The lock says which thread has it. It is only believed of a process that has the lock's file
    mapped: from within another container the same number may be somebody else. Where the layout of
    the lock file is not known, the owner is not either.
    """
    if not layout.has_known_lock():
        return None
    try:
        thread = _owner(directory)
        if thread == 0 or not _maps(thread, directory / lockfile.NAME):
            return None
        status = (PROC / str(thread) / "status").read_text(errors="replace")
        command = (PROC / str(thread) / "cmdline").read_bytes()
        return LockOwner(
            pid=int(_field(status, "Tgid")),
            command=os.fsdecode(command).replace("\0", " ").strip() or _field(status, "Name"),
            is_stopped=_field(status, "State")[:1] in STOPPED,
        )
    except (OSError, ValueError):
        return None  # gone meanwhile, or another user's


def _owner(directory: Path) -> int:
    """Return the thread in the word of the writers' mutex; 0 if it is free."""
    lock = lockfile.LockFile(directory)
    try:
        return layout.write_lock_thread(lock.read(layout.LOCK_SIZE))
    finally:
        lock.release()


def _maps(pid: int, file: Path) -> bool:
    inode = str(file.stat().st_ino)
    lines = (PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
    return any(line.split()[4] == inode and line.endswith(lockfile.NAME) for line in lines)


def _field(status: str, name: str) -> str:
    found = (line for line in status.splitlines() if line.startswith(f"{name}:"))
    return next(found, ":").partition(":")[2].strip()


class LockWaitMonitor:
    """Knows which threads of this process wait to write; entered for as long as one does.

    A process that is stopped while it holds the lock is waited for outside of LMDB, where a signal,
    or an exception from ``on_wait``, ends the wait. A thread reports the other waits.
    """

    def __init__(
        self, directory: Path, on_wait: OnWait, after: float = REPORT_AFTER_SECONDS
    ) -> None:
        self._directory = directory
        self._on_wait = on_wait
        self._after = after
        self._since: dict[int, float] = {}
        self._reported: dict[int, LockOwner | None] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self._wait_for_stopped()
        self._since[threading.get_ident()] = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mulligan-waits", daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._since.pop(threading.get_ident(), None)

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()

    def _wait_for_stopped(self) -> None:
        began, is_reported = time.monotonic(), False
        while (holder := find_write_lock_owner(self._directory)) is not None and holder.is_stopped:
            if not is_reported and time.monotonic() - began >= self._after:
                self._on_wait(holder)
                is_reported = True
            time.sleep(STOPPED_POLL_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(min(POLL_SECONDS, self._after)):
            since = dict(self._since)
            self._reported = {
                thread: reported for thread, reported in self._reported.items() if thread in since
            }
            now = time.monotonic()
            late = [thread for thread, began in since.items() if now - began >= self._after]
            if late:
                self._look(late)

    def _look(self, late: list[int]) -> None:
        """Tell once of a wait, and again if whoever is waited for turns out to be stopped."""
        holder = find_write_lock_owner(self._directory)
        reported = {self._reported.get(thread) for thread in late if thread in self._reported}
        is_news = holder is not None and holder.is_stopped and holder not in reported
        if not reported or is_news:
            self._on_wait(holder)
        self._reported |= dict.fromkeys(late, holder)
