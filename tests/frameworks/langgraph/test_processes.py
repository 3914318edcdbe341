"""Several savers on one store, as several processes have them, and Mulligan's own commands."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

from tests.frameworks.langgraph.graphs import loop_graph, start, story
from tests.frameworks.langgraph.test_values import put
from tests.frameworks.needed import needed

needed("langgraph.graph")

Config = dict[str, Any]


def test_two_savers_see_each_other(saver: Any, config: Config) -> None:
    from mulligan.integrations.langgraph import MulliganSaver

    other = MulliganSaver(saver.store)
    mine, theirs = loop_graph(saver), loop_graph(other)
    mine.invoke(start(), config)
    for turn in range(3):
        theirs.invoke({"n": 3}, config)
        mine.invoke({"n": 4}, config)
        assert len(mine.get_state(config).values["messages"]) == 6 + 3 * (turn + 1)
    assert story(mine, config) == story(theirs, config)


def writer(directory: Path, name: str, count: int) -> None:
    from langchain_core.messages import AIMessage

    from mulligan.integrations.langgraph import MulliganSaver

    with MulliganSaver(directory) as saver:
        place: Config = {"configurable": {"thread_id": "shared", "checkpoint_ns": ""}}
        messages: list[Any] = []
        for step in range(1, count + 1):
            said = AIMessage(content=f"{name} {step} {'x' * 200}", id=f"{name}-{step}")
            messages = [*messages, said]
            if step > 1:
                saver.put_writes(place, [("messages", [said])], f"task-{name}-{step}")
            place = put(saver, place, {"messages": messages, "by": name}, step)


def test_processes_that_write_one_thread_at_once(tmp_path: Path) -> None:
    """Each has a branch of its own, and none loses or mixes a list."""
    from mulligan.integrations.langgraph import MulliganSaver

    names, count = ["a", "b", "c"], 30
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=writer, args=(tmp_path / "store", name, count)) for name in names
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    with MulliganSaver(tmp_path / "store") as saver:
        found = list(saver.list({"configurable": {"thread_id": "shared"}}))
        assert len(found) == len(names) * count
        for one in found:
            values = one.checkpoint["channel_values"]
            wanted = [f"{values['by']}-{n + 1}" for n in range(len(values["messages"]))]
            assert [message.id for message in values["messages"]] == wanted
            direct = saver.get_tuple(one.config)
            assert direct.checkpoint == one.checkpoint
            assert direct.pending_writes == one.pending_writes
        assert saver.store.verify().ok


def test_a_restore_of_the_session_takes_the_graph_back(saver: Any, config: Config) -> None:
    """``mulligan restore`` and ``undo`` are time travel, too."""
    graph = loop_graph(saver)
    graph.invoke(start(), config, durability="sync")
    session = saver.store.session("langgraph-thread-1")
    third = session.checkpoints()[3]
    session.restore(third.seq)
    assert graph.get_state(config).values["n"] == 2
    result = graph.invoke(None, config)
    assert [m.content for m in result["messages"][1:]] == [f"answer {n}" for n in range(5)]
    session.undo()
    assert graph.get_state(config).values["n"] == 5
    assert saver.store.verify().ok


def test_what_was_written_before_a_restore_is_not_referred_to(saver: Any, config: Config) -> None:
    """Other writes are in its place since."""
    from langchain_core.messages import AIMessage

    from mulligan.integrations.langgraph import MulliganSaver

    first = put(saver, config, {"messages": []}, 1)
    session = saver.store.session("langgraph-thread-1")
    long, other = (AIMessage(content=text * 100, id=text) for text in ("long", "other"))
    saver.put_writes(first, [("messages", [long])], "task-1")
    session.restore(session.checkpoints()[0].seq)
    saver.put_writes(first, [("messages", [other])], "task-2")
    second = put(saver, first, {"messages": [long]}, 2)
    fresh = MulliganSaver(saver.store)
    assert fresh.get_tuple(second).checkpoint["channel_values"]["messages"] == [long]
    assert fresh.get_tuple(first).pending_writes == [("task-2", "messages", [other])]


def test_a_fork_of_the_session_is_a_thread_of_its_own(saver: Any, config: Config) -> None:
    graph = loop_graph(saver)
    graph.invoke(start(), config, durability="sync")
    session = saver.store.session("langgraph-thread-1")
    session.fork(session.checkpoints()[3].seq, "langgraph-branch", key="langgraph:branch")
    branch = {"configurable": {"thread_id": "branch"}}
    assert graph.get_state(branch).values["n"] == 2
    assert graph.invoke(None, branch)["n"] == 5
    assert len(graph.get_state(config).values["messages"]) == 6
