"""Real processes, killed with SIGKILL, and `mulligan resume`: nothing lost, nothing done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Session, Store
from mulligan.session.write.leases import identity
from tests.children import end_processes_in, processes_in

MULLIGAN = [sys.executable, "-c", "from mulligan.cli.main import main; main()"]
PATIENCE = 60.0

AGENT = """
import os
import time
import mulligan

session = mulligan.attach()
session.tasks.plan([f"task {n:02}" for n in range(12)])
is_first = session.agent.lease.epoch == 1     # the first processes never get beyond some tasks
waits = os.path.exists("wait-between-tasks")
for cycle in session.loop(checkpoint_interval=3600):
    if is_first and waits and len(session.state.get("results", [])) >= 4:
        time.sleep(0.02)
        continue
    task = session.tasks.claim()
    if task is None:
        session.agent.update(state="done")
        break
    while is_first and not waits and len(session.state.get("results", [])) >= 4:
        time.sleep(0.02)
    with session.batch():
        session.state.append("results", task.id)
        session.tasks.complete(task.id)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a store and an agent's program; whatever runs in it is ended at last."""
    for name in [n for n in os.environ if n.startswith("MULLIGAN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    mulligan.open(tmp_path).close()
    (tmp_path / "agent.py").write_text(AGENT)
    yield tmp_path
    end_processes_in(tmp_path)


def workflow(place: Path, *agents: str) -> Path:
    file = place / "team.toml"
    lines = [f'[agents.{name}]\ncommand = ["{sys.executable}", "agent.py"]\n' for name in agents]
    file.write_text("\n".join(lines))
    return file


def start(*args: str, output: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    return subprocess.Popen([*MULLIGAN, *args], stdout=output, stderr=subprocess.DEVNULL, text=True)


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MULLIGAN, *args], capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until something holds, and return it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"it took too long until {what}")


@pytest.fixture
def store(place: Path) -> Iterator[Store]:
    with mulligan.open(place) as opened:
        yield opened


def completed(session: Session) -> int:
    return sum(task.status == "completed" for task in session.tasks)


def agents(session: Session) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = session.state.get("agents", {})
    return found


def kill_everything(session: Session, supervisor: subprocess.Popen[str]) -> list[int]:
    """Kill the supervisor first, so that it cannot see its agents die, then the agents."""
    supervisor.kill()
    supervisor.wait()
    pids = [agent["process_id"] for agent in agents(session).values() if agent["process_id"]]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return pids


def check_done(session: Session) -> None:
    """Every task was completed once, and its result is there once."""
    assert Counter(session.state.get("results")) == {f"task-{n:02}": 1 for n in range(12)}
    events = [e.payload["task"] for e in session.events() if e.kind == "task.completed"]
    assert Counter(events) == {f"task-{n:02}": 1 for n in range(12)}


def begin(place: Path, store: Store, *names: str) -> tuple[Session, subprocess.Popen[str]]:
    """Start a team; return its session once some tasks are completed and all agents have one."""
    supervisor = start("up", str(workflow(place, *names)))
    session = store.session("main")
    is_busy = not (place / "wait-between-tasks").exists()
    until(lambda: completed(session) >= 4, "some tasks were completed")
    until(lambda: not is_busy or owners(session) == {*names}, "all agents were at work")
    return session, supervisor


def owners(session: Session) -> set[str | None]:
    return {task.owner for task in session.tasks if task.status == "in_progress"}


def test_supervisor_and_agents_are_killed_and_the_team_comes_back(
    place: Path, store: Store
) -> None:
    session, supervisor = begin(place, store, "ada", "bob", "cy")
    kill_everything(session, supervisor)
    until(lambda: len(processes_in(place)) == 0, "all processes were gone")
    head, done_before = session.head, completed(session)
    begun = {t.id for t in session.tasks if t.status == "in_progress"}
    first = next(t.id for t in session.tasks if t.status != "completed")

    planned = json.loads(run("resume", "--dry-run", "--json").stdout)
    assert session.head == head
    assert planned["session"] == "main"
    assert planned["next_task"] == first
    assert {a["name"] for a in planned["interruption"]["agents"]} == {"ada", "bob", "cy"}
    assert not any(a["is_alive"] for a in planned["interruption"]["agents"])

    result = run("resume", "--json")
    assert result.returncode == 0, result.stderr
    done = json.loads(result.stdout)
    assert (done["applied"], done["status"], done["rung"]) == (True, "done", "retry")
    check_done(session)
    events = list(session.events(since=head))
    kinds = [event.kind for event in events]
    assert kinds[:2] == ["recovery.begun", "checkpoint.created"]
    crash = session.checkpoints.at(done["checkpoint_id"])
    assert crash.kind == "recovery"
    assert crash.workspace is not None
    assert len(session.state.at(crash).get("results")) == done_before
    claimed = [event.payload["task"] for event in events if event.kind == "task.claimed"]
    assert set(claimed[: len(begun)]) >= begun & set(claimed[:3])
    assert store.verify().ok


def test_agents_that_outlived_their_supervisor_are_shut_out_and_ended(
    place: Path, store: Store
) -> None:
    session, supervisor = begin(place, store, "ada", "bob")
    old = {name: agent["process_id"] for name, agent in agents(session).items()}
    supervisor.kill()
    supervisor.wait()
    identities = {pid: identity(pid) for pid in old.values()}
    said = run("resume", "--dry-run")
    assert "still runs" in said.stdout
    os.kill(old["ada"], signal.SIGSTOP)  # it may have the lock of the writers, and keeps it
    result = run("resume")
    assert result.returncode == 0, result.stderr
    for pid, known in identities.items():
        assert identity(pid) != known, "an old process is still there"
    check_done(session)
    new = {name: agent["process_id"] for name, agent in agents(session).items()}
    assert not set(old.values()) & set(new.values())


def test_a_rollback_brings_files_and_state_back(place: Path, store: Store) -> None:
    session, supervisor = begin(place, store, "ada")
    kill_everything(session, supervisor)
    (place / "notes.txt").write_text("good\n")
    taken = run("checkpoint", "--label", "fine").stdout.strip()
    assert run("mark", "fine", "good").returncode == 0
    at_mark = session.state.get("results")
    session.state.append("results", "nonsense")
    (place / "notes.txt").write_text("wreck\n")
    assert run("checkpoint").returncode == 0
    result = run("resume", "main", "--rollback", "--json")
    assert result.returncode == 0, result.stderr
    done = json.loads(result.stdout)
    assert done["to"]["checkpoint_id"] == taken
    assert (place / "notes.txt").read_text() == "good\n"
    assert session.state.get("results")[: len(at_mark)] == at_mark
    assert Counter(session.state.get("results")) == {f"task-{n:02}": 1 for n in range(12)}
    assert "nonsense" in session.state.at(done["checkpoint_id"]).get("results")


def test_a_paused_team_goes_on(place: Path, store: Store) -> None:
    (place / "wait-between-tasks").touch()
    session, supervisor = begin(place, store, "ada", "bob")
    paused = run("pause", "--json")
    assert paused.returncode == 0, paused.stderr
    supervisor.wait(PATIENCE)
    assert session.internal.control("status") == "paused"
    assert run("resume").returncode == 0
    check_done(session)
    assert "nothing to resume" in run("resume").stdout


def test_a_watch_brings_back_what_is_interrupted(place: Path, store: Store) -> None:
    watch = start("resume", "--watch", "--json", output=subprocess.PIPE)
    try:
        session, supervisor = begin(place, store, "ada", "bob")
        kill_everything(session, supervisor)
        assert watch.stdout is not None
        notice = json.loads(watch.stdout.readline())
        assert (notice["session"], notice["what"], notice["rung"]) == ("main", "started", "retry")
        until(lambda: session.internal.control("status") == "done", "the work was done")
        check_done(session)
    finally:
        watch.send_signal(signal.SIGINT)
        watch.communicate(timeout=PATIENCE)
    assert watch.returncode == 0


ALONE = """
import os
import mulligan

session = mulligan.open(".").agent("solo", session="main")
session.agent.update(state="working", working_on="task one", process_id=os.getpid())
session.tasks.plan(["one", "two"])
session.tasks.claim()
print("ready", flush=True)
__import__("time").sleep(60)
"""


def test_without_a_supervisor_everything_is_prepared(place: Path, store: Store) -> None:
    agent = subprocess.Popen(
        [sys.executable, "-c", ALONE], stdout=subprocess.PIPE, text=True, cwd=place
    )
    assert agent.stdout is not None
    assert agent.stdout.readline() == "ready\n"
    assert "nothing to resume" in run("resume").stdout
    agent.kill()
    agent.communicate()
    said = run("resume")
    assert said.returncode == 0, said.stderr
    assert "Start solo again" in said.stdout
    session = store.agent("solo", session="main")
    task = session.tasks.claim()
    assert task is not None
    assert (task.id, task.attempts) == ("one", 2)
    session.close()
    assert "nothing to resume" in run("resume").stdout


def test_a_team_that_cannot_be_started_again_is_left_alone(place: Path, store: Store) -> None:
    file = place / "team.toml"
    file.write_text('[agents.a]\ncommand = "sleep 600"\nenv = { API_TOKEN = "hush" }\n')
    supervisor = start("up", str(file))
    session = store.session("main")
    pid = until(lambda: agents(session).get("a", {}).get("process_id"), "the agent was started")
    supervisor.kill()
    supervisor.wait()
    refused = run("resume")
    assert "needs API_TOKEN" in refused.stderr
    assert "sleep" in Path(f"/proc/{pid}/cmdline").read_text()
