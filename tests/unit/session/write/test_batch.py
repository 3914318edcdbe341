"""Batches belong to the task and thread that opened them; nothing of others is lost with them."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import BatchOpen, StateError
from mulligan.session.write import writer
from tests.children import Tell, run_child


class Failed(Exception):
    """Raised inside a batch to make it fail."""


@pytest.fixture
def session(tmp_path: Path) -> Session:
    session = mulligan.open(tmp_path / "store").session("run")
    session.state.set("before", 1)
    return session


async def beside_a_failing_batch(session: Session, other: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine in a task of its own while another task's batch is open, which then fails."""
    is_open, done = asyncio.Event(), asyncio.Event()

    async def failing() -> None:
        with session.batch():
            session.state.set("mine", "never written")
            is_open.set()
            await done.wait()
            assert session.state.get("mine") == "never written"
            raise Failed

    async def beside() -> None:
        await is_open.wait()
        try:
            await other()
        finally:
            done.set()

    results = await asyncio.gather(failing(), beside(), return_exceptions=True)
    assert isinstance(results[0], Failed), results[0]
    if isinstance(results[1], BaseException):
        raise results[1]


def test_what_another_task_writes_is_never_lost_with_a_batch(session: Session):
    """It is refused while the batch is open, and kept once it is over."""

    async def other() -> None:
        with pytest.raises(BatchOpen, match="Another task") as refused:
            session.state.set("theirs", 1)
        assert "store.session" in refused.value.hint
        assert refused.value.retryable

    asyncio.run(beside_a_failing_batch(session, other))
    assert session.state.get("") == {"before": 1}
    session.state.set("theirs", 1)
    assert session.state.get("") == {"before": 1, "theirs": 1}


@pytest.mark.parametrize(
    "write",
    [
        lambda session: session.checkpoint(),
        lambda session: session.restore(1),
        lambda session: session.batch().__enter__(),
        lambda session: session.tasks.plan(["a"]),
        lambda session: session.tasks.claim(),
        lambda session: session.mailbox.send("ada", "hello"),
        lambda session: session.checkpoints.mark("@latest", "good"),
        lambda session: session.agent.update(state="working"),
        lambda session: session.operation("x").__enter__(),
    ],
)
def test_every_write_of_another_task_is_refused(
    session: Session, write: Callable[[Session], object]
):
    session.checkpoint()
    before = session.head

    async def other() -> None:
        with pytest.raises(BatchOpen):
            write(session)

    asyncio.run(beside_a_failing_batch(session, other))
    assert session.head == before


def test_others_read_what_is_written_and_nothing_of_the_batch(session: Session):
    async def other() -> None:
        for read in (session.state.get, lambda: session.state.at(session.head).get()):
            assert read() == {"before": 1}
            assert await asyncio.to_thread(read) == {"before": 1}
        assert not session.diff(2)

    asyncio.run(beside_a_failing_batch(session, other))


def test_what_is_started_inside_a_batch_is_no_part_of_it(session: Session):
    """A child may outlive the batch and does not know of it; in a thread it would wait for ever."""

    async def child() -> None:
        assert session.state.get() == {"before": 1}
        with pytest.raises(BatchOpen, match="started inside"):
            session.state.set("child", 1)
        with pytest.raises(BatchOpen, match="started inside"):
            await asyncio.to_thread(session.state.set, "child", 1)

    async def run() -> None:
        with session.batch():
            session.state.set("mine", 1)
            await asyncio.wait_for(asyncio.gather(child(), child()), 60)

    asyncio.run(run())
    assert session.state.get("") == {"before": 1, "mine": 1}


def test_a_child_that_outlives_its_batch_writes_again(session: Session):
    async def run() -> None:
        over = asyncio.Event()

        async def child() -> None:
            await over.wait()
            session.state.set("child", 1)
            await asyncio.to_thread(session.state.set, "thread", 1)

        with session.batch():
            session.state.set("mine", 1)
            task = asyncio.create_task(child())
        over.set()
        await task

    asyncio.run(run())
    assert session.state.get("") == {"before": 1, "mine": 1, "child": 1, "thread": 1}


def test_tasks_with_handles_of_their_own_write_at_the_same_time(session: Session, tmp_path: Path):
    """The way that the error names."""
    store = mulligan.open(tmp_path / "store")

    async def one(name: str, fails: bool) -> None:
        mine = store.session("run")
        with mine.batch():
            mine.state.set(("a", name), 1)
            await asyncio.sleep(0)
            mine.state.set(("b", name), 1)
            if fails:
                raise Failed

    async def run() -> None:
        await asyncio.gather(*(one(str(n), n % 3 == 0) for n in range(20)), return_exceptions=True)

    asyncio.run(run())
    kept = {str(n): 1 for n in range(20) if n % 3}
    assert session.state.get("") == {"before": 1, "a": kept, "b": kept}


def test_a_cancelled_batch_ends(session: Session):
    async def run() -> None:
        async def forever() -> None:
            with session.batch():
                session.state.set("mine", 1)
                await asyncio.Event().wait()

        task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        session.state.set("after", 1)

    asyncio.run(run())
    assert session.state.get("") == {"before": 1, "after": 1}


