"""Calls that come together: in one transaction, from many threads and tasks, and cancelled ones."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mulligan.errors import UnstorableValue
from tests.frameworks.langgraph.graphs import loop_graph, start
from tests.frameworks.langgraph.test_values import put
from tests.frameworks.needed import needed

needed("langgraph.graph")

from langgraph.checkpoint.base import empty_checkpoint

Config = dict[str, Any]

HANG_SECONDS = 60
"""Only against hanging: nothing is judged by it."""


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def writes_of(saver: Any, config: Config) -> list[Any]:
    """Return the pending writes that a saver finds that knows nothing."""
    from mulligan.integrations.langgraph import MulliganSaver

    other = MulliganSaver(saver.store)
    found = other.get_tuple(config)
    other.close()
    assert found is not None
    return [(task, value) for task, _, value in found.pending_writes]


def thread_of(saver: Any) -> Any:
    return saver._threads["thread-1"]


class Call:
    """A call in a thread of its own, and what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except BaseException as error:
            self.raised = error

    def end(self) -> BaseException | None:
        """Wait for the end, and return what was raised."""
        self._thread.join(HANG_SECONDS)
        assert not self._thread.is_alive(), "it hangs"
        return self.raised


def queued(saver: Any, config: Config, *tasks: str) -> list[Call]:
    """Start calls that save writes, one after the other; the thread's lock must be held."""
    calls = []
    for number, task in enumerate(tasks, 1):
        calls.append(Call(lambda task=task: saver.put_writes(config, [("words", [task])], task)))
        wait_until(lambda number=number: len(thread_of(saver)._queue.waiting()) == number)
    return calls


def test_a_checkpoint_takes_the_writes_before_it_along(saver: Any, config: Config) -> None:
    first = put(saver, config, {"words": ["a"]}, 1)
    with thread_of(saver)._lock:
        calls = queued(saver, first, "b", "c")
        assert writes_of(saver, first) == []
        second = put(saver, first, {"words": ["a", "b", "c"]}, 2)
    assert [call.end() for call in calls] == [None, None]
    assert sorted(writes_of(saver, first)) == [("b", ["b"]), ("c", ["c"])]
    assert writes_of(saver, second) == []
    events = list(saver.store.session("langgraph-thread-1").events())[-4:]
    assert events[-1].kind == "checkpoint.created"
    assert len({event.time for event in events}) == 1, "one transaction has one time"


def test_writes_that_come_with_their_own_checkpoint(saver: Any, config: Config) -> None:
    """Without waiting for checkpoints, LangGraph may save the writes of one before it."""
    from langgraph.checkpoint.base import empty_checkpoint

    first = put(saver, config, {"words": ["a"]}, 1)
    checkpoint = empty_checkpoint()
    address = {"thread_id": "thread-1", "checkpoint_ns": "", "checkpoint_id": checkpoint["id"]}
    with thread_of(saver)._lock:
        calls = queued(saver, first, "b") + queued_more(saver, {"configurable": address}, "c")
        second = saver.put(first, checkpoint, {"source": "loop", "step": 2}, {})
    assert [call.end() for call in calls] == [None, None]
    assert writes_of(saver, first) == [("b", ["b"])]
    assert writes_of(saver, second) == [("c", ["c"])]


def queued_more(saver: Any, config: Config, task: str) -> list[Call]:
    before = len(thread_of(saver)._queue.waiting())
    call = Call(lambda: saver.put_writes(config, [("words", [task])], task))
    wait_until(lambda: len(thread_of(saver)._queue.waiting()) == before + 1)
    return [call]


