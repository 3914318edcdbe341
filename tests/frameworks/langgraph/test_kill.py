"""A program with a graph is killed in the middle, and continues when it is started again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mulligan
from tests.frameworks.needed import needed

needed("langgraph.graph")

AGENT = Path(__file__).with_name("agent.py")
NODES = ["first", "second", "work 0", "work 1", "work 2", "last"]
RESULT = str(sorted(["question", *NODES]))


def begin(tmp_path: Path, durability: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(AGENT), str(tmp_path / "store"), str(tmp_path / "log"), durability],
        stdout=subprocess.PIPE,
        text=True,
    )


def kill_inside(node: str, tmp_path: Path, durability: str, others_done: set[str]) -> None:
    """Start the program, and kill it once it is inside a node and the others are done."""
    (tmp_path / "hold").write_text(node)
    wanted = {f"start {node}", *(f"done {name}" for name in others_done)}
    with begin(tmp_path, durability) as process:
        try:
            while not wanted <= set(log(tmp_path)):
                assert process.poll() is None, "it ended by itself"
                time.sleep(0.005)
            settle(tmp_path, others_done)
        finally:
            process.send_signal(signal.SIGKILL)
    (tmp_path / "hold").unlink()


def settle(tmp_path: Path, others_done: set[str]) -> None:
    """Wait until what the finished tasks wrote is in the store, and the checkpoints between."""
    steps = 2 + len(others_done & {"first", "second"})
    while True:
        with mulligan.open(tmp_path / "store", read_only=True) as store:
            session = store.find("langgraph:job")
            calls = [] if session is None else session.state.get("langgraph/writes", [])
            saved = 0 if session is None else len(session.checkpoints())
        written = repr([write for call in calls for write in call[4]])
        if saved >= steps and all(name in written for name in others_done):
            return
        time.sleep(0.005)


def log(tmp_path: Path) -> list[str]:
    file = tmp_path / "log"
    return file.read_text().splitlines() if file.exists() else []


def test_a_node_that_was_killed_runs_again_and_no_other(tmp_path: Path) -> None:
    kill_inside("second", tmp_path, "sync", {"first"})
    with begin(tmp_path, "sync") as process:
        assert process.stdout is not None
        assert process.stdout.read().strip() == RESULT
    starts = [line for line in log(tmp_path) if line.startswith("start")]
    assert sorted(starts) == sorted([*(f"start {n}" for n in NODES), "start second"])


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_finished_tasks_of_a_killed_step_are_not_run_again(tmp_path: Path, durability: str) -> None:
    """Two of three parallel tasks were done: their writes are in the store."""
    kill_inside("work 1", tmp_path, durability, {"first", "second", "work 0", "work 2"})
    with begin(tmp_path, durability) as process:
        assert process.stdout is not None
        assert process.stdout.read().strip() == RESULT
    starts = [line for line in log(tmp_path) if line.startswith("start")]
    assert sorted(starts) == sorted([*(f"start {n}" for n in NODES), "start work 1"])


def test_killed_in_every_step_in_turn(tmp_path: Path) -> None:
    # One of the parallel tasks: the others are done by then, and would hold no later process.
    kill_inside("first", tmp_path, "sync", set())
    kill_inside("second", tmp_path, "sync", {"first"})
    kill_inside("work 1", tmp_path, "sync", {"work 0", "work 2"})
    kill_inside("last", tmp_path, "sync", {"work 1"})
    for _ in range(2):  # the second time, the result is there already
        with begin(tmp_path, "sync") as process:
            assert process.stdout is not None
            assert process.stdout.read().strip() == RESULT
    done = [line for line in log(tmp_path) if line.startswith("done")]
    assert sorted(done) == sorted(f"done {n}" for n in NODES)
    with mulligan.open(tmp_path / "store") as store:
        assert store.verify().ok
