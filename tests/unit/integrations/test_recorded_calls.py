"""Recorded calls of tools that are cancelled: not made, in doubt, or recorded, but never open."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan.errors import EffectInDoubt
from mulligan.integrations.handles import CallThread
from mulligan.integrations.recorded_calls import RecordedCalls
from mulligan.session.parts.tools import Tools

HANG_SECONDS = 60


@pytest.fixture
def session(tmp_path: Path) -> Iterator[mulligan.Session]:
    with mulligan.open(tmp_path) as store:
        yield store.session("run")


async def made() -> str:
    return "made"


def held_up(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> tuple[threading.Event, Callable[[], None]]:
    """Hold the first call of a method of tools up, after what it does."""
    original, reached, go_on = getattr(Tools, name), threading.Event(), threading.Event()

    def call(*args: Any) -> Any:
        result = original(*args)
        is_first = not reached.is_set()
        reached.set()
        assert not is_first or go_on.wait(HANG_SECONDS)
        return result

    monkeypatch.setattr(Tools, name, call)
    return reached, go_on.set


@pytest.mark.parametrize(
    ("method", "statuses"), [("_begin", ["failed", "returned"]), ("_end", ["returned"])]
)
def test_a_call_that_is_cancelled_at_its_ends_is_not_left_open(
    session: mulligan.Session, monkeypatch: pytest.MonkeyPatch, method: str, statuses: list[str]
) -> None:
    """Before it was made it has not happened, and after it returned its result counts."""

    async def run() -> Any:
        calls = RecordedCalls(session, CallThread("test"), "chat.timeline", at_most_once=["charge"])
        reached, go_on = held_up(monkeypatch, method)
        task = asyncio.create_task(calls.tool("1", "charge", {}, made))
        await asyncio.to_thread(reached.wait, HANG_SECONDS)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        go_on()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await calls.tool("1", "charge", {}, made)

    assert asyncio.run(run()) == "made"
    assert [call.status for call in session.tools] == statuses


def test_a_call_that_is_cancelled_in_the_middle_is_in_doubt(session: mulligan.Session) -> None:
    async def run() -> None:
        calls = RecordedCalls(session, CallThread("test"), "chat.timeline", at_most_once=["charge"])
        started = asyncio.Event()

        async def stay() -> Any:
            started.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(calls.tool("1", "charge", {}, stay))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(EffectInDoubt):
            await calls.tool("1", "charge", {}, made)

    asyncio.run(run())
    assert [call.status for call in session.tools] == ["in_doubt"]


@pytest.mark.parametrize(("ending", "expected"), [("result=7", 7), ("error='no'", "made")])
def test_the_hint_of_a_call_in_doubt_ends_it_as_it_is_written(
    session: mulligan.Session, ending: str, expected: Any
) -> None:
    """What was recorded by hand counts: the result as it is, or that it is to be called again."""

    async def run() -> Any:
        calls = RecordedCalls(session, CallThread("test"), "chat.timeline", at_most_once=["charge"])
        await calls.begin("1", "charge", {"amount": 3})
        dead = RecordedCalls(session, CallThread("test"), "chat.timeline", at_most_once=["charge"])
        with pytest.raises(EffectInDoubt) as raised:
            await dead.tool("1", "charge", {"amount": 3}, made)
        [advised] = re.findall(r"chat\.timeline(\.tools\.record\(.*?\))", raised.value.hint)
        eval("session" + advised.replace("result=…", ending), {"session": session})
        return await dead.tool("1", "charge", {"amount": 3}, made)

    assert asyncio.run(run()) == expected


def test_responses_that_another_process_has_forgotten_meanwhile_lose_no_items(
    session: mulligan.Session, tmp_path: Path
) -> None:
    """Two programs in one conversation: each forgets the responses when it adds items."""
    calls = RecordedCalls(session, CallThread("test"), "chat.timeline")
    asyncio.run(calls.record("asked", "answer"))
    with mulligan.open(tmp_path) as store:
        other = store.session("run")
        with session.batch():
            session.state.append("conversation", "first")
            calls.forget_responses()
            with other.batch():
                other.state.append("conversation", "second")
                RecordedCalls(other, CallThread("other"), "chat.timeline").forget_responses()
    assert session.state.get("") == {"conversation": ["second", "first"]}
