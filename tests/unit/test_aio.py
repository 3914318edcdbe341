"""The awaitable calls: the same results and errors, without blocking the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Event, Mailbox, Message, aio
from mulligan.aio import AsyncSession, AsyncStore
from mulligan.errors import BatchOpen, CheckpointNeeded, InvalidPath, LeaseHeld

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
        assert session.agent.lease is not None
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
async def test_checkpoints_are_deleted() -> None:
    store, session = await opened()
    for label in ("one", "two", "three"):
        await session.checkpoint(label=label)
    [gone] = await store.delete_checkpoints(session, ["two"])
    assert gone.label == "two"
    assert [one.label for one in await session.checkpoints()] == ["one", "three"]
    with pytest.raises(CheckpointNeeded):
        await store.delete_checkpoints(session, ["three"])
    await session.close()
    await store.close()


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
        go_on.wait()

    blocked = asyncio.create_task(session._worker.call(wait))
    await asyncio.to_thread(started.wait)
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
    assert await session.state.get() == {}


@awaited
async def test_a_batch_takes_a_checkpoint_in_its_transaction() -> None:
    _, session = await opened()
    async with session.batch() as batch:
        await session.state.set("a", 1)
        async with session.batch() as inner:
            await session.state.set("b", 2)
            inner.checkpoint("routine", data={"step": 1})
    assert batch.seq == inner.seq == (await session.head()).seq
    [taken] = await session.checkpoints()
    assert batch.result == taken
    assert taken.data == {"step": 1}
    assert await (await session.state.at(taken)).get() == {"a": 1, "b": 2}


@awaited
async def test_a_cancelled_batch_takes_no_checkpoint() -> None:
    _, session = await opened()

    async def forever() -> None:
        async with session.batch() as batch:
            await session.state.set("a", 1)
            batch.checkpoint()
            await asyncio.Event().wait()

    task = asyncio.create_task(forever())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await session.checkpoints() == []
    assert await session.state.get() == {}


@awaited
async def test_the_files_of_a_session(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "file").write_text("one")
    async with (
        await aio.open(tmp_path / "store") as store,
        await store.session("run", workspace=work) as session,
    ):
        taken = await session.checkpoint()
        (work / "file").write_text("two")
        assert [change.path for change in (await session.files.plan(taken)).files] == ["file"]
        assert await session.files.read(taken, "file") == b"one"
        assert await session.files.copy(taken, tmp_path / "copy") == []
        assert (tmp_path / "copy" / "file").read_text() == "one"
        assert await session.files.pending() is None
        assert await session.files.directory() is None
        assert await session.files.recover() is None
        assert await session.files.abandon() is None
        assert session.files.recovery_error is None


def test_an_awaitable_session_has_the_members_of_a_session() -> None:
    apart = {"created", "internal", "loop", "parent", "updated"}
    sync = mulligan.open("memory:").session("run")
    mirror = AsyncSession(sync)
    assert missing(sync, mirror) == apart
    for part in ("state", "mailbox", "files"):
        assert missing(getattr(sync, part), getattr(mirror, part)) == set()


def missing(sync: object, mirror: object) -> set[str]:
    return {name for name in {*dir(sync)} - {*dir(mirror)} if not name.startswith("_")}


class Gate:
    """Holds the thread of a session up where a test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        receive = Mailbox.receive

        def held_up(mailbox: Mailbox, timeout: float = 0) -> Message | None:
            message = receive(mailbox, timeout) if after else None
            self.reached.set()
            assert self.go_on.wait(60)
            return message if after else receive(mailbox, timeout)

        monkeypatch.setattr(Mailbox, "receive", held_up)


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
def test_a_cancelled_receive_loses_no_message(monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    @awaited
    async def check() -> None:
        _, session = await opened()
        for subject in ("first", "second"):
            await session.mailbox.send("main", subject)
        gate = Gate(monkeypatch, after=after)
        waiting = asyncio.create_task(session.mailbox.receive(60))
        await asyncio.to_thread(gate.reached.wait, 60)
        waiting.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()  # it ends with the call that the thread has started
        gate.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        found = [await session.mailbox.receive() for _ in range(3)]
        assert [message and message.subject for message in found] == ["first", "second", None]

    check()


@awaited
async def test_a_receive_that_is_cancelled_before_its_caller_ran_again_loses_no_message() -> None:
    _, session = await opened()
    await session.mailbox.send("main", "first")
    waiting = asyncio.create_task(session.mailbox.receive(60))
    while await asyncio.to_thread(session.sync.mailbox.waiting):  # the thread has taken it
        await asyncio.sleep(0)
    waiting.cancel()
    taken = (await asyncio.gather(waiting, return_exceptions=True))[0]
    if isinstance(taken, asyncio.CancelledError):
        taken = await session.mailbox.receive()
    assert isinstance(taken, Message)


@awaited
async def test_a_receive_that_is_cancelled_before_its_turn_takes_nothing() -> None:
    _, session = await opened()
    await session.mailbox.send("main", "first")
    blocked = threading.Event()
    held_up = asyncio.wrap_future(session._worker.submit(partial(blocked.wait, 60)))
    waiting = asyncio.create_task(session.mailbox.receive(60))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    blocked.set()
    await held_up
    assert [message.subject for message in await session.mailbox.waiting()] == ["first"]


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


@awaited
async def test_walks_and_parts_of_lists() -> None:
    store, session = await opened()
    async with store, session:
        for number in range(3):
            await session.state.append("log", number)
            await session.checkpoint("routine")
        walked = [(c.seq, await view.get("log")) async for c, view in session.checkpoints.walk()]
        assert walked == [(7, [0, 1, 2]), (5, [0, 1]), (3, [0])]
        (only,) = [view async for _, view in session.checkpoints.walk(False, 1, since=3)]
        assert (only.point.seq, await only.length("log")) == (5, 2)
        assert await (await session.state.at(5)).slice("log", 1) == [1]
        assert await session.state.tail("log", 2) == [1, 2]
        assert await session.state.pop("log") == 2
        await session.state.truncate("log", 1)
        assert await session.state.slice("log") == [0]
