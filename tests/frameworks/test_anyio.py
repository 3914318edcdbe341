"""``mulligan.aio`` below anyio, whose cancellations come again at every turn of the event loop."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.frameworks.needed import needed

anyio = needed("anyio")

from mulligan import aio
from mulligan.session.write.writer import Writer

HANG_SECONDS = 60


def test_a_cancelled_scope_sees_no_later_write(monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on = threading.Event(), threading.Event()
    commit = Writer.commit

    def held_up(*args: Any, **kwargs: Any) -> Any:
        if not reached.is_set():
            reached.set()
            assert go_on.wait(HANG_SECONDS)
        return commit(*args, **kwargs)

    async def main() -> None:
        store = await aio.open("memory:")
        session = await store.session("run")
        monkeypatch.setattr(Writer, "commit", held_up)

        async def cancel(scope: Any) -> None:
            await anyio.to_thread.run_sync(reached.wait, HANG_SECONDS)
            scope.cancel()
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            go_on.set()

        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                group.start_soon(cancel, scope)
                async with session.batch():
                    await session.state.set("a", 1)
        assert scope.cancelled_caught
        assert await session.state.get() == {"a": 1}  # its commit had started
        with anyio.CancelScope() as scope:
            async with session.batch():
                await session.state.set("b", 1)
                scope.cancel()
                await anyio.sleep_forever()
        with anyio.CancelScope() as scope:
            async with await store.agent("coder", session="run") as agent:
                scope.cancel()
                await agent.state.set("c", 1)
        async with await store.agent("coder", session="run") as agent:  # the lease is free
            assert await agent.state.get("b") is None
        await session.close()
        await store.close()

    anyio.run(main, backend="asyncio")