def test_a_call_waits_for_a_checkpoint_only_while_that_is_of_use(
    saver: Any, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mulligan.integrations.langgraph import queue

    first = put(saver, config, {"words": ["a"]}, 1)
    monkeypatch.setattr(queue, "MOMENT", HANG_SECONDS)
    saver.put_writes(first, [("words", ["b"])], "b")  # no checkpoint has met a call yet
    thread_of(saver)._queue.met()
    call = Call(lambda: saver.put_writes(first, [("words", ["c"])], "c"))
    wait_until(lambda: bool(thread_of(saver)._queue.waiting()))
    put(saver, first, {"words": ["a", "b", "c"]}, 2)
    assert call.end() is None
    monkeypatch.setattr(queue, "MOMENT", 0.0)
    saver.put_writes(first, [("words", ["d"])], "d")  # waits in vain
    monkeypatch.setattr(queue, "MOMENT", HANG_SECONDS)
    saver.put_writes(first, [("words", ["e"])], "e")
    assert sorted(task for task, _ in writes_of(saver, first)) == ["b", "c", "d", "e"]


@pytest.mark.parametrize("channel", ["__resume__", "__interrupt__", "__error__"])
def test_answers_interrupts_and_errors_wait_for_no_checkpoint(
    channel: str, saver: Any, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mulligan.integrations.langgraph import queue

    first = put(saver, config, {"words": ["a"]}, 1)
    monkeypatch.setattr(queue, "MOMENT", HANG_SECONDS)
    thread_of(saver)._queue.met()
    saver.put_writes(first, [(channel, "yes")], "b")
    assert writes_of(saver, first) == [("b", "yes")]


def test_a_checkpoint_that_fails_leaves_the_writes_to_their_calls(
    saver: Any, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put(saver, config, {"words": ["a"]}, 1)
    internals = type(thread_of(saver).session.internal)

    def fail(*arguments: Any) -> Any:
        raise OSError("no disk")

    with thread_of(saver)._lock:
        calls = queued(saver, first, "b", "c")
        with monkeypatch.context() as patch:
            patch.setattr(internals, "checkpoint_after", fail)
            with pytest.raises(OSError, match="no disk"):
                put(saver, first, {"words": ["a", "b"]}, 2)
    assert [call.end() for call in calls] == [None, None]
    assert sorted(task for task, _ in writes_of(saver, first)) == ["b", "c"]


def test_calls_that_fail_say_so_and_the_others_are_written(
    saver: Any, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put(saver, config, {"words": ["a"]}, 1)
    internals = type(thread_of(saver).session.internal)
    commit, failed = internals.commit, []

    def fail_once(self: Any, decision: Any) -> Any:
        if not failed:
            failed.append(decision)
            raise OSError("no disk")
        return commit(self, decision)

    monkeypatch.setattr(internals, "commit", fail_once)
    with thread_of(saver)._lock:
        calls = queued(saver, first, "b", "c", "d")
    raised = [call.end() for call in calls]
    assert sorted(str(error) for error in raised) == ["None", "None", "no disk"]
    written = [task for task, error in zip("bcd", raised, strict=True) if error is None]
    assert sorted(task for task, _ in writes_of(saver, first)) == written


def test_what_cannot_be_stored_fails_no_other_call(saver: Any, config: Config) -> None:
    first = put(saver, config, {"words": ["a"]}, 1)
    with thread_of(saver)._lock:
        calls = queued(saver, first, "b")
        with pytest.raises(UnstorableValue):
            saver.put_writes(first, [("words", ["c"])], "\ud800")
        put(saver, first, {"words": ["a", "b"]}, 2)
    assert calls[0].end() is None
    assert writes_of(saver, first) == [("b", ["b"])]


def test_many_threads_and_tasks_at_once(saver: Any) -> None:
    """Each of many threads of graphs saves checkpoints and the writes of many tasks at once."""

    async def one(number: int) -> None:
        config: Config = {"configurable": {"thread_id": f"thread {number}", "checkpoint_ns": ""}}
        for step in range(4):
            config = await aput(saver, config, {"words": [f"{number} {n}" for n in range(step)]})
            await asyncio.gather(
                *(
                    saver.aput_writes(config, [("words", [f"{number} {step} {n}"])], f"task {n}")
                    for n in range(5)
                )
            )
            found = await saver.aget_tuple(config)
            assert sorted(value[0] for _, _, value in found.pending_writes) == [
                f"{number} {step} {n}" for n in range(5)
            ]
            listed = [one async for one in saver.alist(config_of(number))]
            assert len(listed) == step + 1
            assert listed[0].checkpoint["channel_values"]["words"] == [
                f"{number} {n}" for n in range(step)
            ]

    async def all_of_them() -> None:
        await asyncio.gather(*(one(number) for number in range(12)))

    asyncio.run(all_of_them())
    assert saver.store.verify().ok


def config_of(number: int) -> Config:
    return {"configurable": {"thread_id": f"thread {number}"}}


async def aput(saver: Any, config: Config, values: dict[str, Any]) -> Any:
    from langgraph.checkpoint.base import empty_checkpoint

    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, len(values["words"]) + 1)
    versions = checkpoint["channel_versions"]
    return await saver.aput(config, checkpoint, {"source": "loop", "step": 1}, versions)


@pytest.mark.parametrize("turns", range(6))
def test_a_call_that_is_cancelled_is_done_or_not_begun(
    turns: int, saver: Any, config: Config
) -> None:
    """Whenever it is cancelled: checkpoint and writes are whole, or absent."""
    words = [f"word {n}" for n in range(50)]

    async def cancel_in_the_middle(call: Any) -> bool:
        task = asyncio.ensure_future(call)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    async def run() -> Config:
        first: Config = await aput(saver, config, {"words": []})
        await cancel_in_the_middle(saver.aput_writes(first, [("words", words)], "task"))
        await cancel_in_the_middle(aput(saver, first, {"words": words}))
        return first

    first = asyncio.run(run())  # at its end it waits for threads that still work
    assert writes_of(saver, first) in ([], [("task", words)])
    lists = [found.checkpoint["channel_values"]["words"] for found in saver.list(config)]
    assert lists in ([[]], [words, []])
    # The thread goes on from there.
    put(saver, first, {"words": [*words, "last"]}, 100)
    assert saver.get_tuple(config).checkpoint["channel_values"]["words"] == [*words, "last"]
    assert saver.store.verify().ok


def test_a_run_that_is_cancelled_goes_on(saver: Any, config: Config) -> None:
    from mulligan.integrations.langgraph import aresume_input

    runs: list[int] = []
    cancelled = threading.Event()

    async def run() -> Any:
        graph = loop_graph(saver, act=lambda state: runs.append(state["n"]))
        first = asyncio.ensure_future(graph.ainvoke(start(), config, durability="sync"))
        while not runs:
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        cancelled.set()
        again = await aresume_input(graph, start(), config)
        return await graph.ainvoke(again, config, durability="sync")

    result = asyncio.run(run())
    assert cancelled.is_set()
    assert [message.content for message in result["messages"]] == [
        "hello",
        *(f"answer {n}" for n in range(5)),
    ]


class Switching(dict[Any, Any]):
    """Lets another thread run whenever an entry is looked up."""

    def setdefault(self, key: Any, default: Any = None) -> Any:
        time.sleep(0)
        return super().setdefault(key, default)


def test_threads_that_read_many_pending_writes_at_once_find_all_of_them(
    saver: Any, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mulligan.integrations.langgraph import writes

    monkeypatch.setattr(writes, "NEAR", 0)
    configs = [put(saver, config, {}, number) for number in range(2)]
    for number in range(100):
        saver.put_writes(configs[number % 2], [("a", number)], f"task {number}")
    thread = thread_of(saver)
    records = [record for record, _ in thread.records()]
    thread.writes._positions = Switching()
    ready, found = threading.Barrier(4), list[int]()

    def read(number: int) -> None:
        ready.wait()
        found.append(len(thread.writes.of(records[number % 2]).stored()))

    readers = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert found == [50] * 4


def test_writes_are_found_although_other_threads_were_opened_before_their_checkpoint(
    saver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LangGraph may save the writes of a task before the checkpoint that they belong to."""
    from mulligan.integrations.langgraph import saver as module

    monkeypatch.setattr(module, "MAX_THREADS", 2)
    first = empty_checkpoint()
    config = {"configurable": {"thread_id": "thread-1", "checkpoint_ns": ""}}
    early = {"configurable": {**config["configurable"], "checkpoint_id": first["id"]}}
    saver.put_writes(early, [("a", 1)], "task")
    for number in range(4):
        put(saver, {"configurable": {"thread_id": f"other-{number}"}}, {}, 0)
    saved = saver.put(config, first, {"source": "loop", "step": 0}, {})
    assert writes_of(saver, saved) == [("task", 1)]
    assert len(saver._threads) == 2


def test_a_fork_waits_for_no_thread_of_its_parent(saver: Any, config: Config) -> None:
    put(saver, config, {}, 0)
    other = copy.copy(saver)
    # As when other threads open a thread of a graph, and save a checkpoint, just now.
    with saver._lock, thread_of(saver)._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(HANG_SECONDS)
            try:
                put(saver, config, {}, 1)
                put(other, config, {}, 2)
                os._exit(0 if other._threads is saver._threads else 1)
            finally:
                os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(saver.list(config))) == 3
