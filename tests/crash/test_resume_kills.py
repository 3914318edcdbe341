"""`mulligan resume` is killed itself while it recovers: the next one completes, nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import mulligan
from mulligan import Session, Store
from mulligan.failpoints import Failpoint
from mulligan.recovery.plan import attempts
from tests.children import end_processes_in, processes_in
from tests.e2e.test_resume import run, until
from tests.unit.recovery.dead import control, dead

TASKS = [f"t{number:02}" for number in range(12)]
NAMES = ("ada", "bob")

AGENT = """
import fcntl, os, sys, time
import mulligan

side = sys.argv[1]
session = mulligan.attach()
lock = open(f"{side}/{session.actor}.lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(f"{side}/two at once", "w").close()
with open(f"{side}/starts", "a") as starts:
    starts.write(f"{session.actor}\\n")
for cycle in session.loop(checkpoint_interval=3600):
    task = session.tasks.claim()
    if task is None:
        session.agent.update(state="done")
        break
    while not os.path.exists(f"{side}/go"):
        time.sleep(0.02)
    with session.batch():
        session.state.append("results", task.id)
        session.tasks.complete(task.id)
"""


@pytest.fixture
def side(tmp_path: Path) -> Path:
    """Where the agents leave what no rollback may touch."""
    directory = tmp_path / "side"
    directory.mkdir()
    (directory / "starts").touch()
    return directory


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a store; whatever runs in it is ended at last."""
    for name in [n for n in os.environ if n.startswith("MULLIGAN_")]:
        monkeypatch.delenv(name)
    directory = tmp_path / "work"
    directory.mkdir()
    monkeypatch.chdir(directory)
    (directory / "agent.py").write_text(AGENT)
    yield directory
    end_processes_in(directory)


@pytest.fixture
def store(place: Path) -> Iterator[Store]:
    with mulligan.open(place) as opened:
        yield opened


@pytest.fixture
def session(store: Store, place: Path, side: Path) -> Session:
    """A team that did four tasks, went on after a checkpoint, and died with its supervisor."""
    command = [sys.executable, "agent.py", str(side)]
    workflow = {"workspace": str(place), "agents": {n: {"command": command} for n in NAMES}}
    found = store.session("main", workspace=place)
    found.internal.state.set("orchestrator", {"workflow": workflow})
    found.tasks.plan(TASKS)
    for name in NAMES:
        found.internal.state.set(("agents", name), {"state": "working"})
    (place / "notes.txt").write_text("good")
    found.state.set("notes", "good")
    found.checkpoint("routine")
    ada = store.session("main", actor="ada")
    for task in TASKS[:4]:
        ada.tasks.claim(task)
        with ada.batch():
            ada.state.append("results", task)
            ada.tasks.complete(task)
    ada.tasks.claim(TASKS[4])
    for name in ("notes.txt", "more.txt"):
        (place / name).write_text("wreck")
    found.state.set("notes", "wreck")
    control(found, "status", "running")
    for name in (*NAMES, "supervisor"):
        dead(found, name)
    return found


def killed(side: Path, point: Failpoint, nth: int, *args: str) -> None:
    """Run a command that dies at a point, or once it has started the whole team."""
    begun = (side / "starts").read_text()
    command = [sys.executable, "-m", "mulligan.testing.dying", point.value, str(nth), *args]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def is_over() -> bool:
        started = (side / "starts").read_text().removeprefix(begun).split()
        return process.poll() is not None or {*started} == {*NAMES}

    try:
        until(is_over, f"resume came to {point} or started its team")
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL, f"it ended by itself at {point} {nth}"


def finish(place: Path, side: Path) -> None:
    """Bring the session back without a disturbance."""
    (side / "go").touch()
    done = run("resume")
    assert done.returncode == 0, done.stderr
    assert "nothing to resume" in run("resume").stdout
    until(lambda: processes_in(place) == [], "nothing ran any more")
    assert not (side / "two at once").exists()


def check(store: Store, session: Session) -> None:
    assert Counter(session.state.get("results")) == Counter(TASKS)
    assert {task.status for task in session.tasks} == {"completed"}
    assert session.internal.control("status") == "done"
    assert store.verify().ok


STEPS = [
    (Failpoint.JOURNAL_COMMITTED, 1),
    (Failpoint.JOURNAL_BEFORE_COMMIT, 3),
    (Failpoint.JOURNAL_COMMITTED, 6),
    (Failpoint.JOURNAL_BEFORE_COMMIT, 9),
    (Failpoint.JOURNAL_COMMITTED, 13),
    (Failpoint.JOURNAL_BEFORE_COMMIT, 18),
]
"""One after the other: so recoveries are recovered from that were interrupted themselves."""


def test_killed_at_one_step_after_the_other(
    place: Path, side: Path, store: Store, session: Session
) -> None:
    for point, nth in STEPS:
        killed(side, point, nth, "resume", "main")
        assert Counter(session.state.get("results")) == Counter(TASKS[:4])
    finish(place, side)
    check(store, session)
    done = Counter(e.payload["task"] for e in session.events() if e.kind == "task.completed")
    assert done == Counter(TASKS), "a task was done twice, or never"
    assert (place / "notes.txt").read_text() == session.state.get("notes") == "wreck"
    assert attempts(session)[-1].outcome == "ok"


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        (Failpoint.RESTORE_RENAMED, 1),
        (Failpoint.RESTORE_DELETED, 1),
        (Failpoint.PACK_SYNCED, 1),
        *((Failpoint.JOURNAL_COMMITTED, nth) for nth in (2, 4, 6)),
    ],
)
def test_killed_on_the_way_back_to_a_checkpoint(
    place: Path, side: Path, store: Store, session: Session, point: Failpoint, nth: int
) -> None:
    killed(side, point, nth, "resume", "main", "--rollback")
    went_back = any(event.kind == "recovery.begun" for event in session.events())
    finish(place, side)
    check(store, session)
    expected = "good" if went_back else "wreck"
    assert (place / "notes.txt").read_text() == session.state.get("notes") == expected
    assert (place / "more.txt").exists() == (not went_back)
