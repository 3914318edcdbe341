"""The thread behind an asynchronous handle: its calls one after the other, and its batch.

``mulligan.aio`` is made of it. When the cancellation of a call is raised, the call has ended, or
was not made: one that waits for its turn is taken back, one that the thread has started is waited
for. What was entered is left, and what was opened is closed, before the cancellation goes on.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from mulligan.errors import BatchOpen, StoreClosed

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_INSIDE: ContextVar[tuple[object, ...]] = ContextVar("mulligan_aio_batches", default=())
"""The batches that were open where this task began, or that it opened; tasks copy it."""


class NotStarted(Exception):
    """An act was recorded, and cancelled before it started: it did not happen."""


class Closable(Protocol):
    """Something that is closed: a store or a session."""

    def close(self) -> None:
        """Close it."""
        ...


C = TypeVar("C", bound=Closable)


async def finished(made: Future[R], keep: Callable[[R], None] | None = None) -> R:
    """Wait for a call of a thread, and return its result.

    A cancellation takes a call back that has not started, and waits for one that has. ``keep``
    then gets the result, which has no other taker.
    """
    waiting = asyncio.wrap_future(made)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if not made.cancel():
            await _ended(waiting if keep is None else asyncio.wrap_future(_kept(made, keep)))
        raise


async def to_end(made: Future[R]) -> R:
    """Wait for a call of a thread that must be made, whatever is cancelled meanwhile."""
    waiting = asyncio.wrap_future(made)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError as cancelled:
        await _ended(waiting)
        failure = made.exception()
        if failure is not None:
            # A cancellation must not be swallowed, and a failed write must be seen.
            raise cancelled from failure
        raise


async def _ended(call: asyncio.Future[Any], again: Callable[[], None] | None = None) -> None:
    """Wait for the end of a call, however often the waiting task is cancelled."""
    while not call.done():
        try:
            await asyncio.wait({call})
        except asyncio.CancelledError:  # the caller raises the first one
            if again is not None:
                again()
    if not call.cancelled():
        call.exception()  # retrieved, or asyncio logs that it never was


def _kept(made: Future[R], keep: Callable[[R], None]) -> Future[None]:
    """Hand the result of a call over when it ends; return what ends after that."""
    done: Future[None] = Future()

    def hand_over(made: Future[R]) -> None:
        try:
            if made.exception() is None:
                keep(made.result())
        finally:
            done.set_result(None)

    # In the thread, as soon as the call ends: the next call finds what was kept.
    made.add_done_callback(hand_over)
    return done


async def opened_in_thread(call: Callable[[], C]) -> C:
    """Open something in a thread of its own; it is closed again if that is cancelled."""
    _check_asyncio()
    with ThreadPoolExecutor(1, "mulligan-open") as executor:
        return await _opened(executor.submit(call))


async def _opened(made: Future[C]) -> C:
    kept: list[C] = []
    try:
        return await finished(made, kept.append)
    except asyncio.CancelledError as cancelled:
        # A handle that is lost would keep its lease until the process ends. In a thread of its
        # own: that of the store may have ended meanwhile.
        with ThreadPoolExecutor(1, "mulligan-close") as executor:
            for one in kept:
                await _closed_again(executor.submit(one.close), cancelled)
        raise


async def _closed_again(closed: Future[None], cancelled: asyncio.CancelledError) -> None:
    try:
        await to_end(closed)
    except asyncio.CancelledError:
        return  # the caller raises the first one
    except Exception as failure:
        raise cancelled from failure


def _check_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "mulligan.aio needs a running event loop of asyncio. Under trio, make the synchronous "
            "calls in threads: await trio.to_thread.run_sync(session.state.get, path)."
        ) from None


class Worker:
    """The thread that makes the calls of one handle, and the batch that is open there."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._functions: ThreadPoolExecutor | None = None
        # Held by the task whose batch is open, and by others until their call is queued: so no call
        # of another task gets into a batch.
        self._gate = asyncio.Lock()
        self._owner: asyncio.Task[Any] | None = None
        self._batch: object = None
        self._closed: Future[None] | None = None
        self._close_later: Callable[[], None] | None = None

    def submit(self, call: Callable[[], R]) -> Future[R]:
        """Queue a call; the thread makes it after those that were queued before."""
        if self._closed is not None:
            raise StoreClosed(f"The handle {self._name!r} was closed.", hint="Open it again.")
        return self._executor.submit(call)

    async def call(self, call: Callable[[], R], keep: Callable[[R], None] | None = None) -> R:
        """Make a call, after the batch of another task if one is open.

        ``keep`` gets the result of a call that was made although its caller was cancelled.
        """
        return await finished(await self._queued(call), keep)

    async def open(self, call: Callable[[], C]) -> C:
        """Make a call that opens something; it is closed again if the caller is cancelled."""
        return await _opened(await self._queued(call))

    async def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        returned: Callable[[Any], None],
    ) -> None:
        """Run the function of a step, and hand its result over.

        One that is no coroutine function runs in a thread, beside the calls of this handle. It
        cannot be stopped: a cancellation waits for its end, and its result counts.
        """
        if inspect.iscoroutinefunction(function):
            returned(await function(*args, **kwargs))
            return
        call = partial(copy_context().run, function, *args, **kwargs)
        returned(await finished(self._beside().submit(call), returned))

    async def beside(self, call: Callable[[], R], stop: Callable[[], None]) -> R:
        """Make a call in another thread, so that this handle has its own for other tasks.

        A cancellation stops it, and waits for its end; ``stop`` is called for each one.
        """
        made = self._beside().submit(call)
        waiting = asyncio.wrap_future(made)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not made.cancel():
                stop()
                await _ended(waiting, stop)
            raise

    @asynccontextmanager
    async def batch(self, manager: AbstractContextManager[T]) -> AsyncIterator[T]:
        """Open a batch for the current task, and keep the others out until it ends."""
        if self._is_owner():
            async with self.context(manager) as inner:
                yield inner
            return
        self._check_outside()
        async with self._gate:
            before = _INSIDE.get()
            self._owner, self._batch = asyncio.current_task(), object()
            _INSIDE.set((*before, self._batch))
            try:
                async with self.context(manager) as opened:
                    yield opened
            finally:
                self._owner = self._batch = None
                _INSIDE.set(before)
                if self._close_later is not None:
                    self._start_closing(self._close_later)

    @asynccontextmanager
    async def context(
        self, manager: AbstractContextManager[T], *, is_act: bool = False
    ) -> AsyncIterator[T]:
        """Enter and leave a context manager in the thread.

        ``is_act`` says that it records an act, which has failed if its block does not start.
        """
        ends = _Ends(manager)
        try:
            entered = await finished(self.submit(ends.enter))
        except asyncio.CancelledError as cancelled:
            # Its block will not run: left, so that it holds nothing forever.
            if ends.is_entered:
                error = NotStarted("cancelled before it started") if is_act else cancelled
                await to_end(self.submit(partial(ends.leave, error)))
            raise
        try:
            yield entered
        except GeneratorExit as error:
            # Its event loop is gone, and nothing can be awaited.
            with suppress(StoreClosed):
                self.submit(partial(ends.leave, error))
            raise
        except BaseException as error:
            if not await to_end(self.submit(partial(ends.leave, error))):
                raise
        else:
            await to_end(self.submit(ends.leave))

    async def close(self, close: Callable[[], None]) -> None:
        """Make the last call, after an open batch, and end the thread. Idempotent."""
        if self._is_owner():
            raise BatchOpen(
                "A batch is open on this session.",
                hint="Nothing was closed. Close the session after the batch.",
            )
        self._check_outside()
        async with self._gate:
            closed = self._start_closing(close)
        await to_end(closed)

    async def leave(self, close: Callable[[], None], error: BaseException | None) -> None:
        """Close at the end of an ``async with`` block: there is no second try."""
        if isinstance(error, GeneratorExit):
            self._start_closing(close)  # its event loop is gone, and nothing can be awaited
            return
        try:
            await self.close(close)
        except asyncio.CancelledError:
            if self._batch is not None:
                # Another task has a batch open. Waiting for it could be waiting for this task.
                self._close_later = close
            else:
                # It has just ended, and this task was cancelled before its turn came.
                self._start_closing(close)
            raise

    def _start_closing(self, close: Callable[[], None]) -> Future[None]:
        if self._closed is None:
            closed = self._executor.submit(close)
            self._closed = closed
            # Not before the call is queued: the batch of another task needs the thread to end.
            self._executor.shutdown(wait=False)
            if self._functions is not None:
                self._functions.shutdown(wait=False)
        return self._closed

    async def _queued(self, call: Callable[[], R]) -> Future[R]:
        if self._is_owner():
            return self.submit(call)
        self._check_outside()
        # Held only until the call is queued: from then on the thread keeps the order.
        async with self._gate:
            return self.submit(call)

    def _beside(self) -> ThreadPoolExecutor:
        if self._closed is not None:
            raise StoreClosed(f"The handle {self._name!r} was closed.", hint="Open it again.")
        if self._functions is None:
            self._functions = ThreadPoolExecutor(thread_name_prefix=f"{self._name}-functions")
        return self._functions

    def _is_owner(self) -> bool:
        return self._owner is not None and self._owner is asyncio.current_task()

    def _check_outside(self) -> None:
        if self._batch is not None and self._batch in _INSIDE.get():
            raise BatchOpen(
                "The task that started this one has a batch open on this session.",
                hint="Nothing was written. Start tasks outside of the batch, or give each task a "
                "session of its own: await store.session(NAME).",
            )


class _Ends(Generic[T]):
    """A context manager whose two ends are called one by one, in the thread."""

    def __init__(self, manager: AbstractContextManager[T]) -> None:
        self._manager = manager
        self.is_entered = False

    def enter(self) -> T:
        entered = self._manager.__enter__()
        self.is_entered = True
        return entered

    def leave(self, error: BaseException | None = None) -> bool | None:
        if error is None:
            return self._manager.__exit__(None, None, None)
        return self._manager.__exit__(type(error), error, error.__traceback__)


class Handle(Generic[T]):
    """Something whose methods are called in the thread of a worker."""

    def __init__(self, sync: T, worker: Worker) -> None:
        self._sync = sync
        self._worker = worker


def awaitable(
    method: Callable[Concatenate[T, P], R],
) -> Callable[Concatenate[Handle[T], P], Coroutine[Any, Any, R]]:
    """Return a method that makes the synchronous one's call in the thread."""

    @wraps(method)
    async def call(self: Handle[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._worker.call(partial(method, self._sync, *args, **kwargs))

    return call
