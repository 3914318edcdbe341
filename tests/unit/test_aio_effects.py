"""Steps, effects, approvals and tool calls of an asynchronous session."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mulligan import aio
from mulligan.aio import AsyncSession, AsyncStore
from mulligan.errors import ApprovalPending, EffectInDoubt


def run(tmp_path: Path, main: Callable[[AsyncStore, AsyncSession], Awaitable[Any]]) -> Any:
    async def opened() -> Any:
        async with await aio.open(tmp_path) as store, await store.session("run") as session:
            return await main(store, session)

    return asyncio.run(opened())


def test_two_tasks_have_steps_and_effects_of_one_session_at_once(tmp_path: Path) -> None:
    sent: list[str] = []

    async def main(store: AsyncStore, session: AsyncSession) -> None:
        both = asyncio.Event()

        async def send(name: str) -> str:
            sent.append(name)
            if len(sent) == 2:
                both.set()
            await both.wait()  # each is inside its effect while the other is
            return name

        async def act(session: AsyncSession, name: str) -> Any:
            await session.step(f"think {name}", lambda: name.upper())
            async with session.effect("mail.send", intent={"to": name}) as effect:
                if not effect.settled:
                    effect.result = await send(name)
            return effect.result

        for handle in (session, await store.session("run")):
            assert await asyncio.gather(act(handle, "a"), act(handle, "b")) == ["a", "b"]
        assert sorted(sent) == ["a", "b"]
        assert [e.status for e in await session.effects.list()] == ["done", "done"]

    run(tmp_path, main)


def test_a_step_is_retried_and_its_result_is_recorded(tmp_path: Path) -> None:
    calls: list[int] = []

    async def main(store: AsyncStore, session: AsyncSession) -> Any:
        @session.durable(retries=2, delay=0)
        async def fetch(value: int) -> int:
            calls.append(value)
            if len(calls) < 3:
                raise OSError("not yet")
            return value

        first = await fetch(5)
        async with await store.session("run") as again:
            return first, await again.step("fetch", fetch.__wrapped__, 5)

    assert run(tmp_path, main) == (5, 5)
    assert calls == [5, 5, 5]


def test_a_step_that_is_an_effect(tmp_path: Path) -> None:
    async def main(store: AsyncStore, session: AsyncSession) -> None:
        @session.durable(effect="mail.send", key=lambda to: to)
        async def send(to: str) -> str:
            return f"sent to {to}"

        assert await send("ann") == "sent to ann"
        [effect] = await session.effects.list()
        assert (effect.name, effect.key, effect.status) == ("mail.send", "ann", "done")

    run(tmp_path, main)


def test_a_task_that_is_cancelled_in_the_middle_leaves_doubt(tmp_path: Path) -> None:
    async def main(store: AsyncStore, session: AsyncSession) -> None:
        acting = asyncio.Event()

        async def act() -> None:
            async with session.effect("mail.send", key="1"):
                acting.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(act())
        await acting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(EffectInDoubt):
            async with session.effect("mail.send", key="1"):
                raise AssertionError
        [doubt] = await session.effects.list(in_doubt=True)
        await session.effects.settle(doubt.id, "done", result=1)

    run(tmp_path, main)


def test_an_effect_waits_for_its_approval(tmp_path: Path) -> None:
    async def main(store: AsyncStore, session: AsyncSession) -> None:
        session.effects.rule("deploy", approval="ask")

        async def act() -> Any:
            async with session.effect("deploy", {"v": 1}, wait=3600) as effect:
                return effect.intent

        task = asyncio.create_task(act())
        while not (pending := await session.approvals.pending()):
            await asyncio.sleep(0)
        await session.approvals.approve(pending[0].id, edit={"v": 2})
        assert await task == {"v": 2}
        assert not (await session.approvals.wait(pending[0].id, timeout=0)).is_pending
        with pytest.raises(ApprovalPending):
            async with session.effect("deploy", {"v": 3}):
                raise AssertionError

    run(tmp_path, main)


def test_tool_calls(tmp_path: Path) -> None:
    async def main(store: AsyncStore, session: AsyncSession) -> None:
        async with session.tools.call("search", {"q": 1}) as call:
            call.returned([1])
        done = await session.tools.run([sys.executable, "-c", "print(5)"])
        assert done.result["stdout"] == "5\n"
        await session.tools.record("read", result="x")
        assert [c.name for c in await session.tools.list()] == ["search", "shell", "read"]
        assert (await session.tools.get(call.id)).result == [1]

    run(tmp_path, main)
