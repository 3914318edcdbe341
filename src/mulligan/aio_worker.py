"""The thread behind an asynchronous handle: its calls one after the other, and its batch.

``mulligan.aio`` is made of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from mulligan.errors import BatchOpen

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_INSIDE: ContextVar[tuple[object, ...]] = ContextVar("mulligan_aio_batches", default=())
"""The batches that were open where this task began, or that it opened; tasks copy it."""


class Worker:
    """The thread that makes the calls of one handle, and the batch that is open there."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._gate = asyncio.Lock()
        self._owner: asyncio.Task[Any] | None = None
        self._batch: object = None
        self._is_closed = False

    def submit(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Queue a call; the thread makes it after those that were queued before."""
        return asyncio.wrap_future(self._executor.submit(call))

    async def call(self, call: Callable[[], R], keep: Callable[[R], None] | None = None) -> R:
        """Make a call, after the batch of another task if one is open.

        ``keep`` gets the result of a call that was made although its caller was cancelled.
        """
        if self._is_owner():
            return await _result(self._executor.submit(call), keep)
        self._check_outside()
        # Held only until the call is queued: from then on the thread keeps the order.
        async with self._gate:
            made = self._executor.submit(call)
        return await _result(made, keep)

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

    @asynccontextmanager
    async def context(self, manager: AbstractContextManager[T]) -> AsyncIterator[T]:
        """Enter and leave a context manager in the thread."""
        steps = _Ends(manager)
        # Shielded: a task that is cancelled meanwhile must not leave it entered forever.
        try:
            entered = await asyncio.shield(self.submit(steps.enter))
        except asyncio.CancelledError as error:
            self.submit(partial(steps.leave, error))
            raise
        try:
            yield entered
        except BaseException as error:
            if not await asyncio.shield(self.submit(partial(steps.leave, error))):
                raise
        else:
            await asyncio.shield(self.submit(steps.leave))

    async def close(self, close: Callable[[], None]) -> None:
        """Make the last call, after an open batch, and end the thread."""
        if self._is_owner():
            raise BatchOpen(
                "A batch is open on this session.",
                hint="Nothing was closed. Close the session after the batch.",
            )
        self._check_outside()
        async with self._gate:
            if self._is_closed:
                return
            self._is_closed = True
            # Not before the call is queued: the batch of another task needs the thread to end.
            future = self.submit(close)
            self._executor.shutdown(wait=False)
        await future

    def _is_owner(self) -> bool:
        return self._owner is not None and self._owner is asyncio.current_task()

    def _check_outside(self) -> None:
        if self._batch is not None and self._batch in _INSIDE.get():
            raise BatchOpen(
                "The task that started this one has a batch open on this session.",
                hint="Nothing was written. Start tasks outside of the batch, or give each task a "
                "session of its own: await store.session(NAME).",
            )


async def _result(made: Future[R], keep: Callable[[R], None] | None) -> R:
    try:
        return await asyncio.wrap_future(made)
    except asyncio.CancelledError:
        # A call that the thread has started cannot be cancelled. It may even have ended already,
        # between its end and the moment at which the caller would have run again.
        if keep is not None:
            made.add_done_callback(partial(_hand_over, keep))
        raise


def _hand_over(keep: Callable[[R], None], made: Future[R]) -> None:
    if not made.cancelled() and made.exception() is None:
        keep(made.result())


class _Ends(Generic[T]):
    """A context manager whose two ends are called one by one, in the thread."""

    def __init__(self, manager: AbstractContextManager[T]) -> None:
        self._manager = manager
        self._is_entered = False

    def enter(self) -> T:
        entered = self._manager.__enter__()
        self._is_entered = True
        return entered

    def leave(self, error: BaseException | None = None) -> bool | None:
        if not self._is_entered:
            return None
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
