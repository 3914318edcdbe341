"""Real graphs behave with our saver as with LangGraph's own in memory.

Each scenario runs with both, and results and histories are compared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.frameworks.langgraph.graphs import loop_graph, start, story, words_state
from tests.frameworks.needed import needed

needed("langgraph.graph")

Config = dict[str, Any]
Scenario = Callable[[Any, Config], Any]


def plain_run(saver: Any, config: Config) -> Any:
    graph = loop_graph(saver)
    return graph.invoke(start(), config), story(graph, config)


def two_turns(saver: Any, config: Config) -> Any:
    graph = loop_graph(saver)
    graph.invoke(start(), config)
    return graph.invoke({"n": 3}, config), story(graph, config)


def time_travel(saver: Any, config: Config) -> Any:
    """Run again from the middle: the branch has its own checkpoints, the old ones stay."""
    graph = loop_graph(saver)
    graph.invoke(start(), config)
    middle = list(graph.get_state_history(config))[3]
    result = graph.invoke(None, middle.config)
    return result, story(graph, config), story(graph, middle.config)


def edited_past(saver: Any, config: Config) -> Any:
    """Change the state at an earlier checkpoint and go on from there."""
    graph = loop_graph(saver)
    graph.invoke(start(), config)
    middle = list(graph.get_state_history(config))[3]
    branch = graph.update_state(middle.config, {"n": 4})
    return graph.invoke(None, branch), story(graph, config)


def removed_message(saver: Any, config: Config) -> Any:
    """A list does not only grow: messages are removed and exchanged by their id."""
    from langchain_core.messages import AIMessage, RemoveMessage

    graph = loop_graph(saver)
    graph.invoke(start(), config)
    graph.update_state(config, {"messages": [RemoveMessage(id="answer-2")]})
    graph.update_state(config, {"messages": [AIMessage(content="other", id="answer-1")]})
    return graph.get_state(config).values, story(graph, config)


def message_edited_in_place(saver: Any, config: Config) -> Any:
    """As in LangGraph's tutorials: take a message of the state, change it, send it back."""
    graph = loop_graph(saver, until=30)
    graph.invoke(start(), {**config, "recursion_limit": 50})
    third = graph.get_state(config).values["messages"][3]
    third.content = "changed by hand"
    graph.update_state(config, {"messages": [third]})
    return graph.get_state(config).values["messages"][3].content, story(graph, config)


def interrupted(saver: Any, config: Config) -> Any:
    """Wait for a person in a node, and go on with the answer."""
    from langgraph.graph import START, StateGraph
    from langgraph.types import Command, interrupt

    def ask(state: Any) -> Any:
        return {"words": [interrupt("which word?"), interrupt("and then?")]}

    builder = StateGraph(words_state())
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=saver)
    waiting = graph.invoke({"words": ["one"]}, config)
    graph.invoke(Command(resume="two"), config)
    result = graph.invoke(Command(resume="three"), config)
    return [i.value for i in waiting["__interrupt__"]], result, story(graph, config)


def breakpoints(saver: Any, config: Config) -> Any:
    """Stop before a node, look, change the state, go on."""
    graph = loop_graph(saver)
    graph.invoke(start(), config, interrupt_before=["answer"])
    before = graph.get_state(config).next
    graph.update_state(config, {"n": 3})
    return before, graph.invoke(None, config), story(graph, config)


def subgraphs(saver: Any, config: Config) -> Any:
    """A graph in a graph has checkpoints of its own, and is interrupted and resumed inside."""
    from langgraph.graph import START, StateGraph
    from langgraph.types import Command, interrupt

    inner = StateGraph(words_state())
    inner.add_node("first", lambda state: {"words": ["inner"]})
    inner.add_node("second", lambda state: {"words": [interrupt("inside")]})
    inner.add_edge(START, "first")
    inner.add_edge("first", "second")
    outer = StateGraph(words_state())
    outer.add_node("nested", inner.compile())
    outer.add_node("after", lambda state: {"words": ["after"]})
    outer.add_edge(START, "nested")
    outer.add_edge("nested", "after")
    graph = outer.compile(checkpointer=saver)
    graph.invoke({"words": ["one"]}, config)
    inside = graph.get_state(config, subgraphs=True).tasks[0].state
    result = graph.invoke(Command(resume="answer"), config)
    return inside.values, inside.next, result, story(graph, config)


def remembering_subgraph(saver: Any, config: Config) -> Any:
    """A subgraph with ``checkpointer=True`` keeps its state between turns, and travels in time."""
    from langgraph.graph import START, StateGraph

    inner = StateGraph(words_state())
    inner.add_node("add", lambda state: {"words": [f"seen {len(state['words'])}"]})
    inner.add_edge(START, "add")
    outer = StateGraph(words_state())
    outer.add_node("nested", inner.compile(checkpointer=True))
    outer.add_edge(START, "nested")
    graph = outer.compile(checkpointer=saver)
    results = [graph.invoke({"words": [word]}, config) for word in ("a", "b", "c")]
    past = [s for s in graph.get_state_history(config) if s.next == ("nested",)][1]
    return results, graph.invoke(None, past.config), story(graph, config)


