"""Conversations of pydantic-ai: stored as by its own store, and continued after a kill."""

from __future__ import annotations

import asyncio
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.frameworks.killed import Program
from tests.frameworks.needed import needed

needed("pydantic_ai")

from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, InMemoryConversationStore
from pydantic_ai.exceptions import UnexpectedModelBehavior, UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

from mulligan.integrations.pydantic_ai import MulliganConversationStore, MulliganDurability

FILE = Path(__file__).with_name("program.py")


def said(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


IDS = st.sampled_from("ab")
OPERATIONS = st.one_of(
    st.tuples(st.just("say"), IDS, st.integers(1, 3)),
    st.tuples(st.just("say"), IDS, st.integers(1, 3)),
    st.tuples(st.just("rewrite"), IDS, st.integers(0, 3)),
    st.tuples(st.just("stale"), IDS, st.just(0)),
    st.tuples(st.just("branch"), IDS, st.integers(0, 3)),
    st.tuples(st.just("back"), IDS, st.just(0)),
    st.tuples(st.just("fork"), IDS, st.integers(0, 3)),
    st.tuples(st.just("load"), IDS | st.just("f"), st.sampled_from([None, 0, 1, 2, 50])),
    st.tuples(st.just("list"), IDS, st.sampled_from([None, 1])),
    st.tuples(st.just("delete"), IDS | st.just("f"), st.just(0)),
)


def texts(conversation: Any) -> Any:
    if conversation is None:
        return None
    return [message.parts[0].content for message in conversation.messages]


async def apply(store: Any, number: int, operation: tuple[str, str, Any]) -> Any:
    """Return what an operation leads to, or the kind of error that it raises."""
    what, id, count = operation
    try:
        found = await store.load(id)
        conversation = found or Conversation(conversation_id=id)
        if what == "say":
            conversation.messages += [said(f"{number}.{n}") for n in range(count)]
            return len(await store.save(conversation, scope="s" if id == "a" else None))
        if what == "rewrite":
            conversation.messages = [*conversation.messages[:count], said(f"new {number}")]
            return len(await store.save(conversation))
        if what == "stale":
            other = await store.load(id)
            conversation.messages.append(said(f"first {number}"))
            await store.save(conversation)
            return await store.save(other or Conversation(conversation_id=id))
        if what == "branch":
            return texts(await store.branch(id, at=count, expected_revision=conversation.revision))
        if what == "back":
            record = await store.read_record(id)
            tip = record.branches[-1] if record and record.branches else "none"
            revision = conversation.revision
            return texts(await store.branch(id, from_entry=tip, expected_revision=revision))
        if what == "fork":
            return texts(await store.fork(id, new_conversation_id="f", at=count))
        if what == "load":
            return texts(await store.load(id, limit=count))
        if what == "list":
            records = await store.list_conversations(scope=None if count else "s", limit=count)
            return [(r.conversation_id, r.scope, r.forked_from, len(r.branches)) for r in records]
        return await store.delete(id)
    except UserError as error:
        return type(error)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(OPERATIONS, max_size=15))
def test_it_does_what_pydantic_ais_own_store_does(operations: list[Any]) -> None:
    async def run() -> None:
        ours, theirs = MulliganConversationStore("memory:"), InMemoryConversationStore()
        for number, operation in enumerate(operations):
            expected = await apply(theirs, number, operation)
            assert await apply(ours, number, operation) == expected, operation
            for id in "abf":
                assert texts(await ours.load(id)) == texts(await theirs.load(id))

    asyncio.run(run())


def test_another_process_reads_every_kind_of_message(tmp_path: Path) -> None:
    file = BinaryContent(b"\x00\xff", media_type="application/pdf")
    made = Conversation(
        conversation_id="c",
        messages=[
            ModelRequest(parts=[UserPromptPart(["look", file])]),
            ModelResponse(parts=[TextPart("\ud7ff and more"), ToolCallPart("t", {"a": [1, None]})]),
        ],
    )

    async def save() -> None:
        store = MulliganConversationStore(tmp_path)
        await store.save(made)
        store.close()

    async def load() -> Any:
        store = MulliganConversationStore(tmp_path)
        found = await store.load("c")
        entries = await store.load_entries("c", limit=1)
        assert entries is not None
        assert await store.read_entry(entries[0].id) == entries[0]
        with pytest.raises(LookupError):
            await store.read_entry("none")
        store.close()
        return found

    asyncio.run(save())
    assert asyncio.run(load()).messages == made.messages


