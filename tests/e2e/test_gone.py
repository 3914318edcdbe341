"""A real supervisor whose store is deleted or replaced: it says so, and lets its agents finish."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan.workspace.syscalls import EXCHANGE, rename
from tests.e2e.test_supervisor import QUICK

PATIENCE = 60.0
MULLIGAN = [sys.executable, "-c", QUICK]

AGENT = """
import sys, time
from pathlib import Path
import mulligan

here = Path(sys.argv[1])
session = mulligan.attach()
for cycle in session.loop():
    with cycle, session.agent.step("work", deadline=600):
        (here / f"began-{cycle.number}").touch()
        while not (here / "go").exists():
            time.sleep(0.01)
        (here / f"ended-{cycle.number}").touch()
"""


def remove(store: Path) -> None:
    shutil.rmtree(store)


def replace(store: Path) -> None:
    """Another store takes its place between one moment and the next."""
    with mulligan.open(store.parent / "other") as other:
        other.session("x")
    (store.parent / "other/.mulligan").rename(store.with_name("another"))
    parent = os.open(store.parent, os.O_RDONLY | os.O_DIRECTORY)
    if not rename(b".mulligan", b"another", parent, EXCHANGE):
        pytest.skip("this filesystem cannot exchange two names")
    os.close(parent)


def wait_for(true: Callable[[], Any]) -> Any:
    until = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.01)
    return found


class Project:
    """A project with a store inside, and the commands started in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = root / ".mulligan"
        self._started: list[subprocess.Popen[str]] = []
        with mulligan.open(root) as store:
            store.session("main")

    def mulligan(self, *args: str) -> subprocess.Popen[str]:
        variables = {k: v for k, v in os.environ.items() if not k.startswith("MULLIGAN_")}
        started = subprocess.Popen(
            [*MULLIGAN, *args],
            cwd=self.root,
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(started)
        return started

    def close(self) -> None:
        (self.root / "go").touch()
        for started in self._started:
            if started.poll() is None:
                started.kill()
            started.communicate()


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.close()


def said_until(process: subprocess.Popen[str], words: str) -> str:
    """Return what a process says up to the line with the words; they have to come."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if words in line:
            return said
    raise AssertionError(said)


@pytest.mark.parametrize(("way", "words"), [(remove, "was removed"), (replace, "was replaced")])
def test_agents_finish_what_they_are_at(project: Project, way, words: str) -> None:
    (project.root / "agent.py").write_text(AGENT)
    command = [sys.executable, "agent.py", str(project.root)]
    running = project.mulligan("run", "--no-files", "--", *command)
    wait_for((project.root / "began-1").exists)
    way(project.store)
    said_until(running, words)
    assert running.poll() is None, "it waits for its agent"
    (project.root / "go").touch()
    _, rest = running.communicate(timeout=PATIENCE)
    assert running.returncode == 19, rest
    assert (project.root / "ended-1").exists()
    assert not (project.root / "began-2").exists()
    assert "starts again" not in rest
    if way is remove:
        assert not project.store.exists(), "nothing of it is made again"
    else:
        with mulligan.open(project.root, create=False) as store:
            assert [session.name for session in store.sessions()] == ["x"]


def test_a_program_that_knows_no_safe_points_is_told_to_end(project: Project) -> None:
    code = "import time; open('began', 'w').close(); time.sleep(1000)"
    running = project.mulligan("run", "--no-files", "--", sys.executable, "-c", code)
    wait_for((project.root / "began").exists)
    remove(project.store)
    _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 19, said
    assert "was removed" in said
    assert "mulligan init" in said


def test_a_watcher_ends(project: Project) -> None:
    watching = project.mulligan("resume", "--watch")
    said_until(watching, "Watching")
    remove(project.store)
    _, said = watching.communicate(timeout=PATIENCE)
    assert watching.returncode == 19, said
    assert "was removed" in said
