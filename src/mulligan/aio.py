"""The same calls as awaitables, for asyncio: ``aio.open``, ``AsyncStore``, ``AsyncSession``.

One thin layer over threads. Every store and every session has one worker thread, and its calls run
there one after the other, in the order in which they were made, so the event loop never waits for
a disk. Arguments, results and errors are those of the synchronous calls.

When the cancellation of a call is raised, the call has ended, or was not made: nothing is written
after it. A block that is cancelled is left, and a store or session that was being opened is closed,
before the cancellation goes on. A message that a cancelled ``receive`` has taken is not lost: the
next ``receive`` of the same session returns it.

Inside ``async with session.batch():`` the writes of the task that opened it become one
transaction. A call of another task waits until the batch ends. A task that was started inside the
batch must not use the session, since the batch may be waiting for it: it gets ``BatchOpen``.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import mulligan
from mulligan.aio_worker import Handle, Worker, awaitable, opened_in_thread
from mulligan.errors import ApprovalPending
from mulligan.model import (
    Checkpoint,
    Effect,
    Event,
    Lease,
    Message,
    PendingRestore,
    Point,
    Task,
    ToolCall,
)
from mulligan.session.arguments import seconds
from mulligan.session.parts.agents import Agent
from mulligan.session.parts.approvals import Approvals
from mulligan.session.parts.batch import Batch
from mulligan.session.parts.checkpoints import Checkpoints
from mulligan.session.parts.effects import ActiveEffect, Effects
from mulligan.session.parts.files import Files
from mulligan.session.parts.mailbox import Mailbox
from mulligan.session.parts.operations import Operation
from mulligan.session.parts.state import State
from mulligan.session.parts.steps import StepOptions, Steps
from mulligan.session.parts.tasks import Tasks
from mulligan.session.parts.tools import ActiveCall, Tools
from mulligan.session.session import Session
from mulligan.session.state_view import StateView
from mulligan.store import Store
from mulligan.timeline.points import PointLike

__all__ = [
    "AsyncAgent",
    "AsyncApprovals",
    "AsyncCheckpoints",
    "AsyncEffects",
    "AsyncFiles",
    "AsyncMailbox",
    "AsyncSession",
    "AsyncState",
    "AsyncStateView",
    "AsyncStore",
    "AsyncTasks",
    "AsyncTools",
    "attach",
    "open",
]

POLL_SECONDS = 0.05
"""How often a wait for a message or an event looks again; the thread is free in between."""

WALK_PAGE = 64
"""How many checkpoints a walk fetches from the thread at once."""


class AsyncStateView(Handle[StateView]):
    """The state as it was at a point; see ``mulligan.StateView``."""

    get = awaitable(StateView.get)
    length = awaitable(StateView.length)
    slice = awaitable(StateView.slice)
    tail = awaitable(StateView.tail)

    @property
    def point(self) -> Point:
        """The session and seq of the point."""
        return self._sync.point


class AsyncState(Handle[State]):
    """The shared document of a session; see ``mulligan.State``."""

    get = awaitable(State.get)
    length = awaitable(State.length)
    slice = awaitable(State.slice)
    tail = awaitable(State.tail)
    set = awaitable(State.set)
    append = awaitable(State.append)
    extend = awaitable(State.extend)
    put = awaitable(State.put)
    pop = awaitable(State.pop)
    truncate = awaitable(State.truncate)
    delete = awaitable(State.delete)
    transaction = awaitable(State.transaction)

    async def at(self, point: PointLike) -> AsyncStateView:
        """Return the state as it was at a point; see ``State.at``."""
        found = await self._worker.call(partial(self._sync.at, point))
        return AsyncStateView(found, self._worker)


class AsyncTasks(Handle[Tasks]):
    """The tasks of a session; see ``mulligan.Tasks``. ``all`` returns what iterating yields."""

    get = awaitable(Tasks.get)
    add = awaitable(Tasks.add)
    plan = awaitable(Tasks.plan)
    next = awaitable(Tasks.next)
    claim = awaitable(Tasks.claim)
    update = awaitable(Tasks.update)
    complete = awaitable(Tasks.complete)
    fail = awaitable(Tasks.fail)
    skip = awaitable(Tasks.skip)
    release = awaitable(Tasks.release)
    retry = awaitable(Tasks.retry)

    async def all(self) -> list[Task]:
        """Return all tasks, each after its parent, in the order they were added."""
        return await self._worker.call(lambda: list(self._sync))

    @asynccontextmanager
    async def working(self, id: str | None = None) -> AsyncIterator[Task | None]:
        """Claim a task for a block: completed at its end, failed if it raises."""
        async with self._worker.context(self._sync.working(id)) as task:
            yield task


class AsyncMailbox(Handle[Mailbox]):
    """The mailbox of an agent; see ``mulligan.Mailbox``."""

    send = awaitable(Mailbox.send)
    ack = awaitable(Mailbox.ack)
    waiting = awaitable(Mailbox.waiting)
    processed = awaitable(Mailbox.processed)

    def __init__(self, sync: Mailbox, worker: Worker) -> None:
        super().__init__(sync, worker)
        self._kept: deque[Message] = deque()

    async def receive(self, timeout: float = 0) -> Message | None:
        """Return the next message; None if there is none within ``timeout`` seconds.

        It may be cancelled, as ``asyncio.wait_for`` does: a message that it had taken by then is
        returned by the next call.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds(timeout, "A timeout", zero=True)
        while True:
            # Not one long call: the thread would be blocked for all other tasks meanwhile.
            message = await self._worker.call(self._take, self._keep)
            if message is not None or loop.time() >= until:
                return message
            await asyncio.sleep(POLL_SECONDS)

    def _take(self) -> Message | None:
        """Return a kept message, or the next one; in the thread, after a cancelled call's end."""
        try:
            return self._kept.popleft()
        except IndexError:
            return self._sync.receive(0)

    def _keep(self, message: Message | None) -> None:
        # In the journal it is processed already, so no other process would get it again.
        if message is not None:
            self._kept.append(message)


