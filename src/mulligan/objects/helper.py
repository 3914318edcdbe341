"""One more thread: compression and decompression leave the interpreter free meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Helper:
    """A thread beside the caller's, made when there is a first job for it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None

    def do(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a job done, one after the other."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "mulligan-helper")
            return self._pool.submit(job, *args, **kwargs)

    def close(self) -> None:
        """Wait for what is being done and end the thread; a later job makes another."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
