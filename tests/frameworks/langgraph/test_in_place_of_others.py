"""Programs that used another saver find with ours what they relied on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from mulligan.errors import InvalidName
from tests.frameworks.langgraph.graphs import loop_graph, start, story
from tests.frameworks.needed import needed

needed("langgraph.graph")

Config = dict[str, Any]


def copy_thread(source: Any, target: Any, config: Config) -> None:
    """Copy the checkpoints of a thread from one saver to another, the oldest first."""
    for found in reversed(list(source.list(config))):
        before = found.parent_config or {"configurable": {**config["configurable"]}}
        before["configurable"].setdefault("checkpoint_ns", "")
        versions = found.checkpoint["channel_versions"]
        made = target.put(before, found.checkpoint, found.metadata, versions)
        for task, writes in groupby(found.pending_writes, key=lambda write: write[0]):
            target.put_writes(made, [(channel, value) for _, channel, value in writes], task)


def test_a_thread_that_another_saver_began_is_continued(saver: Any, config: Config) -> None:
    """Its versions are strings, which LangGraph compares with those that are given later."""
    from langgraph.checkpoint.memory import InMemorySaver

    other = InMemorySaver()
    loop_graph(other, until=3).invoke(start(), config)
    copy_thread(other, saver, config)
    stories = []
    for one in (other, saver):
        graph = loop_graph(one, until=6)
        graph.invoke({"n": 3}, config)
        stories.append(story(graph, config))
    assert stories[0] == stories[1]
    versions = saver.get_tuple(config).checkpoint["channel_versions"]
    assert all(type(version) is str for version in versions.values())


def test_a_saver_is_closed_at_the_end_of_an_asynchronous_block(
    tmp_path: Path, config: Config
) -> None:
    from mulligan.errors import StoreClosed
    from mulligan.integrations.langgraph import MulliganSaver

    async def use() -> Any:
        async with MulliganSaver(tmp_path / "store") as saver:
            await loop_graph(saver).ainvoke(start(), config)
            return saver

    saver = asyncio.run(use())
    with pytest.raises(StoreClosed):
        saver.get_tuple(config)


def test_metadata_is_filtered_by_nested_keys(saver: Any, config: Config) -> None:
    from langgraph.checkpoint.base import empty_checkpoint

    metadata = {"source": "input", "user": {"name": "ann"}, "a.b": 1}
    saver.put(config, empty_checkpoint(), metadata, {})
    for filter, is_there in (
        ({"user.name": "ann"}, True),
        ({"user.name": "bob"}, False),
        ({"user.name.first": "ann"}, False),
        ({"a.b": 1}, True),
        ({"source": "input", "user.name": "ann"}, True),
    ):
        assert bool(list(saver.list(config, filter=filter))) is is_there, filter


def test_a_delta_channel_that_was_stored_whole_is_until_it_is_written_again(
    saver: Any, config: Config
) -> None:
    """So a channel that a graph writes seldom is not built from its history at every start."""
    from langgraph.channels import DeltaChannel
    from langgraph.graph import START, StateGraph

    asked: list[Sequence[str]] = []
    history = saver.get_delta_channel_history

    def noted(*, config: Any, channels: Sequence[str]) -> Any:
        asked.append(channels)
        return history(config=config, channels=channels)

    def merge(before: list[Any], writes: Any) -> list[Any]:
        return [*before, *(item for write in writes for item in write)]

    seldom = Annotated[list[Any], DeltaChannel(merge, snapshot_frequency=1)]
    State = TypedDict("State", {"seldom": seldom, "n": int})  # noqa: UP013
    builder = StateGraph(State)  # type: ignore[type-var]
    builder.add_node("count", lambda state: {"n": state["n"] + 1})
    builder.add_edge(START, "count")
    graph = builder.compile(checkpointer=saver)
    words = ["x" * 100] * 20
    graph.invoke({"seldom": words, "n": 0}, config)  # type: ignore[arg-type]
    saver.get_delta_channel_history = noted
    for number in range(3):
        graph.invoke({"n": number}, config)  # type: ignore[arg-type]
        assert graph.get_state(config).values == {"seldom": words, "n": number + 1}
    assert asked == []


def test_updates_of_one_call_are_applied_in_their_order(saver: Any, config: Config) -> None:
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import StateUpdate

    found = []
    for one in (saver, InMemorySaver()):
        graph = loop_graph(one)
        graph.invoke(start(), config)
        words = [("user", f"word {number}") for number in range(6)]
        updates = [StateUpdate({"messages": [word]}, "answer") for word in words]
        graph.bulk_update_state(config, [[update] for update in updates])
        found.append([m.content for m in graph.get_state(config).values["messages"]])
    assert found[0] == found[1]
    assert found[0][-6:] == [f"word {number}" for number in range(6)]


@pytest.mark.parametrize("id", ["half \ud83d", "x" * 991])
def test_an_id_that_no_thread_can_have_is_refused_before_anything_runs(saver: Any, id: str) -> None:
    graph = loop_graph(saver)
    config = {"configurable": {"thread_id": id}}
    calls: list[Callable[[], Any]] = [
        lambda: graph.invoke(start(), config),
        lambda: graph.get_state(config),
        lambda: [*graph.get_state_history(config)],
        lambda: saver.copy_thread("thread-1", id) or saver.copy_thread(id, "thread-1"),
    ]
    for call in calls:
        with pytest.raises(InvalidName, match="No thread of a graph"):
            call()
    saver.delete_thread(id)  # there is none, as of any other id
    assert saver.store.sessions() == []


def test_ids_of_threads_are_any_other_text(saver: Any) -> None:
    graph = loop_graph(saver)
    for id in ("", " ", "../x", "a\0b", "😀" * 200, "y" * 990):
        config = {"configurable": {"thread_id": id}}
        assert graph.invoke(start(), config)["n"] == 5
        assert len([*graph.get_state_history(config)]) == 7
    assert len({one.config["configurable"]["thread_id"] for one in saver.list(None)}) == 6
