"""Sessions of the OpenAI Agents SDK behave as the SDK's own do, and share what grew."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.frameworks.needed import needed

needed("agents")

from agents import Agent, Runner, SessionSettings, Usage
from agents.extensions.memory import AdvancedSQLiteSession
from agents.memory import OpenAIResponsesCompactionSession, Session
from agents.testing import ScriptedModel, assistant_message

from mulligan import Store
from mulligan.errors import DiskFull
from mulligan.failpoints import Failpoint
from mulligan.integrations.openai_agents import MulliganSession
from mulligan.testing.stores import open_store


def user(said: Any) -> dict[str, Any]:
    return {"role": "user", "content": said}


def agent(said: str) -> dict[str, Any]:
    return {"role": "assistant", "content": said}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[MulliganSession]:
    opened = MulliganSession("chat", tmp_path / "store")
    yield opened
    opened.close()


def test_it_is_a_session_of_the_sdk(session: MulliganSession) -> None:
    assert isinstance(session, Session)
    assert session.session_id == "chat"


def used(number: int) -> Any:
    """Return what the usage of a run is read from."""
    return SimpleNamespace(context_wrapper=SimpleNamespace(usage=Usage(1, number, total_tokens=9)))


ITEMS = [
    user("x"),
    user("yy"),
    agent("z"),
    {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
    {"type": "function_call", "name": "f", "namespace": "n", "call_id": "2"},
    {"type": "function_call", "name": "f", "namespace": "f", "call_id": "3"},
    {"type": "function_call_output", "call_id": "1", "output": "o"},
    {"type": "mcp_call", "server_label": "m", "name": "f"},
    {"type": "mcp_call", "server_label": "m"},
    {"type": "shell_call"},
    {"type": "tool_search_call"},
    {"type": "tool_search_output"},
    {"type": "reasoning", "summary": []},
]
NAMES = st.sampled_from(["a", "b", "c"])
OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.lists(st.sampled_from(ITEMS))),
    st.tuples(st.just("get"), st.sampled_from([None, -1, 0, 1, 2, 100])),
    st.tuples(st.just("pop"), st.none()),
    st.tuples(st.just("branch"), st.tuples(st.integers(0, 4), NAMES)),
    st.tuples(st.just("content"), st.tuples(st.sampled_from(["X", "y", "%"]), NAMES)),
    st.tuples(st.just("switch"), NAMES | st.just("main")),
    st.tuples(st.just("delete"), st.tuples(NAMES | st.just("main"), st.booleans())),
    st.tuples(st.just("turns"), st.none()),
    st.tuples(st.just("use"), st.integers(0, 5)),
    st.tuples(st.just("clear"), st.none()),
)


async def apply(session: Any, operation: str, argument: Any) -> Any:
    """Return what an operation returns, or the kind of error that it raises."""
    try:
        match operation:
            case "add":
                return await session.add_items(list(argument))
            case "get":
                return await session.get_items(limit=argument)
            case "pop":
                return await session.pop_item()
            case "branch":
                return await session.create_branch_from_turn(*argument)
            case "content":
                return await session.create_branch_from_content(*argument)
            case "switch":
                return await session.switch_to_branch(argument)
            case "delete":
                return await session.delete_branch(*argument)
            case "use":
                return await session.store_run_usage(used(argument))
            case "turns":
                found = await session.get_conversation_turns()
                return [{**turn, "timestamp": None} for turn in found]
            case _:
                return await session.clear_session()
    except ValueError as error:
        return str(error)


async def known(session: Any) -> Any:
    """Return what a session has of its current branch."""
    return [
        await session.get_items(),
        await session.get_conversation_by_turns(),
        sorted(await session.get_tool_usage(), key=str),
        await session.get_turn_usage(),
        await session.get_turn_usage(1),
        await session.get_session_usage("main"),
        await session.get_session_usage(),
    ]


def is_empty(branches: list[dict[str, Any]], name: str) -> bool:
    return any(b["branch_id"] == name and not b["message_count"] for b in branches)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(OPERATIONS, max_size=20))
def test_it_does_what_the_sdks_own_session_does(operations: list[tuple[str, Any]]) -> None:
    """One difference is meant: a branch without items exists here, and can be switched to."""

    async def run() -> None:
        ours = MulliganSession("s", "memory:")
        theirs = AdvancedSQLiteSession(session_id="s", create_tables=True)
        try:
            await ours.add_items([user("x"), agent("z")])
            await theirs.add_items([user("x"), agent("z")])
            for operation, argument in operations:
                named = argument[0] if operation == "delete" else argument
                if operation in ("switch", "delete"):
                    branches = await ours.list_branches()
                    if is_empty(branches, named) or is_empty(branches, "main"):
                        continue
                expected = await apply(theirs, operation, argument)
                assert await apply(ours, operation, argument) == expected, (operation, argument)
                assert await known(ours) == await known(theirs)
        finally:
            theirs.close()

    asyncio.run(run())


def test_the_limit_of_the_settings_applies(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        settings = SessionSettings(limit=2)
        session = MulliganSession("s", tmp_path, session_settings=settings)
        await session.add_items([user(str(n)) for n in range(5)])
        found = [await session.get_items(), await session.get_items(limit=3)]
        session.close()
        return [[item["content"] for item in items] for items in found]

    assert asyncio.run(run()) == [["3", "4"], ["2", "3", "4"]]


def test_compaction_replaces_the_end_of_a_conversation_unless_it_changed(
    session: MulliganSession,
) -> None:
    async def run() -> None:
        await session.add_items([user("one"), agent("1"), user("two"), agent("2")])
        snapshot: Any = await session._get_compaction_snapshot(3)
        assert snapshot.items == [agent("1"), user("two"), agent("2")]
        assert not snapshot.complete
        assert await snapshot.replace_suffix(1, [user("summary")])
        assert await session.get_items() == [user("one"), agent("1"), user("summary")]

        pruned: Any = await session._get_compaction_snapshot(
            1, prune_prefix=lambda i: i == user("one")
        )
        assert await pruned.replace_suffix(0, [user("short")])
        assert await session.get_items() == [agent("1"), user("short")]

        stale: Any = await session._get_compaction_snapshot(100)
        assert stale.complete
        await session.add_items([agent("late")])
        assert not await stale.replace_suffix(0, [])
        assert len(await session.get_items()) == 3

    asyncio.run(run())


def test_the_sdks_compaction_never_leaves_a_conversation_empty(
    session: MulliganSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the SDK's runner and its class; what the service would answer is made here."""

    async def compact(**_: Any) -> Any:
        output = [{"type": "compaction", "encrypted_content": "x"}]
        return SimpleNamespace(output=output, usage=None)

    async def refused() -> None:
        raise AssertionError("cleared, and not yet written again")

    monkeypatch.setattr(session, "clear_session", refused)
    client: Any = SimpleNamespace(responses=SimpleNamespace(compact=compact))
    compacted = OpenAIResponsesCompactionSession(
        "chat", session, client=client, should_trigger_compaction=lambda _: True
    )
    asked = Agent(name="a", model=ScriptedModel([[assistant_message("hello")]]))

    async def run() -> list[Any]:
        await Runner.run(asked, "hi", session=compacted)
        return await session.get_items()

    assert [item["type"] for item in asyncio.run(run())] == ["compaction"]


