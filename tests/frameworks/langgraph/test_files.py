"""With a workspace, checkpoints of a graph hold files, and time travel brings them back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mulligan.errors import StateError
from tests.frameworks.langgraph.graphs import loop_graph, start
from tests.frameworks.needed import needed

needed("langgraph.graph")

Config = dict[str, Any]
SYNC: dict[str, Any] = {"durability": "sync"}


@pytest.fixture
def filer(tmp_path: Path, work: Path) -> Iterator[Any]:
    """A saver whose checkpoints hold the files of ``work``."""
    from mulligan.integrations.langgraph import MulliganSaver

    with MulliganSaver(tmp_path / "store", workspace=work) as made:
        yield made


def writing_graph(saver: Any, work: Path) -> Any:
    """Return a graph whose node adds a line to a file at each step."""

    def act(state: Any) -> None:
        with (work / "lines").open("a") as file:
            file.write(f"{state['n']}\n")

    return loop_graph(saver, act=act)


def lines(work: Path) -> str:
    return (work / "lines").read_text().replace("\n", "")


def snapshot(graph: Any, config: Config, n: int) -> Any:
    """Return the first checkpoint of the thread whose ``n`` is this."""
    return [s for s in graph.get_state_history(config) if s.values.get("n") == n][-1]


def test_a_run_from_an_earlier_checkpoint_gets_its_files(
    filer: Any, work: Path, config: Config
) -> None:
    graph = writing_graph(filer, work)
    graph.invoke(start(), config, **SYNC)
    assert lines(work) == "01234"
    (work / "lines").write_text("wrecked\n")
    (work / "stray").write_text("made by hand")
    graph.invoke(None, snapshot(graph, config, 2).config, **SYNC)
    assert lines(work) == "01234"
    assert not (work / "stray").exists()


def test_nothing_that_was_there_is_lost(filer: Any, work: Path, config: Config) -> None:
    graph = writing_graph(filer, work)
    graph.invoke(start(), config, **SYNC)
    (work / "stray").write_text("made by hand")
    graph.update_state(snapshot(graph, config, 2).config, {"n": 9})
    assert lines(work) == "01"
    filer.store.session("langgraph-thread-1", workspace=work).undo()
    assert lines(work) == "01234"
    assert (work / "stray").read_text() == "made by hand"


def test_looking_changes_no_file(filer: Any, work: Path, config: Config) -> None:
    graph = writing_graph(filer, work)
    graph.invoke(start(), config, **SYNC)
    graph.get_state(snapshot(graph, config, 2).config)
    assert lines(work) == "01234"


def test_an_edited_past_has_the_files_of_its_point(filer: Any, work: Path, config: Config) -> None:
    graph = writing_graph(filer, work)
    graph.invoke(start(), config, **SYNC)
    branch = graph.update_state(snapshot(graph, config, 2).config, {"n": 4})
    assert lines(work) == "01"
    graph.invoke(None, branch, **SYNC)
    assert lines(work) == "014"
    graph.invoke(None, snapshot(graph, config, 3).config, **SYNC)
    assert lines(work) == "01234"


def test_the_files_of_a_branch_are_those_of_its_parent(
    filer: Any, work: Path, config: Config
) -> None:
    """Its first checkpoint is saved while the first node runs already."""
    graph = writing_graph(filer, work)
    graph.invoke(start(), config, **SYNC)
    graph.invoke(None, snapshot(graph, config, 2).config, **SYNC)
    (fork,) = [s for s in graph.get_state_history(config) if s.metadata["source"] == "fork"]
    graph.update_state(fork.config, {"n": 8})
    assert lines(work) == "01"


def test_the_next_turn_keeps_edits_of_the_files(filer: Any, work: Path, config: Config) -> None:
    graph = writing_graph(filer, work)
    graph.invoke(start(), config, **SYNC)
    (work / "lines").write_text("edited\n")
    graph.invoke({"n": 4}, config, **SYNC)
    assert lines(work) == "edited4"


def test_a_journey_that_was_not_begun_is_taken_back(filer: Any, work: Path, config: Config) -> None:
    """A process that dies after the restore and before the first save leaves the old files."""
    graph = writing_graph(filer, work)
    graph.invoke(start(), config, **SYNC)
    run = {"__pregel_runtime": object(), "__pregel_durability": "sync"}
    past = snapshot(graph, config, 2).config["configurable"]
    filer.get_tuple({"configurable": {**past, **run}})
    assert lines(work) == "01"
    graph.invoke({"n": 4}, config, **SYNC)
    assert lines(work) == "012344"


def test_runs_that_do_not_wait_for_checkpoints_are_refused(
    filer: Any, work: Path, config: Config
) -> None:
    graph = writing_graph(filer, work)
    with pytest.raises(StateError, match="async"):
        graph.invoke(start(), config)
    assert not (work / "lines").exists()


def test_a_run_that_saves_at_its_end_only(filer: Any, work: Path, config: Config) -> None:
    graph = writing_graph(filer, work)
    graph.invoke(start(), config, durability="exit")
    first = graph.get_state(config).config
    graph.invoke({"n": 4}, config, durability="exit")
    assert lines(work) == "012344"
    graph.update_state(first, {"n": 0})
    assert lines(work) == "01234"


def test_a_graph_that_is_awaited(filer: Any, work: Path, config: Config) -> None:
    async def run() -> None:
        graph = writing_graph(filer, work)
        await graph.ainvoke(start(), config, **SYNC)
        past = [s async for s in graph.aget_state_history(config) if s.values.get("n") == 2]
        await graph.ainvoke(None, past[-1].config, **SYNC)

    asyncio.run(run())
    assert lines(work) == "01234"


def test_a_thread_that_began_without_files(saver: Any, work: Path, config: Config) -> None:
    """Its first checkpoints have none to bring back."""
    from mulligan.integrations.langgraph import MulliganSaver

    loop_graph(saver, until=2).invoke(start(), config)
    filer = MulliganSaver(saver.store, workspace=work)
    graph = writing_graph(filer, work)
    graph.invoke({"n": 3}, config, **SYNC)
    graph.invoke(None, snapshot(graph, config, 1).config, **SYNC)
    assert lines(work) == "341234"
    filer.close()