class AsyncCheckpoints(Handle[Checkpoints]):
    """The checkpoints of a session: ``await session.checkpoints()`` lists them.

    See ``mulligan.Checkpoints``.
    """

    __call__ = awaitable(Checkpoints.__call__)
    at = awaitable(Checkpoints.at)
    find = awaitable(Checkpoints.find)
    mark = awaitable(Checkpoints.mark)
    marks = awaitable(Checkpoints.marks)
    labels = awaitable(Checkpoints.labels)
    drop_label = awaitable(Checkpoints.drop_label)
    pin = awaitable(Checkpoints.pin)
    unpin = awaitable(Checkpoints.unpin)
    pinned = awaitable(Checkpoints.pinned)

    async def walk(
        self, newest_first: bool = True, limit: int | None = None, **options: Any
    ) -> AsyncIterator[tuple[Checkpoint, AsyncStateView]]:
        """Yield checkpoints, each with the state at it; see ``Checkpoints.walk``."""
        steps = await self._worker.call(partial(self._sync.walk, newest_first, limit, **options))
        while page := await self._worker.call(lambda: list(islice(steps, WALK_PAGE))):
            for checkpoint, view in page:
                yield checkpoint, AsyncStateView(view, self._worker)


class AsyncFiles(Handle[Files]):
    """The files of a session; see ``mulligan.Files``."""

    read = awaitable(Files.read)
    copy = awaitable(Files.copy)
    plan = awaitable(Files.plan)
    recover = awaitable(Files.recover)
    abandon = awaitable(Files.abandon)

    async def pending(self) -> PendingRestore | None:
        """Return the restore of files that has started and not ended; see ``Files.pending``."""
        return await self._worker.call(lambda: self._sync.pending)

    async def directory(self) -> Path | None:
        """Return the directory of this fork, or of its nearest ancestor; None without one."""
        return await self._worker.call(lambda: self._sync.directory)

    @property
    def recovery_error(self) -> Exception | None:
        """Why an interrupted restore could not be completed."""
        return self._sync.recovery_error


class AsyncAgent(Handle[Agent]):
    """The record of the agent that a session writes for; see ``mulligan.Agent``."""

    get = awaitable(Agent.get)
    expect = awaitable(Agent.expect)

    @property
    def lease(self) -> Lease | None:
        """The lease that this handle holds as the agent's only writer."""
        return self._sync.lease

    async def update(self, **fields: Any) -> None:
        """Say what the agent is doing; see ``Agent.update``."""
        await self._worker.call(partial(self._sync.update, **fields))


class AsyncEffects(Handle[Effects]):
    """The effects of a session; see ``mulligan.Effects``. ``rule`` and ``on`` need no await."""

    list = awaitable(Effects.list)
    get = awaitable(Effects.get)
    plan = awaitable(Effects.plan)
    settle = awaitable(Effects.settle)

    def __init__(self, sync: Effects, worker: Worker) -> None:
        super().__init__(sync, worker)
        self.rule = sync.rule
        self.on = sync.on


