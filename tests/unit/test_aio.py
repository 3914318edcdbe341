"""The awaitable calls: the same results and errors, without blocking the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from mulligan import Event, aio
from mulligan.aio import AsyncSession, AsyncStore
from mulligan.errors import BatchOpen, InvalidPath, LeaseHeld, StateError

Test = Callable[..., Coroutine[Any, Any, None]]


def awaited(test: Test) -> Callable[..., None]:
    """Run a coroutine as a test, bounded so that a deadlock fails instead of hanging."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**arguments), 60))

    return run


async def opened() -> tuple[AsyncStore, AsyncSession]:
    store = await aio.open("memory:")
    return store, await store.session("run")


@awaited
async def test_state_tasks_mail_and_checkpoints(tmp_path: Path) -> None:
    async with (
        await aio.open(tmp_path) as store,
        await store.agent("coder", session="run") as session,
    ):
        assert session.lease is not None
        await session.state.set("memory/goal", "ship")
        await session.tasks.plan(["Design", {"title": "Build", "after": ["design"]}])
        async with session.tasks.working() as task:
            assert task is not None
            assert task.id == "design"
        assert [task.status for task in await session.tasks.all()] == ["completed", "pending"]
        await session.mailbox.send("coder", "Hello")
        message = await session.mailbox.receive()
        assert message is not None
        assert message.subject == "Hello"
        taken = await session.checkpoint(label="one")
        await session.state.set("memory/goal", "other")
        await session.restore(taken)
        assert await session.state.get("memory/goal") == "ship"
        fork = await session.fork("one", "bold")
        assert (await fork.head()).session == "bold"
        await fork.close()
        assert (await store.verify()).ok


@awaited
async def test_errors_are_those_of_the_calls() -> None:
    store, session = await opened()
    with pytest.raises(InvalidPath):
        await session.state.set("tasks/a", 1)
    holder = await store.agent("coder", session="run")
    with pytest.raises(LeaseHeld):
        await store.agent("coder", session="run")
    await holder.close()
    await holder.close()
    await (await store.agent("coder", session="run")).close()


@awaited
async def test_the_event_loop_goes_on_while_a_call_waits() -> None:
    _, session = await opened()
    started, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        assert go_on.wait(30)

    blocked = asyncio.create_task(session._worker.call(wait))
    await asyncio.to_thread(started.wait, 30)
    later = asyncio.create_task(session.state.set("a", 1))
    await asyncio.sleep(0)
    assert not blocked.done()
    assert not later.done()
    go_on.set()
    await asyncio.gather(blocked, later)
    assert await session.state.get("a") == 1


@awaited
async def test_a_batch_is_one_transaction_and_others_wait_for_it() -> None:
    _, session = await opened()
    before = (await session.head()).seq
    inside, done = asyncio.Event(), []

    async def other() -> None:
        await inside.wait()
        await session.state.set("other", 1)
        done.append("other")

    task = asyncio.create_task(other())
    async with session.batch():
        await session.state.set("a", 1)
        inside.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert done == []
        assert await session.state.get("a") == 1
        await session.state.set("b", 2)
    await task
    events = [event async for event in session.events(since=before)]
    assert await session.state.get() == {"a": 1, "b": 2, "other": 1}
    assert [event.payload["path"] for event in events] == [["a"], ["b"], ["other"]]


@awaited
async def test_a_failed_batch_writes_nothing() -> None:
    _, session = await opened()
    head = await session.head()

    async def fail() -> None:
        async with session.batch():
            await session.state.set("a", 1)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await fail()
    assert await session.head() == head
    await session.state.set("b", 1)


@awaited
async def test_a_cancelled_batch_writes_nothing_and_ends() -> None:
    _, session = await opened()
    inside = asyncio.Event()

    async def stay() -> None:
        async with session.batch():
            await session.state.set("a", 1)
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(stay())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await session.state.set("b", 1)
    assert await session.state.get() == {"b": 1}


@awaited
async def test_a_task_started_inside_a_batch_is_refused() -> None:
    _, session = await opened()
    async with session.batch():
        with pytest.raises(BatchOpen):
            await asyncio.create_task(session.state.set("a", 1))
        with pytest.raises(BatchOpen):
            await asyncio.gather(session.state.set("a", 1))
        with pytest.raises(StateError):
            await session.batch().__aenter__()
    assert await session.state.get() == {}


@awaited
async def test_a_failed_operation_rolls_back() -> None:
    _, session = await opened()
    await session.state.set("a", 1)

    async def fail() -> None:
        async with session.operation("risky"):
            await session.state.set("a", 2)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await fail()
    assert await session.state.get("a") == 1


@awaited
async def test_messages_and_events_of_others_arrive() -> None:
    store, session = await opened()
    planner = await store.session("run", actor="planner")
    waiting = asyncio.create_task(session.mailbox.receive(timeout=30))
    seen: list[Event] = []
    start = (await session.head()).seq

    async def follow() -> None:
        async for event in session.events(since=start, follow=True):
            seen.append(event)
            if event.kind == "mail.sent":
                return

    following = asyncio.create_task(follow())
    await planner.mailbox.send("main", "Hello")
    message = await waiting
    assert message is not None
    assert message.subject == "Hello"
    await following
    assert seen[-1].actor == "planner"


@awaited
async def test_closing_waits_for_the_batch_of_another_task() -> None:
    _, session = await opened()
    entered, proceed = asyncio.Event(), asyncio.Event()

    async def write() -> None:
        async with session.batch():
            await session.state.set("a", 1)
            entered.set()
            await proceed.wait()

    writer = asyncio.create_task(write())
    await entered.wait()
    closing = asyncio.create_task(session.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    proceed.set()
    await writer
    assert await session.state.get("a") == 1
    await session.close()
    await session.close()


@awaited
async def test_a_session_is_not_closed_inside_its_batch() -> None:
    _, session = await opened()
    async with session.batch():
        await session.state.set("a", 1)
        with pytest.raises(BatchOpen):
            await session.close()
        with pytest.raises(BatchOpen):
            await asyncio.create_task(session.close())
    assert await session.state.get("a") == 1
    await session.close()