def say_many(path: str, writer: int) -> int:
    """Add to one conversation; load again whenever another process saved in between."""
    store, conflicts = MulliganConversationStore(path), 0

    async def run() -> int:
        nonlocal conflicts
        for number in range(15):
            while True:
                loaded = await store.load("c") or Conversation(conversation_id="c")
                loaded.messages.append(said(f"{writer}.{number}"))
                try:
                    await store.save(loaded)
                    break
                except ConversationConflict:
                    conflicts += 1
        return conflicts

    found = asyncio.run(run())
    store.close()
    return found


def test_two_processes_save_one_conversation(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2) as processes:
        for done in [processes.submit(say_many, str(tmp_path), writer) for writer in (1, 2)]:
            done.result()
    store = MulliganConversationStore(tmp_path)
    found = texts(asyncio.run(store.load("c")))
    store.close()
    for writer in (1, 2):
        own = [text for text in found if text.startswith(f"{writer}.")]
        assert own == [f"{writer}.{n}" for n in range(15)]


@pytest.mark.parametrize("other", ["new", "next"])
def test_what_another_process_saves_while_one_deletes_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    first, second = MulliganConversationStore(tmp_path), MulliganConversationStore(tmp_path)

    async def save(conversation: Conversation) -> bool:
        conversation.messages.append(said(other))
        try:
            await second.save(conversation)
        except ConversationConflict:
            return False
        return True

    async def run() -> tuple[bool, Any]:
        conversation = Conversation(conversation_id="c")
        conversation.messages.append(said("old"))
        await first.save(conversation)
        record = await first.read_record("c")
        assert record is not None
        one = Conversation(conversation_id="c") if other == "new" else await second.load("c")
        saved, delete = [], first._handles.delete

        def saved_by_another_first(*arguments: Any) -> None:
            if not saved:
                with ThreadPoolExecutor(1) as threads:
                    saved.append(threads.submit(lambda: asyncio.run(save(one))).result())
            delete(*arguments)

        monkeypatch.setattr(first._handles, "delete", saved_by_another_first)
        with suppress(ConversationConflict):
            await first.delete_record("c", expected_revision=record.revision)
        return saved[0], texts(await second.load("c"))

    is_saved, found = asyncio.run(run())
    assert found == (None if not is_saved else ["new"] if other == "new" else ["old", "next"])
    first.close()
    second.close()


def interrupted(directory: Path, how: str) -> tuple[str, list[str]]:
    """Kill the program in its tool, start it again, and return what it printed and did."""
    Program(FILE, directory, how).kill_when(directory / "started")
    (directory / "go").touch()
    printed = Program(FILE, directory, how).output().strip()
    return printed, (directory / "log.txt").read_text().splitlines()


def test_a_killed_run_repeats_no_answer_and_no_tool_that_returned(tmp_path: Path) -> None:
    printed, log = interrupted(tmp_path, "again")
    assert printed == "done: ['Receipt(number=1)', 'Receipt(number=2)', 'waited']"
    models = [line for line in log if line.startswith("model")]
    assert models == [f"model {n} of 1 questions" for n in (0, 1, 3)]
    assert [line for line in log if line.startswith("charge")] == ["charge 1", "charge 2"]
    assert log.count("wait") == 2  # the process died in it: it may not have happened


def test_a_tool_in_doubt_is_not_called_again_if_that_is_asked_for(tmp_path: Path) -> None:
    printed, log = interrupted(tmp_path, "once")
    assert "'wait' was called, and the process died before it returned" in printed
    assert log.count("wait") == 1


def test_the_same_question_may_be_asked_again(tmp_path: Path) -> None:
    """What was recorded for the first run is not taken for the answer to the second."""
    asked = []

    def answer(messages: Any, info: Any) -> ModelResponse:
        asked.append(len(messages))
        return ModelResponse(parts=[TextPart(str(len(asked)))])

    async def run() -> list[str]:
        store = MulliganConversationStore(tmp_path)
        agent = Agent(FunctionModel(answer))
        found = [await store.run(agent, "time?", conversation_id="c") for _ in range(3)]
        found.append(await store.run(agent, "time?", conversation_id="d"))
        store.close()
        return [result.output for result in found]

    assert asyncio.run(run()) == ["1", "2", "3", "4"]
    assert asked == [1, 3, 5, 1]