def fan_out(saver: Any, config: Config) -> Any:
    """Several tasks of one step, made by ``Send``; one fails, and only it runs again."""
    from langgraph.graph import START, StateGraph
    from langgraph.types import Send

    runs: list[str] = []

    def is_saved(*words: str) -> bool:
        found = saver.get_tuple(config)
        saved = [value for _, _, value in (found.pending_writes if found else [])]
        return all([word] in saved for word in words)

    def work(state: Any) -> Any:
        runs.append(state["word"])
        if state["word"] == "b" and runs.count("b") == 1:
            while not is_saved("A", "C"):  # else LangGraph may stop them, and run them again
                time.sleep(0.001)
            raise RuntimeError("once")
        return {"words": [state["word"].upper()]}

    builder = StateGraph(words_state())
    builder.add_node("split", lambda state: {"words": ["split"]})
    builder.add_node("work", work)
    builder.add_edge(START, "split")
    builder.add_conditional_edges("split", lambda s: [Send("work", {"word": w}) for w in "abc"])
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(RuntimeError):
        graph.invoke({"words": []}, config)
    failed = [(t.name, t.error) for t in graph.get_state(config).tasks]
    return failed, graph.invoke(None, config), sorted(runs), story(graph, config)


def branches_from_one_point(saver: Any, config: Config) -> Any:
    """Three branches from one checkpoint, and each of them goes on."""
    graph = loop_graph(saver)
    graph.invoke(start(), config)
    middle = list(graph.get_state_history(config))[2]
    tips = [graph.update_state(middle.config, {"n": n}) for n in (0, 2, 4)]
    results = [graph.invoke(None, tip) for tip in tips]
    return [len(r["messages"]) for r in results], len(story(graph, config))


def functional_api(saver: Any, config: Config) -> Any:
    """Tasks of the functional API are not run again after an interrupt."""
    from langgraph.func import entrypoint, task
    from langgraph.types import Command, interrupt

    runs: list[int] = []

    @task
    def double(n: int) -> int:
        runs.append(n)
        return 2 * n

    @entrypoint(checkpointer=saver)
    def flow(n: int, *, previous: Any = None) -> Any:
        doubled = [double(n + i).result() for i in range(3)]
        return {"sum": sum(doubled), "answer": interrupt("?"), "previous": previous}

    flow.invoke(1, config)
    first = flow.invoke(Command(resume="yes"), config)
    flow.invoke(5, config)
    return first, flow.invoke(Command(resume="no"), config), runs


SCENARIOS = [
    plain_run,
    two_turns,
    time_travel,
    edited_past,
    removed_message,
    message_edited_in_place,
    interrupted,
    breakpoints,
    subgraphs,
    remembering_subgraph,
    fan_out,
    branches_from_one_point,
    functional_api,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_same_as_with_the_saver_in_memory(
    scenario: Scenario, saver: Any, config: Config
) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    assert scenario(saver, config) == scenario(InMemorySaver(), config)
    assert saver.store.verify().ok


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_every_durability_keeps_the_result(durability: str, saver: Any, config: Config) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    found = []
    for one in (saver, InMemorySaver()):
        graph = loop_graph(one)
        graph.invoke(start(), config, durability=durability)
        graph.invoke({"n": 2}, config, durability=durability)
        found.append(story(graph, config))
    assert found[0] == found[1]


def test_a_graph_that_is_awaited(saver: Any, config: Config) -> None:
    async def run() -> Any:
        graph = loop_graph(saver)
        await graph.ainvoke(start(), config)
        past = [snapshot async for snapshot in graph.aget_state_history(config)]
        again = await graph.ainvoke(None, past[3].config)
        return again["n"], len([s async for s in graph.aget_state_history(config)])

    assert asyncio.run(run()) == (5, 11)


def test_threads_that_run_at_once(saver: Any) -> None:
    """Many threads of one saver, awaited together: none sees another's state."""
    graph = loop_graph(saver)

    async def one(number: int) -> list[str]:
        config = {"configurable": {"thread_id": f"thread {number}"}}
        await graph.ainvoke(start(f"hello {number}"), config)
        found = await graph.aget_state(config)
        return [message.content for message in found.values["messages"]]

    async def all_of_them() -> list[list[str]]:
        return await asyncio.gather(*(one(number) for number in range(8)))

    answers = [f"answer {n}" for n in range(5)]
    assert asyncio.run(all_of_them()) == [[f"hello {n}", *answers] for n in range(8)]


def test_the_history_of_all_threads(saver: Any) -> None:
    graph = loop_graph(saver, until=1)
    for name in ("one", "a name / with: odd characters", "x" * 300):
        graph.invoke(start(), {"configurable": {"thread_id": name}})
    found = {t.config["configurable"]["thread_id"] for t in saver.list(None)}
    assert found == {"one", "a name / with: odd characters", "x" * 300}
