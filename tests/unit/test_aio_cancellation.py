"""Cancelled calls of asynchronous handles: ended or not made, and nothing is held afterwards."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mulligan import aio
from mulligan.aio import AsyncSession, AsyncStore
from mulligan.aio_worker import Worker
from mulligan.errors import StoreClosed
from mulligan.session.session import Session
from mulligan.session.write.writer import Writer
from mulligan.store import Store
from tests.scale import times

HANG_SECONDS = 60


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine as a test, bounded so that a deadlock fails instead of hanging."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**arguments), HANG_SECONDS))

    return run


class Held:
    """Holds a synchronous call up in its thread, before or after what it does."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool = False
    ) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.has_ended = threading.Event()
        original = getattr(owner, name)

        @wraps(original)
        def held_up(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs) if after else None
            first = not self.reached.is_set()
            self.reached.set()
            if first:
                assert self.go_on.wait(HANG_SECONDS)
            result = result if after else original(*args, **kwargs)
            self.has_ended.set()
            return result

        monkeypatch.setattr(owner, name, held_up)

    async def is_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, HANG_SECONDS)


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Wait for the end of a task, which must be that of its cancellation."""
    with pytest.raises(asyncio.CancelledError):
        await task


async def opened() -> tuple[AsyncStore, AsyncSession]:
    store = await aio.open("memory:")
    return store, await store.session("run")


def block(session: AsyncSession) -> Callable[[], None]:
    """Keep the thread of a session busy; the result lets it go on."""
    go_on = threading.Event()
    session._worker.submit(lambda: go_on.wait(HANG_SECONDS))
    return go_on.set


@awaited
async def test_a_call_that_is_cancelled_before_its_task_runs_is_not_made() -> None:
    _, session = await opened()
    task = asyncio.create_task(session.state.set("a", 1))
    task.cancel()
    await cancelled(task)
    assert await session.state.get() == {}


@awaited
async def test_a_call_that_waits_for_its_turn_is_taken_back() -> None:
    _, session = await opened()
    go_on = block(session)
    task = asyncio.create_task(session.state.set("a", 1))
    await turns()
    task.cancel()
    await cancelled(task)  # at once: the thread is still busy
    go_on()
    assert await session.state.get() == {}


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
def test_a_call_that_has_started_ends_before_its_cancellation(
    monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    @awaited
    async def check() -> None:
        _, session = await opened()
        held = Held(monkeypatch, Writer, "commit", after=after)
        task = asyncio.create_task(session.state.set("a", 1))
        await held.is_reached()
        for _ in range(3):  # however often
            task.cancel()
            await turns()
        assert not task.done()
        held.go_on.set()
        await cancelled(task)
        assert held.has_ended.is_set()
        assert await session.state.get() == {"a": 1}

    check()


@awaited
async def test_a_timeout_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """``asyncio.timeout`` sees its own cancellation, of a call, of a batch and of a step."""
    _, session = await opened()
    go_on = block(session)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await session.state.set("a", 1)
    go_on()

    async def stay() -> None:
        async with asyncio.timeout(0), session.batch():
            await session.state.set("a", 1)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await stay()
    started, finish = threading.Event(), threading.Event()

    def work() -> int:
        started.set()
        assert finish.wait(HANG_SECONDS)
        return 1

    async def expire(timeout: asyncio.Timeout) -> None:
        await asyncio.to_thread(started.wait, HANG_SECONDS)
        timeout.reschedule(0)
        await turns()
        finish.set()

    async def expired() -> None:
        async with asyncio.timeout(HANG_SECONDS) as timeout:
            expiring.append(asyncio.create_task(expire(timeout)))
            await session.step("work", work)

    expiring: list[asyncio.Task[None]] = []
    with pytest.raises(TimeoutError):
        await expired()
    await expiring[0]
    assert await session.state.get("a") is None
    assert await session.step("work", lambda: 2) == 1


@awaited
async def test_a_failing_task_group_leaves_no_write_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, session = await opened()
    held = Held(monkeypatch, Writer, "commit")

    async def fail() -> None:
        await held.is_reached()
        raise ValueError("no")

    async def release(tasks: list[asyncio.Task[Any]]) -> None:
        while not all(task.cancelling() for task in tasks):
            await asyncio.sleep(0)
        held.go_on.set()

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            calls = [session.state.set("a", 1), session.state.set("b", 1)]  # one waits
            releasing.append(asyncio.create_task(release([*map(group.create_task, calls)])))
            group.create_task(fail())

    releasing: list[asyncio.Task[Any]] = []
    with pytest.raises(ExceptionGroup):
        await run()
    assert await session.state.get() == {"a": 1}


Enter = Callable[[AsyncSession], Any]

BLOCKS: dict[str, Enter] = {
    "batch": lambda session: session.batch(),
    "operation": lambda session: session.operation("risky"),
    "effect": lambda session: session.effect("mail.send", key="1"),
    "tool": lambda session: session.tools.call("search", id="1"),
}


class Batch:
    """A batch as a class of its own, whose ends can be held up."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __enter__(self) -> Any:
        return self._batch.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._batch.__exit__(*error)