def test_a_write_that_began_ends_before_its_cancellation_is_seen(session: MulliganSession) -> None:
    begun, go = threading.Event(), threading.Event()

    async def run() -> tuple[list[Any], list[Any]]:
        def hold() -> None:
            begun.set()
            go.wait()

        blocked = asyncio.ensure_future(session._thread.run(hold))
        queued = asyncio.ensure_future(session.add_items([user("queued")]))
        await asyncio.to_thread(begun.wait)
        queued.cancel()
        await asyncio.wait({queued})  # it had not begun: it is not made
        blocked.cancel()
        await asyncio.sleep(0)
        blocked.cancel()  # again, while it waits for the end
        await asyncio.sleep(0)
        is_waiting = not blocked.done()
        go.set()
        await asyncio.wait({blocked})
        return [is_waiting, queued.cancelled(), blocked.cancelled()], await session.get_items()

    assert asyncio.run(run()) == ([True, True, True], [])


def test_a_branch_keeps_what_is_before_its_turn(session: MulliganSession) -> None:
    async def run() -> None:
        await session.add_items([user("one"), agent("1"), user("two"), agent("2")])
        branch = await session.create_branch_from_turn(2)
        await session.add_items([user("other")])
        assert await session.get_items() == [user("one"), agent("1"), user("other")]
        await session.switch_to_branch("main")
        assert len(await session.get_items()) == 4
        assert len(await session.get_items(branch_id=branch)) == 3
        shown = {b["branch_id"]: b["message_count"] for b in await session.list_branches()}
        assert shown == {"main": 4, branch: 3}

    asyncio.run(run())


