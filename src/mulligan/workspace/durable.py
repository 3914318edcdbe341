"""Making several files durable at once: they share what one alone would have to wait for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from threading import Lock, Thread

THREADS = 2
"""How many syncs are under way together: the disk does some of their work once.

More would take longer to start than they save where the disk is quick.
"""


def sync_all(handles: Iterable[int]) -> dict[int, OSError]:
    """Sync open files and directories, and return the errors of those where it failed."""
    left, lock = iter(list(handles)), Lock()
    errors: dict[int, OSError] = {}

    def rest() -> Iterator[int]:
        while True:
            with lock:
                handle = next(left, None)
            if handle is None:
                return
            yield handle

    def work() -> None:
        for handle in rest():
            try:
                os.fsync(handle)
            except OSError as error:
                errors[handle] = error

    others = [Thread(target=work, daemon=True) for _ in range(THREADS - 1)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    return errors
