"""Waiting to write: noticed when it takes long, with the process that keeps everybody waiting.

One process writes at a time. One that was stopped (SIGSTOP, Ctrl-Z) inside a write has the lock
for as long as it is stopped, and nothing else would tell who that is.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from mulligan import procfs
from mulligan.journal.lmdb import lockfile

REPORT_AFTER_SECONDS = 3.0
"""Seconds after which waiting is worth a word."""

POLL_SECONDS = 0.5
"""Seconds between two looks at who waits."""

STOPPED_POLL_SECONDS = 0.05
"""Seconds between two looks at whether a process that was stopped goes on."""

WRITING = "writing to the store"

_PROC = Path("/proc")
_MAGIC = 0xBEEFC0DE
_MUTEX = 64
"""Where LMDB's lock file has the mutex of the writers, on a cache line of its own."""
_TID = 0x3FFFFFFF
"""The bits of a robust mutex's word that are its owner's thread."""
_STOPPED = "Tt"


class LockOwner(msgspec.Struct, frozen=True):
    """The process that has a lock: its number, its command, and whether it is stopped."""

    pid: int
    command: str
    is_stopped: bool
    doing: str = WRITING
    """What it is waited for, as part of a sentence."""


OnWait = Callable[[LockOwner | None], None]
"""Is told for whom this process waits; None where that cannot be found out."""


def find_write_lock_owner(directory: Path) -> LockOwner | None:
    """Return who has the lock of the writers of a journal; None if nobody is seen to have it.

    The lock says which thread has it. It is only believed of a process that has the lock's file
    mapped: from within another container the same number may be somebody else.
    """
    try:
        thread = _owner(directory)
        if thread == 0 or not _maps(thread, directory / lockfile.NAME):
            return None
        status = (_PROC / str(thread) / "status").read_text(errors="replace")
        command = (_PROC / str(thread) / "cmdline").read_bytes()
        return LockOwner(
            pid=int(_field(status, "Tgid")),
            command=os.fsdecode(command).replace("\0", " ").strip() or _field(status, "Name"),
            is_stopped=_field(status, "State")[:1] in _STOPPED,
        )
    except (OSError, ValueError):
        return None  # gone meanwhile, or another user's


def find_flock_owner(handle: int, doing: str) -> LockOwner | None:
    """Return who has the ``flock`` of an open file, which this process waits for.

    None if no process is seen to have it: it may run in another container.
    """
    inode = str(os.fstat(handle).st_ino)
    try:
        # 1: FLOCK  ADVISORY  WRITE 4711 08:01:131073 0 EOF; a lock that is waited for has an arrow
        lines = [line.split() for line in (_PROC / "locks").read_text().splitlines()]
    except OSError:
        return None
    locks = [words for words in lines if words[1:2] == ["FLOCK"] and len(words) > 5]
    pids = [int(words[4]) for words in locks if words[5].rpartition(":")[2] == inode]
    for pid in pids:
        if pid > 0 and _has_open(pid, handle):
            return LockOwner(pid, procfs.command(pid), procfs.is_stopped(pid), doing)
    return None


def _has_open(pid: int, handle: int) -> bool:
    """Whether a process has a file open: the same number of an inode may be another device's."""
    with suppress(OSError):
        own = os.fstat(handle)
        entries = (_PROC / str(pid) / "fd").iterdir()
        return any(os.path.samestat(entry.stat(), own) for entry in entries)
    return False


def _owner(directory: Path) -> int:
    """Return the thread in the word of the writers' mutex; 0 if it is free."""
    lock = lockfile.LockFile(directory)
    try:
        data = lock.read(_MUTEX + 4)
    finally:
        lock.release()
    if len(data) < _MUTEX + 4 or struct.unpack_from("=I", data)[0] != _MAGIC:
        return 0
    word: int = struct.unpack_from("=I", data, _MUTEX)[0]
    return word & _TID


def _maps(pid: int, file: Path) -> bool:
    inode = str(file.stat().st_ino)
    lines = (_PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
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