@pytest.mark.parametrize("leave", ["delete", "clear"])
def test_a_branch_whose_end_could_not_be_written_stays_in_use(tmp_path: Path, leave: str) -> None:
    broken = False

    def fail(point: Failpoint) -> None:
        if broken and point is Failpoint.JOURNAL_BEFORE_COMMIT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def check(store: Store) -> None:
        nonlocal broken
        session = MulliganSession("chat", store)
        await session.add_items([user("x"), agent("y")])
        branch = await session.create_branch_from_turn(1)
        await session.add_items([user("z")])
        broken = True
        leaving = (
            session.clear_session() if leave == "clear" else session.delete_branch(branch, True)
        )
        with pytest.raises(DiskFull):
            await leaving
        broken = False
        assert await session.get_items() == [user("z")]
        session.close()

    with open_store(tmp_path / "store", failpoint=fail) as store:
        asyncio.run(check(store))


def test_another_process_that_clears_leaves_no_branch_to_write_to(tmp_path: Path) -> None:
    async def run() -> None:
        here, there = MulliganSession("s", tmp_path), MulliganSession("s", tmp_path)
        await here.add_items([user("one"), agent("1"), user("two")])
        await here.create_branch_from_turn(2, "b")
        await there.clear_session()
        await here.add_items([user("new")])
        assert await there.get_items() == [user("new")]
        with pytest.raises(ValueError, match="already been used"):
            await here.create_branch_from_turn(1, "b")
        here.close()
        there.close()

    asyncio.run(run())


def add_many(path: str, writer: int) -> None:
    session = MulliganSession("s", path)

    async def run() -> None:
        for number in range(30):
            await session.add_items([user(f"{writer}.{number}"), agent(f"{writer}.{number}")])

    asyncio.run(run())
    session.close()


def answer_many(path: str, writer: int) -> None:
    """Add answers as a durable agent does: what the model said is recorded before."""
    session = MulliganSession("s", path)

    async def run() -> None:
        for number in range(40):
            await session._calls.record([writer, number], "answer")
            await session.add_items([agent(f"{writer}.{number}")])

    asyncio.run(run())
    session.close()


def test_durable_agents_in_two_processes_lose_no_answer(tmp_path: Path) -> None:
    path = str(tmp_path)
    with ProcessPoolExecutor(2) as processes:
        for done in [processes.submit(answer_many, path, writer) for writer in (1, 2)]:
            done.result()
    session = MulliganSession("s", path)
    assert len(asyncio.run(session.get_items())) == 80
    session.close()


def take_all(path: str) -> list[str]:
    session = MulliganSession("s", path)

    async def run() -> list[str]:
        found = []
        while (item := await session.pop_item()) is not None:
            found.append(item["content"])
        return found

    taken = asyncio.run(run())
    session.close()
    return taken


def test_two_processes_add_to_one_session_and_take_from_it(tmp_path: Path) -> None:
    path = str(tmp_path)
    with ProcessPoolExecutor(2) as processes:
        for done in [processes.submit(add_many, path, writer) for writer in (1, 2)]:
            done.result()
        session = MulliganSession("s", path)
        items = asyncio.run(session.get_items())
        session.close()
        taken = [processes.submit(take_all, path) for _ in (1, 2)]
        found = [name for done in taken for name in done.result()]
    assert len(items) == 120
    # What was added in one call stays together.
    assert all(a["content"] == b["content"] for a, b in zip(items[::2], items[1::2], strict=True))
    assert sorted(found) == sorted(item["content"] for item in items)


def test_storage_grows_with_what_is_added(tmp_path: Path) -> None:
    """Not with the length of the conversation, nor with the number of branches."""
    session = MulliganSession("s", tmp_path)
    chance = random.Random(1)

    def size() -> int:
        return sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*"))

    async def add(count: int) -> None:
        for _ in range(count):
            said = chance.randbytes(500).hex()  # no compression makes a copy small
            await session.add_items([user(said), agent(said[::-1])])

    asyncio.run(add(150))
    first = size()
    asyncio.run(add(150))
    second = size()
    asyncio.run(add(150))
    third = size()
    for number in range(20):
        asyncio.run(session.create_branch_from_turn(400, f"b{number}"))
        asyncio.run(session.switch_to_branch("main"))
    fourth = size()
    session.close()
    print(first, second, third, fourth)
    assert third - second < 1.5 * (second - first)
    assert fourth - third < 20 * 400 * 500  # a quarter of what twenty copies take


def test_a_session_can_be_restored_and_forked(session: MulliganSession) -> None:
    async def run() -> None:
        await session.add_items([user("one"), agent("1")])
        point = session.timeline.checkpoint("manual")
        await session.add_items([user("two"), agent("2")])
        session.timeline.restore(point)
        assert await session.get_items() == [user("one"), agent("1")]

    asyncio.run(run())
