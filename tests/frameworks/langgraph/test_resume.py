"""``resume_input``: whether a thread is started or continued."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.frameworks.langgraph.graphs import loop_graph, start
from tests.frameworks.needed import needed

needed("langgraph.graph")

Config = dict[str, Any]


def test_a_new_thread_gets_the_input(saver: Any, config: Config) -> None:
    from mulligan.integrations.langgraph import resume_input

    given = start()
    assert resume_input(loop_graph(saver), given, config) is given
    assert resume_input(loop_graph(saver), given, config, once=True) is given


def test_a_thread_that_failed_is_continued(saver: Any, config: Config) -> None:
    from mulligan.integrations.langgraph import aresume_input, resume_input

    runs: list[int] = []

    def fail_once(state: Any) -> None:
        runs.append(state["n"])
        if runs.count(2) == 1 and state["n"] == 2:
            raise RuntimeError("once")

    graph = loop_graph(saver, act=fail_once)
    with pytest.raises(RuntimeError):
        graph.invoke(resume_input(graph, start(), config), config)
    assert asyncio.run(aresume_input(graph, start(), config)) is None
    result = graph.invoke(resume_input(graph, start(), config), config)
    assert (runs, len(result["messages"])) == ([0, 1, 2, 2, 3, 4], 6)


def test_a_finished_thread_gets_its_next_turn(saver: Any, config: Config) -> None:
    from mulligan.integrations.langgraph import resume_input

    graph = loop_graph(saver)
    graph.invoke(resume_input(graph, start(), config), config)
    again = {"n": 4}
    assert resume_input(graph, again, config) is again


def test_a_finished_job_gives_its_result_again(saver: Any, config: Config) -> None:
    from mulligan.integrations.langgraph import aresume_input, resume_input

    runs: list[int] = []
    graph = loop_graph(saver, act=lambda state: runs.append(state["n"]))
    first = graph.invoke(resume_input(graph, start(), config, once=True), config)
    second = graph.invoke(resume_input(graph, start(), config, once=True), config)
    assert first == second
    assert runs == [0, 1, 2, 3, 4]
    assert asyncio.run(aresume_input(graph, start(), config, once=True)) is None


def test_an_answer_is_passed_on(saver: Any, config: Config) -> None:
    from langgraph.types import Command

    from mulligan.integrations.langgraph import resume_input

    graph = loop_graph(saver)
    graph.invoke(start(), config, interrupt_before=["answer"])
    answer: Any = Command(resume="yes")
    assert resume_input(graph, answer, config) is answer
    assert resume_input(graph, start(), config) is None