def opens_before_interrupted(session: Session, nth: int) -> bool:
    """Open a batch, with Ctrl-C at the nth line of the writer; whether that was too late."""
    left = nth

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename == writer.__file__ and event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        with session.batch():
            sys.settrace(before)
    except KeyboardInterrupt:
        return False
    finally:
        sys.settrace(before)
    return True


def test_a_batch_whose_opening_is_interrupted_is_not_open(tmp_path: Path):
    # In a child: a transaction that is interrupted before it is counted out is waited for at every
    # later fork of the process, and when the store closes.
    def body(tell: Tell) -> None:
        session = mulligan.open(tmp_path / "store").session("run")
        for nth in count(1):
            if opens_before_interrupted(session, nth):
                break
            session.state.set("after", nth)
            assert session.state.get("after") == nth
        tell(str(nth))

    done = run_child(body)
    assert done.finished
    assert int(done.told[0]) > 10


def test_threads_wait_for_the_batch_of_another_and_lose_nothing(session: Session):
    is_open, read = threading.Event(), threading.Event()
    seen: list[object] = []

    def failing() -> None:
        with session.batch():
            session.state.set("mine", 1)
            is_open.set()
            assert read.wait(60)
            raise Failed

    def writing(name: str) -> None:
        is_open.wait(60)
        session.state.set(name, 1)

    def reading() -> None:
        is_open.wait(60)
        seen.append(session.state.get(""))  # while the batch is open: it does not wait
        read.set()

    with ThreadPoolExecutor(6) as pool:
        failed = pool.submit(failing)
        others = [pool.submit(writing, f"thread {n}") for n in range(4)]
        pool.submit(reading).result(60)
        assert isinstance(failed.exception(60), Failed)
        for other in others:
            other.result(60)
    assert seen == [{"before": 1}]
    assert session.state.get("") == {"before": 1, **{f"thread {n}": 1 for n in range(4)}}


def test_a_batch_that_waits_for_another_thread_does_not_hang(
    session: Session, monkeypatch: pytest.MonkeyPatch
):
    """A pool's thread knows nothing of the batch that waits for it, so its patience decides."""
    monkeypatch.setattr("mulligan.session.write.batch.PATIENCE", 0.0)
    with ThreadPoolExecutor(1) as pool, session.batch():
        session.state.set("mine", 1)
        with pytest.raises(BatchOpen, match="Another thread") as refused:
            pool.submit(session.state.set, "theirs", 1).result()
        assert "Nothing was written" in refused.value.hint
        session.state.set("more", 2)
    assert session.state.get("") == {"before": 1, "mine": 1, "more": 2}
    session.state.set("theirs", 1)


def test_a_thread_waits_for_the_batch_of_a_task(session: Session):
    """A thread that was not started inside may wait: the event loop goes on."""
    is_open, wrote = threading.Event(), threading.Event()

    def writing() -> None:
        assert is_open.wait(60)
        session.state.set("thread", 1)
        wrote.set()

    async def run() -> None:
        with session.batch():
            session.state.set("mine", 1)
            is_open.set()
            for _ in range(20):
                await asyncio.sleep(0)
                assert not wrote.is_set()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(writing)
        asyncio.run(run())
        waiting.result(60)
    assert [e.payload["path"] for e in session.events(since=2)] == [["mine"], ["thread"]]


def test_counting_in_batches_of_many_threads_loses_no_count(session: Session):
    session.state.set("count", 0)

    def count(_: int) -> None:
        with session.batch():
            session.state.set("count", session.state.get("count") + 1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(80)))
    assert session.state.get("count") == 80


def test_a_lease_is_renewed_while_a_batch_is_open(tmp_path: Path):
    """A batch that awaits for long must not cost the agent its lease."""
    session = mulligan.open(tmp_path / "store").agent("coder", session="run")
    before = session.internal.lease_of("coder")
    with session.batch():
        session.state.set("a", 1)
        thread = threading.Thread(target=lambda: session.internal.renew(wait=False))
        thread.start()
        thread.join(60)
        assert session.internal.lease_of("coder") != before
    assert session.state.get("a") == 1


def test_a_batch_is_refused_what_it_cannot_hold_before_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    work = tmp_path / "work"
    work.mkdir()
    session = mulligan.open(tmp_path / "store").session("run", workspace=work)
    session.checkpoint()
    monkeypatch.setattr(type(session._workspace), "capture", None)  # would fail if it were called
    for refused in (session.checkpoint, lambda: session.restore("@latest")):
        with pytest.raises(StateError, match="inside a batch"), session.batch():
            refused()


def test_a_decorated_coroutine_function_is_an_operation_until_it_is_done(session: Session):
    @session.operation("migrate")
    async def migrate(fails: bool) -> str:
        session.state.set("half", 1)
        await asyncio.sleep(0)
        assert session.internal.control("operations")
        if fails:
            raise Failed
        return "done"

    with pytest.raises(Failed):
        asyncio.run(migrate(True))
    assert session.state.get("") == {"before": 1}
    assert asyncio.run(migrate(False)) == "done"
    assert session.state.get("half") == 1
    assert session.internal.control("operations") == {}


def test_a_generator_is_no_operation(session: Session):
    def steps():
        yield 1

    async def more():
        yield 1

    for function in (steps, more):
        with pytest.raises(mulligan.errors.InvalidTask, match="generator"):
            session.operation("migrate")(function)
