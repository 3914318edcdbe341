"""Programs that are killed in every piece of their work continue, and repeat nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mulligan
from tests.frameworks.needed import needed

needed("langgraph.graph")

PROGRAM = Path(__file__).with_name("shapes.py")

NODES = {"inner one": "inner one", "inner two": "inner two", "work 1": "work"}
"""The task that a piece of work is in doubt with; else the node of its name."""


def shape_of(name: str) -> list[list[str]]:
    from tests.frameworks.langgraph.shapes import WORK

    return WORK[name]


CASES = [
    *(("parallel", kill) for kill in ("first", "second", "work 1", "last")),
    *(("subgraph", kill) for kill in ("before", "inner one", "inner two", "after")),
    *(("interrupt", kill) for kill in ("draft", "ask", "send")),
    *(("functional", kill) for kill in ("one", "two", "four", "five")),
]


def run(tmp_path: Path, *arguments: str, durability: str = "sync") -> tuple[int, list[str]]:
    shape, *kill = arguments
    words = [shape, str(tmp_path / "store"), str(tmp_path / "log"), durability, *kill]
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), *words],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=300,
    )
    return ended.returncode, ended.stdout.splitlines()


def log(tmp_path: Path, kind: str) -> list[str]:
    lines = (tmp_path / "log").read_text().splitlines()
    return [line.removeprefix(f"{kind} ") for line in lines if line.startswith(f"{kind} ")]


def result_of(shape: str) -> str:
    words = ["input", *(name for names in shape_of(shape) for name in names)]
    return f"result {sorted([*words, 'answer yes'] if shape == 'interrupt' else words)}"


@pytest.mark.parametrize(("shape", "kill"), CASES)
def test_only_the_killed_work_is_repeated(shape: str, kill: str, tmp_path: Path) -> None:
    assert run(tmp_path, shape, kill)[0] == -signal.SIGKILL
    code, printed = run(tmp_path, shape)
    assert code == 0
    assert printed[-1] == result_of(shape)
    work = sorted(name for names in shape_of(shape) for name in names)
    assert sorted(log(tmp_path, "done")) == work
    assert sorted(log(tmp_path, "start")) == sorted([*work, kill])
    task = "flow" if shape == "functional" else NODES.get(kill, kill)
    assert printed[0] == f"in doubt {[task]}"
    # The job is over: once more, and nothing is done.
    assert run(tmp_path, shape)[1] == ["in doubt []", result_of(shape)]
    assert sorted(log(tmp_path, "done")) == work


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("kill", ["second", "work 1", "last"])
def test_what_was_saved_is_there_after_a_kill(durability: str, kill: str, tmp_path: Path) -> None:
    from mulligan.integrations.langgraph import MulliganSaver

    assert run(tmp_path, "parallel", kill, durability=durability)[0] == -signal.SIGKILL
    checkpoints, writes = log(tmp_path, "checkpoint"), log(tmp_path, "saved")
    # Only with "sync", LangGraph waits for the checkpoints of the steps before.
    assert durability == "async" or bool(checkpoints) is (durability == "sync")
    with MulliganSaver(tmp_path / "store") as saver:
        for line in checkpoints:
            namespace, _, id = line.rpartition(" ")
            address: Any = {"thread_id": "job", "checkpoint_ns": namespace, "checkpoint_id": id}
            assert saver.get_tuple({"configurable": address}) is not None
    with mulligan.open(tmp_path / "store") as store:
        session = store.find("langgraph:job")
        # In the state: their checkpoint may have been on its way.
        found = "" if session is None else repr(session.state.get("langgraph/writes"))
        assert all(word in found for word in writes)
        assert store.verify().ok
    code, printed = run(tmp_path, "parallel", durability=durability)
    assert (code, printed[-1]) == (0, result_of("parallel"))