def test_a_run_that_failed_by_an_answer_is_not_failed_by_it_again(tmp_path: Path) -> None:
    """What tools returned before stays recorded."""
    charged: list[int] = []
    answers = [{"amount": "much"}, {"amount": "more"}, {"amount": 3}]

    def answer(messages: Any, info: Any) -> ModelResponse:
        if not charged:
            return ModelResponse(parts=[ToolCallPart("charge", {"amount": 3})])
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, answers.pop(0))])

    class Paid(BaseModel):
        amount: int

    async def run() -> Any:
        store = MulliganConversationStore(tmp_path)
        agent = Agent(FunctionModel(answer), output_type=Paid)

        @agent.tool_plain
        def charge(amount: int) -> str:
            charged.append(amount)
            return "charged"

        with pytest.raises(UnexpectedModelBehavior):
            await store.run(agent, "Charge 3.", conversation_id="c")
        result = await store.run(agent, "Charge 3.", conversation_id="c")
        store.close()
        return result.output.amount

    assert asyncio.run(run()) == 3
    assert charged == [3]


def test_a_failure_after_a_tool_returned_keeps_the_answer_that_called_it(tmp_path: Path) -> None:
    """Else the model could call the tool again."""
    calls: list[str] = []

    def answer(messages: Any, info: Any) -> ModelResponse:
        calls.append("model")
        return ModelResponse(parts=[ToolCallPart("charge", {}), ToolCallPart("ask", {})])

    async def run() -> None:
        store = MulliganConversationStore(tmp_path)
        agent = Agent(FunctionModel(answer))

        @agent.tool_plain(sequential=True)
        def charge() -> str:
            calls.append("charge")
            return "charged"

        @agent.tool_plain(sequential=True)
        def ask() -> str:
            raise UnexpectedModelBehavior("of another agent")

        for _ in range(2):
            with pytest.raises(UnexpectedModelBehavior):
                await store.run(agent, "Charge.", conversation_id="c")
        store.close()

    asyncio.run(run())
    assert calls == ["model", "charge"]


def test_a_run_that_waits_for_approval_goes_on_in_another_process(tmp_path: Path) -> None:
    done: list[str] = []

    def cleaner() -> Agent[None, Any]:
        agent = Agent(TestModel(), output_type=[str, DeferredToolRequests])

        @agent.tool_plain(requires_approval=True)
        def delete(name: str) -> str:
            done.append(name)
            return "deleted"

        return agent

    async def ask() -> None:
        store = MulliganConversationStore(tmp_path)
        result = await store.run(cleaner(), "clean up", conversation_id="c")
        assert isinstance(result.output, DeferredToolRequests)
        store.close()

    async def answer() -> None:
        store = MulliganConversationStore(tmp_path)
        waiting = await store.load("c")
        assert waiting is not None
        assert waiting.deferred_tool_requests is not None
        results = waiting.deferred_tool_requests.build_results(approve_all=True)
        await store.run(cleaner(), None, conversation_id="c", deferred_tool_results=results)
        store.close()

    asyncio.run(ask())
    assert done == []
    asyncio.run(answer())
    assert len(done) == 1


def test_a_streamed_answer_that_was_recorded_is_not_asked_for_again(tmp_path: Path) -> None:
    asked = []

    async def stream(messages: Any, info: Any) -> Any:
        asked.append(len(messages))
        for part in ("hel", "lo"):
            yield part

    async def run() -> list[str]:
        store = MulliganConversationStore(tmp_path)
        found = []
        for _ in range(2):  # the second time as after a crash: nothing was saved
            durability = MulliganDurability(store)
            agent = Agent(FunctionModel(stream_function=stream), capabilities=[durability])
            conversation = Conversation(conversation_id="c")
            async with agent.run_stream("hi", conversation=conversation) as result:
                found.append("".join([text async for text in result.stream_text(delta=True)]))
        store.close()
        return found

    assert asyncio.run(run()) == ["hello", "hello"]
    assert asked == [1]
