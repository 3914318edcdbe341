"""A helper thread for compression and decompression, which release the interpreter lock.

``concurrent.futures`` is slow to import, and most programs that open a store never need it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

P = ParamSpec("P")
T = TypeVar("T")


class Helper:
    """A helper thread that starts with its first job."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None

    def do(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a job in the thread; jobs run one at a time."""
        # Under the lock: two threads must not start two pools, nor one submit to a closed pool.
        with self._lock:
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor

                self._pool = ThreadPoolExecutor(1, "mulligan-helper")
            return self._pool.submit(job, *args, **kwargs)

    def done(self, result: T) -> Future[T]:
        """Return what ``do`` returns, for a job that the caller has already done."""
        from concurrent.futures import Future

        future: Future[T] = Future()
        future.set_result(result)
        return future

    def close(self) -> None:
        """Wait for the running job and end the thread; a later job starts a new one."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            # Without the lock: the running job may take a while, and ``do`` must not wait for it.
            pool.shutdown()