async def usable(session: AsyncSession) -> None:
    """Fail if something is still held: a batch, an operation, an act that is under way."""
    await session.state.set("after", 1)
    async with session.batch():
        await session.state.set("after", 2)
    assert await session.state.get("after") == 2
    async with session.tools.call("other"):
        pass
    assert [call.status for call in await session.tools.list() if call.status == "called"] == []
    assert (await session.head()).seq > 0


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("moment", ["queued", "entering", "inside", "leaving"])
def test_a_block_that_is_cancelled_is_left(
    monkeypatch: pytest.MonkeyPatch, name: str, moment: str
) -> None:
    @awaited
    async def check() -> None:
        _, session = await opened()
        inside, end = asyncio.Event(), asyncio.Event()

        async def run() -> None:
            async with BLOCKS[name](session):
                if name in ("batch", "operation"):
                    await session.state.set("a", 1)
                inside.set()
                if moment == "inside":
                    await asyncio.Event().wait()
                await end.wait()

        if moment == "queued":
            go_on = block(session)
            task = asyncio.create_task(run())
            await turns()
            task.cancel()
            await cancelled(task)
            go_on()
        elif moment == "inside":
            task = asyncio.create_task(run())
            await inside.wait()
            task.cancel()
            await cancelled(task)
        else:
            make = Session.batch
            monkeypatch.setattr(Session, "batch", lambda self: Batch(make(self)))
            ends = type(BLOCKS[name](session.sync))
            method = "__enter__" if moment == "entering" else "__exit__"
            held = Held(monkeypatch, ends, method)
            task = asyncio.create_task(run())
            end.set()
            await held.is_reached()
            task.cancel()
            await turns()
            task.cancel()
            await turns()
            assert not task.done()
            held.go_on.set()
            await cancelled(task)
            assert held.has_ended.is_set()
        assert inside.is_set() == (moment in ("inside", "leaving"))
        await usable(session)
        is_kept = name in ("batch", "operation") and moment == "leaving"
        assert await session.state.get("a") == (1 if is_kept else None)
        expected = {"queued": [], "entering": ["failed"], "inside": ["in_doubt"]}
        if name == "effect":
            found = [effect.status for effect in await session.effects.list()]
            assert found == expected.get(moment, ["done"])
        if name == "tool":
            found = [call.status for call in await session.tools.list(name="search")]
            assert found == expected.get(moment, ["returned"])

    check()


@awaited
async def test_a_task_whose_block_is_cancelled_stays_claimed() -> None:
    _, session = await opened()
    await session.tasks.plan(["Design"])
    inside = asyncio.Event()

    async def work() -> None:
        async with session.tasks.working():
            inside.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await inside.wait()
    working.cancel()
    await cancelled(working)
    assert [task.status for task in await session.tasks.all()] == ["in_progress"]
    async with session.tasks.working() as again:
        assert again is not None
        assert again.id == "design"


@awaited
async def test_a_failed_write_at_the_end_of_a_block_is_seen_beside_its_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, session = await opened()
    held = Held(monkeypatch, Writer, "commit", after=False)

    async def run() -> None:
        async with session.batch() as batch:
            await session.state.set("a", 1)
            batch.checkpoint(label="one")

    task = asyncio.create_task(run())
    await held.is_reached()

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("disk")

    monkeypatch.setattr(type(session.sync._writer.engine), "write", fail)
    task.cancel()
    await turns()
    held.go_on.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, OSError)


@awaited
async def test_a_cancelled_wait_for_the_batch_of_another_task_changes_nothing() -> None:
    _, session = await opened()
    inside, end = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with session.batch():
            await session.state.set("a", 1)
            inside.set()
            await end.wait()

    holder = asyncio.create_task(hold())
    await inside.wait()

    async def second() -> None:
        async with session.batch():
            await session.state.set("b", 1)

    waiting = [asyncio.create_task(one) for one in (second(), session.state.set("c", 1))]
    await turns()
    for task in waiting:
        task.cancel()
        await cancelled(task)
    end.set()
    await holder
    assert await session.state.get() == {"a": 1}
    await usable(session)