class AsyncApprovals(Handle[Approvals]):
    """The questions of a session; see ``mulligan.Approvals``."""

    pending = awaitable(Approvals.pending)
    approve = awaitable(Approvals.approve)
    deny = awaitable(Approvals.deny)

    def __init__(self, sync: Approvals, effects: AsyncEffects, worker: Worker) -> None:
        super().__init__(sync, worker)
        self._effects = effects
        self.answer_with = sync.answer_with

    async def wait(self, id: str, timeout: float) -> Effect:
        """Wait for the answer to a question, and return the effect then, or after ``timeout``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds(timeout, "A timeout", zero=True)
        while (effect := await self._effects.get(id)).is_pending and loop.time() < until:
            await asyncio.sleep(POLL_SECONDS)
        return effect


class AsyncTools(Handle[Tools]):
    """The calls of tools in a session; see ``mulligan.Tools``."""

    list = awaitable(Tools.list)
    get = awaitable(Tools.get)
    record = awaitable(Tools.record)
    settle = awaitable(Tools.settle)

    @asynccontextmanager
    async def call(self, name: str, args: Any = None, **options: Any) -> AsyncIterator[ActiveCall]:
        """Record a call of a tool around an ``async with`` block; see ``Tools.call``."""
        made = self._sync.call(name, args, **options)
        async with self._worker.context(made, is_act=True) as call:
            yield call

    async def run(self, command: Sequence[str], **options: Any) -> ToolCall:
        """Run a command between two checkpoints, and record it; see ``Tools.run``.

        If it is cancelled, the command gets SIGTERM, or SIGKILL if it is cancelled again, and the
        call is recorded before the cancellation is raised.
        """
        from mulligan.session.runtime.command import Stopper  # slow to import

        stopper = Stopper()
        run = partial(self._sync._run_stoppable, command, stopper, **options)
        # Not in the worker's thread: other tasks use the session while the command runs.
        return await self._worker.beside(run, stopper.stop)


class AsyncSession(Handle[Session]):
    """A session whose calls are awaited; see ``mulligan.Session``.

    ``state``, ``checkpoints``, ``tasks``, ``mailbox``, ``agent``, ``files``, ``effects``,
    ``approvals`` and ``tools`` are its parts. ``sync`` is the session itself, for what has no
    awaitable here: use it outside of the event loop's thread.
    """

    def __init__(self, sync: Session) -> None:
        super().__init__(sync, Worker(f"mulligan-{sync.name}"))
        self.sync = sync
        self.name = sync.name
        self.actor = sync.actor
        self.state = AsyncState(sync.state, self._worker)
        self.tasks = AsyncTasks(sync.tasks, self._worker)
        self.mailbox = AsyncMailbox(sync.mailbox, self._worker)
        self.agent = AsyncAgent(sync.agent, self._worker)
        self.checkpoints = AsyncCheckpoints(sync.checkpoints, self._worker)
        self.find, self.walk = self.checkpoints.find, self.checkpoints.walk
        self.files = AsyncFiles(sync.files, self._worker)
        self.effects = AsyncEffects(sync.effects, self._worker)
        self.approvals = AsyncApprovals(sync.approvals, self.effects, self._worker)
        self.tools = AsyncTools(sync.tools, self._worker)

    def __repr__(self) -> str:
        return f"<AsyncSession {self.name!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._worker.leave(self._sync.close, error)

    checkpoint = awaitable(Session.checkpoint)
    point = awaitable(Session.point)
    diff = awaitable(Session.diff)
    restore = awaitable(Session.restore)
    undo = awaitable(Session.undo)
    redo = awaitable(Session.redo)

    async def head(self) -> Point:
        """Return the place of the newest event."""
        return await self._worker.call(lambda: self._sync.head)

    async def fork(self, point: PointLike, name: str | None = None, **options: Any) -> AsyncSession:
        """Make a new session that continues from a point; see ``Session.fork``."""
        fork = partial(self._sync.fork, point, name, **options)
        return AsyncSession(await self._worker.open(fork))

    async def events(
        self, since: PointLike | None = None, until: PointLike | None = None, follow: bool = False
    ) -> AsyncIterator[Event]:
        """Yield the events after ``since`` up to and including ``until``.

        With ``follow`` it waits for new ones and never ends by itself. It raises ``StoreGone``
        once the store was removed or replaced.
        """
        while True:
            read = partial(self._sync.events, since, until)
            for event in await self._worker.call(lambda read=read: list(read())):  # type: ignore[misc]
                since = event
                yield event
            if not follow:
                return
            # Otherwise it would wait forever for events of a store that is gone.
            await self._worker.call(self._sync.internal.check_present)
            await asyncio.sleep(POLL_SECONDS)

    @asynccontextmanager
    async def batch(self) -> AsyncIterator[Batch]:
        """Make one transaction of all state changes of this task inside: all happen, or none.

        The methods of the :class:`mulligan.Batch` need no await.
        """
        async with self._worker.batch(self._sync.batch()) as batch:
            yield batch

    @asynccontextmanager
    async def operation(self, name: str, **options: Any) -> AsyncIterator[Operation]:
        """Take a checkpoint before something risky, and roll back when the block raises."""
        async with self._worker.context(self._sync.operation(name, **options)) as operation:
            yield operation

    async def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Run a function once, and return its recorded result later; see ``Session.step``.

        A function that is no coroutine function runs in a thread. One that has returned is
        recorded, even if the step is cancelled then.
        """
        return await self._steps.run_async(self._worker, name, function, args, kwargs)

    def durable(
        self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **how: Any
    ) -> Any:
        """Make every call of a function a step; a decorator. See ``Session.durable``."""
        effect = {key: how.pop(key) for key in [*how] if key not in StepOptions.__struct_fields__}
        options = StepOptions(**how, effect_options=effect)

        def decorated(wrapped: Callable[..., Any]) -> Callable[..., Any]:
            called = name or wrapped.__name__

            @wraps(wrapped)
            async def step(*args: Any, **kwargs: Any) -> Any:
                return await self._steps.run_async(
                    self._worker, called, wrapped, args, kwargs, options
                )

            return step

        return decorated if function is None else decorated(function)

    @asynccontextmanager
    async def effect(
        self, name: str, intent: Any = None, *, wait: float = 0.0, **options: Any
    ) -> AsyncIterator[ActiveEffect]:
        """Act on the outside world in an ``async with`` block; see ``Session.effect``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds(wait, "wait=", zero=True)
        while True:
            made = self._sync.effect(name, intent, **options)
            entering = self._worker.context(made, is_act=True)
            try:
                effect = await entering.__aenter__()
                break
            except ApprovalPending:
                # Waited for here: the thread is free for other tasks meanwhile.
                if loop.time() >= until:
                    raise
            await asyncio.sleep(POLL_SECONDS)
        try:
            yield effect
        except BaseException as error:
            if not await entering.__aexit__(type(error), error, error.__traceback__):
                raise
        else:
            await entering.__aexit__(None, None, None)

    @property
    def _steps(self) -> Steps:
        return self._sync.internal.steps()

    async def close(self) -> None:
        """Close the session and end its thread. Idempotent."""
        await self._worker.close(self._sync.close)


class AsyncStore(Handle[Store]):
    """A store whose calls are awaited; see ``mulligan.Store``."""

    def __init__(self, sync: Store) -> None:
        super().__init__(sync, Worker("mulligan-store"))
        self.path = sync.path

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._worker.leave(self._sync.close, error)

    delete = awaitable(Store.delete)
    verify = awaitable(Store.verify)
    maintain = awaitable(Store.maintain)

    async def session(self, name: str, create: bool = True, **options: Any) -> AsyncSession:
        """Open a session; see ``Store.session``."""
        opened = partial(self._sync.session, name, create, **options)
        return AsyncSession(await self._worker.open(opened))

    async def agent(self, name: str, *, session: str, **options: Any) -> AsyncSession:
        """Open a session as the only writer of an agent; see ``Store.agent``."""
        opened = partial(self._sync.agent, name, session=session, **options)
        return AsyncSession(await self._worker.open(opened))

    async def find(self, key: str) -> AsyncSession | None:
        """Return the session that was made with a key; see ``Store.find``."""
        found = await self._worker.call(partial(self._sync.find, key))
        return None if found is None else AsyncSession(found)

    async def copy(self, name: str, new_name: str, **options: Any) -> AsyncSession:
        """Make a session that continues from the newest event of another; see ``Store.copy``."""
        copied = partial(self._sync.copy, name, new_name, **options)
        return AsyncSession(await self._worker.open(copied))

    async def delete_checkpoints(
        self, session: AsyncSession, points: Iterable[PointLike]
    ) -> list[Checkpoint]:
        """Delete checkpoints of a session; see ``mulligan.upkeep.retention.delete_checkpoints``."""
        from mulligan.upkeep import delete_checkpoints

        delete = partial(delete_checkpoints, self._sync, session._sync, list(points))
        # In the session's thread: it reads what the handle of the session knows.
        return await session._worker.call(delete)

    async def sessions(self, prefix: str = "") -> list[AsyncSession]:
        """Return the sessions whose names begin with the prefix, oldest first; by default all."""
        found = await self._worker.call(partial(self._sync.sessions, prefix))
        return [AsyncSession(session) for session in found]

    async def close(self) -> None:
        """Release the store and end its thread; close its sessions first. Idempotent."""
        await self._worker.close(self._sync.close)


async def open(path: str | os.PathLike[str], create: bool = True, **options: Any) -> AsyncStore:
    """Open the store of a directory; see ``mulligan.open`` for the options."""
    return AsyncStore(await opened_in_thread(partial(mulligan.open, path, create, **options)))


async def attach() -> AsyncSession:
    """Return the session of the agent that this process was started for: ``mulligan.attach``."""
    return AsyncSession(await opened_in_thread(mulligan.attach))
