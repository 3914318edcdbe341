"""A helper thread for compression and decompression, which release the interpreter lock.

Not one of ``concurrent.futures``: those take no work while a program exits, and share a lock that a
fork of another thread holds while it waits for the transactions of this one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from weakref import finalize

if TYPE_CHECKING:
    from concurrent.futures import Future
    from queue import SimpleQueue

P = ParamSpec("P")
T = TypeVar("T")


class Helper:
    """A helper thread that starts with its first job."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._thread: Thread | None = None
        self._jobs: SimpleQueue[Callable[[], None] | None]

    def do(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a job in the thread; jobs run one at a time."""
        from concurrent.futures import Future  # slow to import, and most programs need none

        future: Future[T] = Future()
        work = partial(_run, future, partial(job, *args, **kwargs))
        # Under the lock: two threads must not start two, nor one add a job to a thread that ends.
        with self._lock:
            if self._thread is not None or self._start():
                self._jobs.put(work)
                return future
        work()
        return future

    def _start(self) -> bool:
        """Start the thread; return whether there is one, since a program that exits starts none."""
        from queue import SimpleQueue

        self._jobs = SimpleQueue()
        # A daemon: a store that is not closed must not keep a program from exiting.
        thread = Thread(target=_work, args=(self._jobs,), name="mulligan-helper", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        finalize(self, self._jobs.put, None).atexit = False
        return True

    def done(self, result: T) -> Future[T]:
        """Return what ``do`` returns, for a job that the caller has already done."""
        from concurrent.futures import Future

        future: Future[T] = Future()
        future.set_result(result)
        return future

    def close(self) -> None:
        """Finish the jobs and end the thread; a later job starts a new one."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._jobs.put(None)
        # Without the lock: the running job may take a while, and ``do`` must not wait for it.
        thread.join()


def _work(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := jobs.get()) is not None:
        work()
        del work  # it refers to what was compressed


def _run(future: Future[Any], job: Callable[[], Any]) -> None:
    try:
        result = job()
    except BaseException as error:
        # Raised where the result is asked for.
        future.set_exception(error)
    else:
        future.set_result(result)