def calls_of(name: str) -> Callable[[AsyncStore], Awaitable[Any]]:
    async def agent(store: AsyncStore) -> Any:
        return await store.agent("coder", session="run")

    async def plain(store: AsyncStore) -> Any:
        return await store.session("other")

    return {"agent": agent, "session": plain}[name]


@pytest.mark.parametrize("name", ["agent", "session"])
def test_a_session_whose_opening_is_cancelled_is_closed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    @awaited
    async def check() -> None:
        store = await aio.open("memory:")
        closed: list[Session] = []
        close = Session.close
        monkeypatch.setattr(Session, "close", lambda self: (closed.append(self), close(self))[1])
        held = Held(monkeypatch, Store, name, after=True)
        task: asyncio.Task[Any] = asyncio.ensure_future(calls_of(name)(store))  # type: ignore[assignment]
        await held.is_reached()
        task.cancel()
        await turns()
        held.go_on.set()
        await cancelled(task)
        assert len(closed) == 1
        again = await store.agent("coder", session="run")  # the lease is free
        await again.close()
        await store.close()

    check()


@awaited
async def test_an_opening_that_is_cancelled_while_its_store_is_closed_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = await aio.open("memory:")
    held = Held(monkeypatch, Store, "agent", after=True)
    opening = asyncio.create_task(store.agent("coder", session="run"))
    await held.is_reached()
    closing = asyncio.create_task(store.close())
    await turns()
    opening.cancel()
    await turns()
    held.go_on.set()
    await cancelled(opening)
    await closing


