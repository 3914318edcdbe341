"""Checkpoints of the Agent Framework: stored as by its own storages, and resumed after a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.frameworks.killed import Program
from tests.frameworks.needed import needed

needed("agent_framework")

from agent_framework import (
    Executor,
    InMemoryCheckpointStorage,
    Message,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    handler,
    response_handler,
)

from mulligan.integrations.agent_framework import MulliganCheckpointStorage

FILE = Path(__file__).with_name("program.py")


@dataclass
class Own:
    number: int
    inside: Any = None


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[MulliganCheckpointStorage]:
    opened = MulliganCheckpointStorage(tmp_path)
    yield opened
    opened.close()


def checkpoint(id: str, workflow: str, number: int, **fields: Any) -> WorkflowCheckpoint:
    return WorkflowCheckpoint(
        workflow_name=workflow,
        graph_signature_hash="hash",
        checkpoint_id=id,
        timestamp=f"2026-01-01T00:00:{number % 60:02}+00:00",
        state={"n": Own(number, (number,)), "text": "x"},
        iteration_count=number,
        **fields,
    )


IDS, NAMES = st.sampled_from("abc"), st.sampled_from(["v", "w"])
OPERATIONS = st.one_of(
    st.tuples(st.just("save"), IDS, NAMES),
    st.tuples(st.just("save"), IDS, NAMES),
    st.tuples(st.just("load"), IDS, NAMES),
    st.tuples(st.just("delete"), IDS, NAMES),
    st.tuples(st.just("list"), IDS, NAMES),
    st.tuples(st.just("ids"), IDS, NAMES),
    st.tuples(st.just("latest"), IDS, NAMES),
)


async def apply(storage: Any, number: int, operation: tuple[str, str, str]) -> Any:
    """Return what an operation returns, or the kind of error that it raises."""
    what, id, name = operation
    try:
        if what == "save":
            return await storage.save(checkpoint(f"{id}-{name}", name, number))
        if what == "load":
            return await storage.load(f"{id}-{name}")
        if what == "delete":
            return await storage.delete(f"{id}-{name}")
        if what == "list":
            found = await storage.list_checkpoints(workflow_name=name)
            return sorted(found, key=lambda c: c.checkpoint_id)
        if what == "ids":
            return sorted(await storage.list_checkpoint_ids(workflow_name=name))
        return await storage.get_latest(workflow_name=name)
    except WorkflowCheckpointException as error:
        return str(error)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(OPERATIONS, max_size=20))
def test_it_does_what_the_frameworks_own_storage_does(operations: list[Any]) -> None:
    async def run() -> None:
        ours, theirs = MulliganCheckpointStorage("memory:"), InMemoryCheckpointStorage()
        for number, operation in enumerate(operations):
            expected = await apply(theirs, number, operation)
            assert await apply(ours, number, operation) == expected, operation

    asyncio.run(run())


def test_messages_of_the_framework_come_back(storage: MulliganCheckpointStorage) -> None:
    said = [Message(role="user", contents=["hello"]), Message(role="assistant", contents=["hi"])]
    made = checkpoint("a", "w", 1, metadata={"chat": said})

    async def run() -> Any:
        await storage.save(made)
        made.metadata["chat"].clear()  # a later change of the program changes nothing stored
        return await storage.load("a")

    found = asyncio.run(run()).metadata["chat"]
    assert [(type(m), m.role, m.text) for m in found] == [
        (Message, "user", "hello"),
        (Message, "assistant", "hi"),
    ]


def test_what_cannot_be_stored_without_pickle_is_an_error_of_the_framework(
    storage: MulliganCheckpointStorage,
) -> None:
    with pytest.raises(WorkflowCheckpointException, match=r"cannot be stored\. Use plain values"):
        asyncio.run(storage.save(checkpoint("a", "w", 1, metadata={"f": lambda: None})))


def test_only_allowed_classes_are_read(tmp_path: Path) -> None:
    open_one = MulliganCheckpointStorage(tmp_path)
    strict = MulliganCheckpointStorage(tmp_path, allowed_checkpoint_types=[])
    asyncio.run(open_one.save(checkpoint("a", "w", 1)))
    with pytest.raises(WorkflowCheckpointException, match=r"not allowed here\. .* Add it"):
        asyncio.run(strict.load("a"))
    strict.close()
    open_one.close()


def save_many(path: str, writer: int) -> None:
    storage = MulliganCheckpointStorage(path)

    async def run() -> None:
        for number in range(20):
            await storage.save(checkpoint(f"{writer}.{number}", f"w{writer}", number))

    asyncio.run(run())
    storage.close()


def test_two_processes_save_to_one_storage(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2) as processes:
        for done in [processes.submit(save_many, str(tmp_path), writer) for writer in (1, 2)]:
            done.result()
    storage = MulliganCheckpointStorage(tmp_path)
    for writer in (1, 2):
        found = asyncio.run(storage.list_checkpoints(workflow_name=f"w{writer}"))
        assert [c.state["n"].number for c in found] == [*range(20)]
        assert {c.workflow_name for c in found} == {f"w{writer}"}
    storage.close()


def test_a_copy_keeps_what_is_deleted_in_its_source(storage: MulliganCheckpointStorage) -> None:
    source = storage.timeline

    async def run() -> list[str]:
        for number in range(4):
            await storage.save(checkpoint(f"c{number}", "one", number))
        storage._handles.store.copy(source.name, "agent-framework+copy")
        copy = MulliganCheckpointStorage(storage._handles.store, name="copy")
        assert await storage.delete("c1")
        return await copy.list_checkpoint_ids(workflow_name="one")

    assert asyncio.run(run()) == ["c0", "c1", "c2", "c3"]


def test_a_dictionary_keeps_its_order(storage: MulliganCheckpointStorage) -> None:
    async def run() -> Any:
        made = checkpoint("c", "one", 1)
        made.state = {"b": {"d": 1, "c": 2}, "a": 3}
        await storage.save(made)
        return (await storage.load("c")).state

    assert repr(asyncio.run(run())) == "{'b': {'d': 1, 'c': 2}, 'a': 3}"


def test_a_list_that_grew_shares_what_it_had(tmp_path: Path) -> None:
    storage = MulliganCheckpointStorage(tmp_path)
    chat: list[Any] = []

    def size() -> int:
        return sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*"))

    async def grow(count: int) -> None:
        for _ in range(count):
            number = len(chat)
            chat.append(Message(role="user", contents=[f"{number} {hash(str(number))}" * 20]))
            await storage.save(checkpoint(f"c{number}", "w", number, metadata={"chat": chat}))

    asyncio.run(grow(60))
    first = size()
    asyncio.run(grow(60))
    second = size()
    asyncio.run(grow(60))
    third = size()
    storage.close()
    assert third - second < 2 * max(second - first, first)


def test_a_killed_workflow_goes_on_after_its_last_step(tmp_path: Path) -> None:
    Program(FILE, tmp_path).kill_when(tmp_path / "started")
    (tmp_path / "go").touch()
    printed = Program(FILE, tmp_path).output().strip()
    assert printed == "[\"Bill(amount=3, paid=(1, 2)) {'amount': 1}\"]"
    assert (tmp_path / "log.txt").read_text().splitlines() == ["pay 1", "wait 2", "wait 2"]
    # It has ended: started once more, it begins again with its message.
    Program(FILE, tmp_path).output()
    assert (tmp_path / "log.txt").read_text().splitlines()[3:] == ["pay 1", "wait 2"]


class Asking(Executor):
    @handler
    async def ask(self, text: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.request_info(Own(1, text), str)

    @response_handler
    async def answered(self, asked: Own, answer: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"{asked.inside}: {answer}")


def asking() -> Any:
    asks = Asking(id="asks")
    return WorkflowBuilder(start_executor=asks, name="asking", output_from=[asks]).build()


def test_a_workflow_that_waits_for_a_person_goes_on_in_another_process(tmp_path: Path) -> None:
    async def ask() -> None:
        storage = MulliganCheckpointStorage(tmp_path)
        workflow = asking()
        await workflow.run(**await storage.resume_input(workflow, "really?"))
        storage.close()

    async def answer() -> list[Any]:
        storage = MulliganCheckpointStorage(tmp_path)
        workflow = asking()
        given = await storage.resume_input(workflow, "really?")
        assert "checkpoint_id" in given
        waiting = await workflow.run(**given)
        [event] = waiting.get_request_info_events()
        done = await workflow.run(responses={event.request_id: "yes"})
        storage.close()
        return list(done.get_outputs())

    asyncio.run(ask())
    assert asyncio.run(answer()) == ["really?: yes"]


class Adding(Executor):
    """Adds one and hands on, or gives the sum out."""

    def __init__(self, id: str, done: list[str], *, is_last: bool = False) -> None:
        super().__init__(id=id)
        self.done, self.is_last = done, is_last

    @handler
    async def add(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        self.done.append(self.id)
        if self.is_last:
            await ctx.yield_output(number + 1)
        else:
            await ctx.send_message(number + 1)


def test_a_workflow_starts_again_at_an_earlier_checkpoint(
    storage: MulliganCheckpointStorage,
) -> None:
    done: list[str] = []

    def adding() -> Any:
        first, second = Adding("first", done), Adding("second", done)
        last = Adding("last", done, is_last=True)
        builder = WorkflowBuilder(start_executor=first, name="adding", output_from=[last])
        return builder.add_edge(first, second).add_edge(second, last).build()

    async def run() -> list[Any]:
        outputs = [(await adding().run(message=1, checkpoint_storage=storage)).get_outputs()]
        saved = await storage.list_checkpoints(workflow_name="adding")
        [after_first] = [c for c in saved if "first" in c.messages]
        id = after_first.checkpoint_id
        again = await adding().run(checkpoint_id=id, checkpoint_storage=storage)
        return [*outputs, again.get_outputs()]

    assert asyncio.run(run()) == [[4], [4]]
    assert done == ["first", "second", "last", "second", "last"]


def test_a_deleted_checkpoint_is_erased_and_its_id_can_be_used_again(
    storage: MulliganCheckpointStorage,
) -> None:
    async def run() -> None:
        for number in range(3):
            await storage.save(checkpoint(f"c{number}", "w", number))
        for id in ("c0", "c2"):  # the newest one of a session is only hidden
            assert await storage.delete(id)
            assert not await storage.delete(id)
        assert await storage.list_checkpoint_ids(workflow_name="w") == ["c1"]
        assert storage.timeline.checkpoints.find("c0") is None
        for id in ("c0", "c2"):
            await storage.save(checkpoint(id, "w", 7))
            assert (await storage.load(id)).iteration_count == 7
            assert await storage.delete(id)

    asyncio.run(run())
