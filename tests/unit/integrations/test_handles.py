"""What every adapter needs: names for ids, open sessions, and calls in their order."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

import mulligan
from mulligan.errors import Conflict, InvalidName
from mulligan.integrations import handles
from mulligan.integrations.handles import CallThread, Handles, name_of, prefix_of, retried
from mulligan.session.names import check_name


@pytest.mark.parametrize(
    "parts", [("a", "b"), ("", ""), ("ü" * 99, "x" * 999), ("/tmp/x y", "+"), ("\ud800", "~:")]
)
def test_any_ids_give_a_valid_name(parts: tuple[str, str]) -> None:
    name = name_of("openai", *parts)
    assert check_name(name, "session name") == name
    assert name.startswith(prefix_of("openai", parts[0]))


def test_different_ids_give_different_names() -> None:
    ids = [("a+b", "c"), ("a", "b+c"), ("a", "b", "c"), ("x" * 200, "y"), ("x" * 201, "y")]
    names = [name_of("k", *parts) for parts in ids]
    assert len({*names}) == len(ids)


def test_a_session_is_opened_once_and_found_only_if_it_exists(tmp_path: Path) -> None:
    opened = Handles(tmp_path)
    assert opened.find("a") is None
    session = opened.session("a")
    assert opened.find("a") is session
    assert [s.name for s in opened.starting_with("a")] == ["a"]
    assert opened.starting_with("b") == []
    opened.close()
    opened.close()


def test_only_the_last_sessions_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "MAX_OPEN", 2)
    opened = Handles("memory:")
    first, second = opened.session("1"), opened.session("2")
    opened.session("1")  # used again: now 2 is the oldest
    opened.session("3")
    assert opened.session("1") is first
    assert opened.session("2") is not second


def test_a_store_that_was_given_stays_open(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        Handles(store).close()
        assert store.sessions() == []


def test_an_invalid_name_is_refused() -> None:
    with pytest.raises(InvalidName):
        Handles("memory:").session("~")


def test_calls_are_made_in_their_order_in_any_event_loop() -> None:
    thread, made = CallThread("test"), list[int]()

    async def call_all(first: int) -> None:
        await asyncio.gather(*(thread.run(made.append, n) for n in range(first, first + 50)))

    asyncio.run(call_all(0))
    asyncio.run(call_all(50))
    assert made == [*range(100)]


def test_a_cancelled_call_is_made_before_later_ones() -> None:
    thread, made = CallThread("test"), list[str]()
    started, release = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        release.wait()
        made.append("first")

    async def run() -> None:
        task = asyncio.create_task(thread.run(slow))
        await asyncio.to_thread(started.wait)
        task.cancel()
        later = asyncio.create_task(thread.run(made.append, "second"))
        release.set()
        await later

    asyncio.run(run())
    assert made == ["first", "second"]


def test_a_fork_gets_a_thread_of_its_own() -> None:
    thread = CallThread("test")
    asyncio.run(thread.run(os.getpid))
    child = os.fork()
    if child == 0:
        os._exit(0 if asyncio.run(thread.run(os.getpid)) == os.getpid() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_fork_waits_for_no_thread_of_its_parent(tmp_path: Path) -> None:
    opened = Handles(tmp_path)
    opened.session("a")
    with opened._lock:  # as when another thread opens a session just now
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # only against hanging
            try:
                opened.session("a").state.set("x", 1)
                os._exit(0)
            finally:
                os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert opened.session("a").state.get("x") == 1
    opened.close()


def test_a_conflict_is_decided_again() -> None:
    answers = iter([Conflict("1"), Conflict("2"), None])
    calls = []

    def call() -> str:
        calls.append(1)
        if (error := next(answers)) is not None:
            raise error
        return "done"

    assert retried(call) == "done"
    assert len(calls) == 3


def test_a_session_that_another_process_deleted_is_not_used_again(tmp_path: Path) -> None:
    opened = Handles(tmp_path)
    opened.session("a").state.set("x", 1)
    with mulligan.open(tmp_path) as other:
        other.delete("a")
        assert opened.find("a") is None
        other.session("a").state.set("y", 2)
    assert opened.session("a").state.get() == {"y": 2}
    opened.delete("a")
    opened.delete("a")
    assert opened.find("a") is None
    opened.close()
