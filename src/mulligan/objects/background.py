"""A helper thread for compression and decompression, which release the interpreter lock.

Not one of ``concurrent.futures``: those take no work while a program exits, and share a lock that a
fork of another thread holds while it waits for the transactions of this one. They are slow to
import, too, and with them comes ``logging``, which complains when it is first imported beside a
fork.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from sys import is_finalizing
from threading import Event, Lock, Thread, current_thread
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar
from weakref import finalize

if TYPE_CHECKING:
    from queue import SimpleQueue

P = ParamSpec("P")
T = TypeVar("T")


class Job(Generic[T]):
    """A call that the helper thread makes, and its result."""

    __slots__ = ("_call", "_error", "_is_over", "_result")

    _result: T

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._is_over = Event()

    def run(self) -> None:
        """Make the call."""
        try:
            self._result = self._call()
        except BaseException as error:
            # Raised where the result is asked for.
            self._error = error
        self._is_over.set()
        del self._call  # it refers to what was compressed

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._is_over.is_set()

    def result(self) -> T:
        """Wait for the end of the call, and return its result or raise its error."""
        if is_finalizing() and not self.done():
            self.run()  # the thread stands still, maybe in the middle of the call
        self._is_over.wait()
        if self._error is not None:
            raise self._error
        return self._result


class Helper:
    """A helper thread that starts with its first job."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._thread: Thread | None = None
        self._jobs: SimpleQueue[Job[object] | None]

    def do(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Make a call in the thread; jobs run one at a time."""
        job = Job(partial(call, *args, **kwargs))
        # Under the lock: two threads must not start two, nor one add a job to a thread that ends.
        with self._lock:
            if not is_finalizing() and (self._thread is not None or self._start()):
                self._jobs.put(job)  # type: ignore[arg-type]  # its result is of no concern there
                return job
        job.run()
        return job

    def _start(self) -> bool:
        """Start the thread; return whether there is one, since a program that exits starts none."""
        from queue import SimpleQueue  # most programs that open a store need none

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

    def done(self, result: T) -> Job[T]:
        """Return what ``do`` returns, for a job that the caller has already done."""
        job = Job(lambda: result)
        job.run()
        return job

    def close(self) -> None:
        """Finish the jobs and end the thread; a later job starts a new one."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._jobs.put(None)
        # At the end of the interpreter, other threads never run again. In the thread itself,
        # garbage is collected, too, which may close a store.
        if not is_finalizing() and thread is not current_thread():
            # Without the lock: the running job may take a while, and ``do`` must not wait for it.
            thread.join()


def _work(jobs: SimpleQueue[Job[object] | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        del job  # and its result, which another thread may be done with before the next job