@awaited
async def test_a_store_whose_opening_is_cancelled_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import mulligan

    made: list[Store] = []
    opener = mulligan.open

    def keeping(*args: Any, **kwargs: Any) -> Store:
        made.append(opener(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(mulligan, "open", keeping)
    held = Held(monkeypatch, mulligan, "open", after=True)
    task = asyncio.create_task(aio.open(tmp_path))
    await held.is_reached()
    task.cancel()
    await turns()
    held.go_on.set()
    await cancelled(task)
    with pytest.raises(StoreClosed):
        made[0].sessions()


@awaited
async def test_closing_is_not_stopped_by_a_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is queued, and while it runs: the lease is free afterwards."""
    store = await aio.open("memory:")
    for is_queued in (True, False):
        session = await store.agent("coder", session="run")
        go_on = block(session) if is_queued else lambda: None
        held = None if is_queued else Held(monkeypatch, Session, "close")
        task = asyncio.create_task(session.close())
        if held is None:
            await turns()
        else:
            await held.is_reached()
        task.cancel()
        await turns()
        assert not task.done()
        (go_on if held is None else held.go_on.set)()
        await cancelled(task)
        await session.close()
        await (await store.agent("coder", session="run")).close()
    with pytest.raises(StoreClosed):
        await session.state.get()


@awaited
async def test_a_second_close_waits_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    _, session = await opened()
    held = Held(monkeypatch, Session, "close")
    first = asyncio.create_task(session.close())
    await held.is_reached()
    second = asyncio.create_task(session.close())
    await turns()
    assert not second.done()
    held.go_on.set()
    await asyncio.gather(first, second)


@awaited
async def test_a_block_that_is_cancelled_when_the_batch_of_another_has_just_ended_is_closed() -> (
    None
):
    worker, closed = Worker("session"), threading.Event()
    opened, end = asyncio.Event(), asyncio.Event()

    async def batch() -> None:
        async with worker.batch(nullcontext()):
            opened.set()
            await end.wait()
        # Its turn has come, and it has not run yet.
        leaving.cancel()

    task = asyncio.create_task(batch())
    await opened.wait()
    leaving = asyncio.create_task(worker.leave(closed.set, None))
    await asyncio.sleep(0)  # it waits for the batch
    end.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await task
    assert await asyncio.to_thread(closed.wait, HANG_SECONDS / 2)


@awaited
async def test_a_cancelled_block_of_a_session_closes_it_when_the_batch_of_another_ends() -> None:
    store = await aio.open("memory:")
    session = await store.agent("coder", session="run")
    inside, end, entered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with session.batch():
            await session.state.set("a", 1)
            inside.set()
            await end.wait()

    async def use() -> None:
        async with session:
            entered.set()

    holder = asyncio.create_task(hold())
    await inside.wait()
    user = asyncio.create_task(use())
    await entered.wait()
    await turns()
    user.cancel()
    await cancelled(user)  # at once: the other task may be waiting for this one
    end.set()
    await holder
    assert session._worker._closed is not None
    await session.close()  # waits for the end of that
    async with await store.agent("coder", session="run") as again:
        assert await again.state.get() == {"a": 1}


@awaited
async def test_a_step_that_is_cancelled_before_it_runs_keeps_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next call of the name is the same occurrence, so a program that goes on finds it."""
    from mulligan.session.parts.steps import Steps

    store, session = await opened()
    held = Held(monkeypatch, Steps, "_call", after=True)
    task = asyncio.create_task(session.step("fetch", lambda: 1))
    await held.is_reached()
    task.cancel()
    await turns()
    held.go_on.set()
    await cancelled(task)
    assert await session.step("fetch", lambda: 2) == 2
    again = await store.session("run")
    assert await again.step("fetch", lambda: 3) == 2


@awaited
async def test_a_function_of_a_step_that_has_returned_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A coroutine function, cancelled while its result is written; also as an effect."""
    from mulligan.session.parts.steps import _Attempt

    store, session = await opened()

    @session.durable(effect="mail.send", key=lambda: "1")
    async def send() -> str:
        return "sent"

    async def fetch() -> int:
        return 1

    for call in (lambda: session.step("fetch", fetch), send):
        with monkeypatch.context() as patch:
            held = Held(patch, _Attempt, "__exit__")
            task = asyncio.ensure_future(call())
            await held.is_reached()
            task.cancel()
            await turns()
            held.go_on.set()
            await cancelled(task)

    async def fail() -> Any:
        raise AssertionError("it was done before")

    again = await store.session("run")
    assert await again.step("fetch", fail) == 1
    assert await again.step("send", fail) == "sent"
    assert [effect.status for effect in await again.effects.list()] == ["done"]


@pytest.mark.parametrize("is_effect", [False, True])
def test_a_plain_function_of_a_step_is_waited_for_and_recorded(is_effect: bool) -> None:
    """A thread cannot be stopped: run again, it would run twice at once."""

    @awaited
    async def check() -> None:
        store, session = await opened()
        started, finish, calls = threading.Event(), threading.Event(), list[int]()
        options = {"effect": "mail.send", "key": "1"} if is_effect else {}

        @session.durable(**options)
        def work() -> int:
            calls.append(1)
            started.set()
            assert finish.wait(HANG_SECONDS)
            return len(calls)

        task = asyncio.ensure_future(work())
        await asyncio.to_thread(started.wait, HANG_SECONDS)
        task.cancel()
        await turns()
        assert not task.done()
        assert await session.state.get() == {}  # other tasks use the session meanwhile
        finish.set()
        await cancelled(task)
        assert await work() == 1
        async with await store.session("run") as again:
            assert await again.step("work", lambda: 5) == 1
        assert calls == [1]

    check()


@awaited
async def test_a_cancelled_coroutine_function_is_not_recorded() -> None:
    _, session = await opened()
    started = asyncio.Event()

    async def work() -> int:
        started.set()
        await asyncio.Event().wait()
        return 1

    task = asyncio.ensure_future(session.step("work", work))
    await started.wait()
    task.cancel()
    await cancelled(task)
    assert await session.step("work", lambda: 2) == 2


@awaited
async def test_the_command_of_a_cancelled_call_is_stopped(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "store") as store, await store.session("run") as session:
        pid = tmp_path / "pid"
        code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
        task = asyncio.create_task(session.tools.run([sys.executable, "-c", code]))
        while not (pid.exists() and pid.read_text()):
            assert not task.done()
            assert await session.state.get("a") is None  # the session is free meanwhile
        task.cancel()
        await cancelled(task)
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)
        [call] = await session.tools.list()
        assert (call.status, call.error) == ("failed", f"exit code -{signal.SIGTERM}")


@awaited
async def test_a_command_that_ignores_the_first_cancellation_is_killed(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "store") as store, await store.session("run") as session:
        ready = tmp_path / "ready"
        code = (
            "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
            f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
        )
        task = asyncio.create_task(session.tools.run([sys.executable, "-c", code]))
        while not ready.exists():
            assert not task.done()
            await session.state.get()
        task.cancel()
        await turns()
        assert not task.done()
        task.cancel()
        await cancelled(task)
        [call] = await session.tools.list()
        assert call.error == f"exit code -{signal.SIGKILL}"


INTERRUPTED = """
import asyncio, sys
from mulligan import aio

async def main():
    asyncio.get_running_loop().slow_callback_duration = 1000  # of a busy machine nothing is said
    async with await aio.open(sys.argv[1]) as store:
        async with await store.agent("coder", session="run") as session:
            await session.state.set("a", 1)
            async with session.batch():
                await session.state.set("b", 1)
                print("inside", flush=True)
                await asyncio.Event().wait()

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_leaves_everything_closed_and_says_nothing_else(tmp_path: Path) -> None:
    words = [sys.executable, "-X", "dev", "-c", INTERRUPTED, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "inside\n"
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=HANG_SECONDS)
    assert (out, err, child.returncode) == ("interrupted\n", "", 0)

    async def check() -> None:
        async with (
            await aio.open(tmp_path) as store,
            await store.agent("coder", session="run") as session,
        ):
            assert await session.state.get() == {"a": 1}

    asyncio.run(check())


def test_a_loop_that_is_closed_with_a_block_open_leaves_it() -> None:
    """What was held is released in the thread; the next event loop can use a new handle."""

    async def begin() -> tuple[AsyncStore, asyncio.Task[None]]:
        store = await aio.open("memory:")
        inside = asyncio.Event()

        async def hold() -> None:
            async with await store.agent("coder", session="run") as session, session.batch():
                await session.state.set("a", 1)
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hold())
        await inside.wait()
        return store, task

    loop = asyncio.new_event_loop()
    store, task = loop.run_until_complete(begin())
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.get_coro().close()  # type: ignore[union-attr]
        del task
        gc.collect()

    async def check() -> None:
        session = await store.agent("coder", session="run")
        assert await session.state.get() == {}
        await usable(session)
        await session.close()
        await store.close()

    asyncio.run(check())


def test_a_call_that_is_under_way_when_its_loop_is_closed_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handle has no event loop of its own: the next one can use it."""
    held = Held(monkeypatch, Writer, "commit")

    async def begin() -> tuple[AsyncStore, AsyncSession, asyncio.Task[None]]:
        store, session = await opened()
        task = asyncio.create_task(session.state.set("a", 1))
        await held.is_reached()
        return store, session, task

    loop = asyncio.new_event_loop()
    store, session, task = loop.run_until_complete(begin())
    loop.close()
    held.go_on.set()
    task._log_destroy_pending = False  # type: ignore[attr-defined]

    async def check() -> None:
        assert await session.state.get() == {"a": 1}
        await usable(session)
        await session.close()
        await store.close()

    asyncio.run(check())


def test_without_asyncio_it_says_what_is_needed() -> None:
    opening = aio.open("memory:")
    with pytest.raises(RuntimeError, match="trio"):
        opening.send(None)


@pytest.mark.parametrize("seed", range(times(6)))
def test_tasks_that_are_cancelled_anywhere_write_nothing_later(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there when a cancellation is seen is what stays; nothing is held afterwards."""
    chosen, tokens, commit = Random(seed), threading.Semaphore(0), Writer.commit

    def held_up(*args: Any, **kwargs: Any) -> Any:
        assert tokens.acquire(timeout=HANG_SECONDS)  # so that a write is under way at every moment
        return commit(*args, **kwargs)

    @awaited
    async def check() -> None:
        store, session = await opened()
        reader = store._sync.session("run")  # one that waits for no write of the other
        seen: dict[str, bool] = {}

        async def one(name: str, kind: str) -> None:
            try:
                if kind == "call":
                    await session.state.set(("done", name), 1)
                elif kind == "batch":
                    async with session.batch():
                        await session.state.set(("done", name), 0)
                        await asyncio.sleep(0)
                        await session.state.set(("done", name), 1)
                else:
                    await session.step(name, write, name)
                seen[name] = True
            except asyncio.CancelledError:
                seen[name] = name in reader.state.get("done", {})
                raise

        def write(name: str) -> None:
            session.sync.state.set(("done", name), 1)

        monkeypatch.setattr(Writer, "commit", held_up)
        kinds = ("call", "batch", "step")
        tasks = [
            asyncio.create_task(one(f"t{n}", chosen.choice(kinds)), name=f"t{n}") for n in range(24)
        ]
        for task in tasks:
            for _ in range(chosen.randrange(4)):
                await asyncio.to_thread(int)  # other threads get their turn, too
            if chosen.random() < 0.7:
                task.cancel()
                await turns(chosen.randrange(3))
            tokens.release()
        tokens.release(1000)
        await asyncio.gather(*tasks, return_exceptions=True)
        stored = await session.state.get("done", {})
        assert {name: name in stored for name in seen} == seen
        assert set(stored.values()) <= {1}
        steps = await session.state.get("steps", {})
        assert {key.split("/")[1].split("#")[1] for key in steps} <= {"0"}
        await usable(session)
        await session.close()
        await store.close()

    check()
