"""Threads and checkpoints that are copied, pruned and deleted, also with delta channels."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from mulligan.errors import MulliganError
from mulligan.store import engine_of
from mulligan.upkeep.retention.policy import Policy
from mulligan.upkeep.retention.prune import Pruner
from tests.frameworks.langgraph.graphs import loop_graph, start, story, words_state
from tests.frameworks.langgraph.test_values import put
from tests.frameworks.needed import needed

needed("langgraph.graph")

Config = dict[str, Any]


def delta_graph(saver: Any, steps: int, frequency: int = 1000) -> Any:
    """Return a graph whose list is a delta channel that is stored every so often."""
    from langgraph.channels import DeltaChannel
    from langgraph.graph import END, START, StateGraph

    def merge(state: list[str], writes: Any) -> list[str]:
        return [*state, *(word for write in writes for word in write)]

    channel = DeltaChannel(merge, snapshot_frequency=frequency)
    State = TypedDict("State", {"words": Annotated[list[str], channel]})  # noqa: UP013
    builder = StateGraph(State)
    builder.add_node("add", lambda state: {"words": [f"word {len(state['words'])}"]})
    builder.add_edge(START, "add")
    builder.add_conditional_edges("add", lambda s: "add" if len(s["words"]) < steps else END)
    return builder.compile(checkpointer=saver)


WORDS = ["start", *(f"word {n}" for n in range(1, 12))]


@pytest.mark.parametrize("frequency", [1, 4, 1000])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_delta_channel_is_rebuilt(
    frequency: int, durability: str, saver: Any, config: Config
) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    found = []
    for one in (saver, InMemorySaver()):
        graph = delta_graph(one, 12, frequency)
        graph.invoke({"words": ["start"]}, config, durability=durability)
        past = list(graph.get_state_history(config))
        if durability != "exit":
            graph.invoke(None, past[5].config, durability=durability)
        found.append(story(graph, config))
    assert found[0] == found[1]
    assert found[0][0][0]["words"] == WORDS


@pytest.mark.parametrize("frequency", [1, 5, 1000])
def test_a_pruned_thread_keeps_what_its_delta_channels_are_built_from(
    frequency: int, saver: Any, config: Config
) -> None:
    graph = delta_graph(saver, 12, frequency)
    graph.invoke({"words": ["start"]}, config)
    before = len(list(saver.list(config)))
    saver.prune([config["configurable"]["thread_id"]])
    assert graph.get_state(config).values["words"] == WORDS
    left = len(list(saver.list(config)))
    assert left == {1: 1, 1000: before}.get(frequency, left)
    assert left < before or frequency == 1000
    graph.update_state(config, {"words": ["more"]})
    assert graph.get_state(config).values["words"] == [*WORDS, "more"]


def test_runs_that_a_delta_channel_needs_are_not_deleted(saver: Any, config: Config) -> None:
    graph = delta_graph(saver, 3)
    first = {**config, "metadata": {"run_id": "run-1"}}
    graph.invoke({"words": ["start"]}, first)
    graph.invoke({"words": ["more"]}, {**config, "metadata": {"run_id": "run-2"}})
    words = graph.get_state(config).values["words"]
    saver.delete_for_runs(["run-1"])
    assert graph.get_state(config).values["words"] == words


def test_a_pruned_thread_goes_on(saver: Any, config: Config) -> None:
    """Its list refers to nothing that was removed, and the removed bytes are erased."""
    graph = loop_graph(saver)
    graph.invoke(start("a word that stays"), config)
    saver.prune(["thread-1"])
    assert len(list(saver.list(config))) == 1
    graph.invoke({"n": 3}, config)
    fresh = loop_graph(reopened(saver))
    found = [message.content for message in fresh.get_state(config).values["messages"]]
    assert found[0] == "a word that stays"
    assert len(found) == 8
    assert saver.store.verify().ok


def reopened(saver: Any) -> Any:
    """Return a saver that knows nothing yet, on the same store."""
    from mulligan.integrations.langgraph import MulliganSaver

    return MulliganSaver(saver.store)


def test_a_pruned_thread_has_no_parent_that_is_gone(saver: Any, config: Config) -> None:
    graph = loop_graph(saver)
    graph.invoke(start(), config)
    before = graph.get_state(config)
    saver.prune(["thread-1"])
    assert graph.get_state(config) == before._replace(parent_config=None)
    assert [found.parent_config for found in saver.list(config)] == [None]
    # The next one has a parent again, and the kept one is still the first.
    branch = graph.update_state(config, {"n": 3})
    assert graph.get_state(branch).parent_config == before.config
    assert [found.parent_config is None for found in saver.list(config)] == [False, True]


def nested(saver: Any, *, remembers: bool | None, asks: bool) -> Any:
    """Return a graph that calls another one, which waits for an answer if it asks."""
    from langgraph.graph import START, StateGraph
    from langgraph.types import interrupt

    def count(state: Any) -> Any:
        return {"words": [interrupt("?") if asks else f"seen {len(state['words'])}"]}

    inner = StateGraph(words_state())
    inner.add_node("count", count)
    inner.add_edge(START, "count")
    outer = StateGraph(words_state())
    outer.add_node("call", inner.compile(checkpointer=remembers))
    outer.add_edge(START, "call")
    return outer.compile(checkpointer=saver)


def namespaces(saver: Any, config: Config) -> list[str]:
    found = (one.config["configurable"]["checkpoint_ns"] for one in saver.list(config))
    return sorted(namespace.partition(":")[0] for namespace in found)


@pytest.mark.parametrize(("remembers", "kept"), [(None, [""]), (True, ["", "call"])])
def test_a_call_of_a_subgraph_goes_with_its_checkpoint(
    remembers: bool | None, kept: list[str], saver: Any, config: Config
) -> None:
    other: Config = {"configurable": {"thread_id": "not-pruned"}}
    graph = nested(saver, remembers=remembers, asks=False)
    for word in "abc":
        graph.invoke({"words": [word]}, config)
        graph.invoke({"words": [word]}, other)
    saver.prune(["thread-1"])
    assert namespaces(saver, config) == kept
    assert graph.invoke({"words": ["d"]}, config) == graph.invoke({"words": ["d"]}, other)


def test_a_subgraph_that_waits_for_an_answer_is_not_pruned(saver: Any, config: Config) -> None:
    from langgraph.types import Command

    graph = nested(saver, remembers=None, asks=True)
    for word in "ab":
        graph.invoke({"words": [word]}, config)
        graph.invoke(Command(resume="yes"), config)
    graph.invoke({"words": ["c"]}, config)
    saver.prune(["thread-1"])
    assert namespaces(saver, config) == ["", "call"]
    assert graph.invoke(Command(resume="no"), config)["words"][-1] == "no"


def test_one_id_in_the_place_of_several_is_refused(saver: Any, config: Config) -> None:
    loop_graph(saver).invoke(start(), config)
    with pytest.raises(TypeError):
        saver.prune("thread-1", strategy="delete")
    with pytest.raises(TypeError):
        saver.delete_for_runs("run-1")
    assert saver.get_tuple(config) is not None


def test_the_latest_run_can_be_deleted(saver: Any, config: Config) -> None:
    graph = loop_graph(saver, until=2)
    graph.invoke(start(), {**config, "metadata": {"run_id": "run-1"}})
    before = story(graph, config)
    graph.invoke({"n": 1}, {**config, "metadata": {"run_id": "run-2"}})
    saver.delete_for_runs(["run-2"])
    assert story(graph, config) == before
    graph.invoke({"n": 1}, config)
    assert graph.get_state(config).values["n"] == 2


def test_a_copy_and_its_source_go_their_own_ways(saver: Any, config: Config) -> None:
    graph = loop_graph(saver)
    graph.invoke(start(), config)
    saver.copy_thread("thread-1", "copy")
    copy = {"configurable": {"thread_id": "copy"}}
    assert story(graph, copy) == story(graph, config)
    graph.update_state(copy, {"n": 9})
    saver.prune(["copy"])
    assert [s.values["n"] for s in graph.get_state_history(copy)] == [9]
    assert len(list(saver.list(config))) == 7
    saver.delete_thread("thread-1")
    assert graph.get_state(copy).values["n"] == 9
    assert graph.get_state(config).values == {}


def test_a_copy_keeps_what_is_pruned_from_its_source(saver: Any, config: Config) -> None:
    graph = loop_graph(saver)
    graph.invoke(start(), config)
    saver.copy_thread("thread-1", "copy")
    copy = {"configurable": {"thread_id": "copy"}}
    before = story(graph, copy)
    saver.prune(["thread-1"])
    assert len(story(graph, config)) == 1
    assert story(graph, copy) == before
    saver.delete_thread("thread-1")
    assert story(graph, copy) == before


def test_a_copy_does_not_replace_a_thread(saver: Any, config: Config) -> None:
    graph = loop_graph(saver, until=1)
    for name in ("one", "two"):
        graph.invoke(start(name), {"configurable": {"thread_id": name}})
    with pytest.raises(MulliganError):
        saver.copy_thread("one", "two")
    found = graph.get_state({"configurable": {"thread_id": "two"}}).values["messages"]
    assert found[0].content == "two"


def test_a_thread_that_another_process_deleted_starts_again(saver: Any, config: Config) -> None:
    graph = loop_graph(saver, until=2)
    graph.invoke(start("old"), config)
    reopened(saver).delete_thread("thread-1")
    assert graph.get_state(config).values == {}
    graph.invoke(start("new"), config)
    assert graph.get_state(config).values["messages"][0].content == "new"
    assert len(list(saver.list(config))) == 4


def test_a_save_after_another_process_deleted_the_thread_makes_a_new_one(
    saver: Any, config: Config
) -> None:
    """Nothing looks the thread up before the transaction, which refuses it."""
    old = put(saver, config, {"words": ["a"]}, 1)
    reopened(saver).delete_thread("thread-1")
    saver.put_writes(old, [("words", ["b"])], "task")
    new = put(saver, config, {"words": ["c"]}, 1)
    assert [found.config for found in saver.list(config)] == [new]
    reopened(saver).delete_thread("thread-1")
    again = put(reopened(saver), config, {"words": ["d"]}, 1)
    after = put(saver, again, {"words": ["d", "e"]}, 2)
    assert [found.config for found in reopened(saver).list(config)] == [after, again]
    assert saver.store.verify().ok


def test_a_checkpoint_that_is_saved_again_replaces_the_one_before(
    saver: Any, config: Config
) -> None:
    from langgraph.checkpoint.base import empty_checkpoint

    checkpoint = empty_checkpoint()
    for text in ("one", "two", "three"):
        checkpoint["channel_values"] = {"text": text, "items": [text]}
        saved = saver.put(config, checkpoint, {"source": "update", "step": 0}, {})
    assert saver.get_tuple(saved).checkpoint["channel_values"]["items"] == ["three"]
    assert [one.checkpoint["channel_values"]["text"] for one in saver.list(config)] == ["three"]


def test_ids_that_do_not_grow_are_listed_in_their_order(saver: Any, config: Config) -> None:
    from langgraph.checkpoint.base import empty_checkpoint

    for id in ("3", "1", "4", "2"):
        saver.put(config, {**empty_checkpoint(), "id": id}, {"source": "loop", "step": 0}, {})
    assert [one.checkpoint["id"] for one in saver.list(config)] == ["4", "3", "2", "1"]
    assert saver.get_tuple(config).checkpoint["id"] == "4"
    before = {"configurable": {"thread_id": "thread-1", "checkpoint_id": "4"}}
    assert [one.checkpoint["id"] for one in saver.list(config, before=before, limit=2)] == [
        "3",
        "2",
    ]


def test_many_namespaces(saver: Any) -> None:
    """Those of subgraphs, one for each of their runs: the state has the lists of the last ones."""
    ids = {}
    for number in range(150):
        place = {"configurable": {"thread_id": "t", "checkpoint_ns": f"node:{number}"}}
        ids[number] = put(saver, place, {"items": [number]}, 1)
    for number, place in ids.items():
        ids[number] = put(saver, place, {"items": [number, "more"]}, 2)
    for number, place in ids.items():
        assert saver.get_tuple(place).checkpoint["channel_values"]["items"] == [number, "more"]
    (session,) = saver.store.sessions()
    graphs = session.state.get("langgraph/graphs")
    assert len(graphs) == 150
    assert sum("id" in graph for graph in graphs.values()) == 64


def test_a_long_namespace_and_a_large_record(saver: Any) -> None:
    from langgraph.checkpoint.base import empty_checkpoint

    place = {"configurable": {"thread_id": "t", "checkpoint_ns": "|".join(["node:id"] * 200)}}
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {f"channel {n}": n for n in range(5_000)}
    checkpoint["channel_versions"] = dict.fromkeys(checkpoint["channel_values"], 1)
    saved = saver.put(place, checkpoint, {"source": "loop", "step": 0}, {})
    for found in (saver.get_tuple(saved), reopened(saver).get_tuple(place), *saver.list(place)):
        assert found.checkpoint["channel_values"] == checkpoint["channel_values"]
        assert found.checkpoint["channel_versions"] == checkpoint["channel_versions"]


def test_a_thread_survives_upkeep(saver: Any, config: Config) -> None:
    """Automatic retention removes none of its checkpoints."""
    graph = loop_graph(saver, until=12)
    graph.invoke(start(), config)
    before = story(graph, config)
    engine = engine_of(saver.store)
    pruned = Pruner(engine, Policy()).run()
    assert pruned is not None
    assert story(loop_graph(reopened(saver)), config) == before
