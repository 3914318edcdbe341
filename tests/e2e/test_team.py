"""Agents in processes of their own, on one session: claims, mail and epochs hold between them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

import mulligan
from mulligan.opener import agent_variables

WORKER = """
    import sys
    import mulligan

    place, name = sys.argv[1:]
    with mulligan.open(place) as store:
        session = store.agent(name, session="team")
        while (task := session.tasks.claim()) is not None:
            session.state.append("done", [task.id, name])
            print(task.id, flush=True)
            session.tasks.complete(task.id)
"""

ATTACHED = """
    import mulligan

    session = mulligan.attach()
    session.agent.update(state="working", working_on="x")
    session.state.set(("seen", session.actor), session.agent.lease.epoch)
    print("written", flush=True)
    input()
    session.state.set(("seen", "too late"), True)
"""


def start(code: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    pipe = subprocess.PIPE
    env = {**os.environ, **variables}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env)


def test_every_task_is_done_once_by_many(tmp_path: Path):
    with mulligan.open(tmp_path) as store:
        session = store.session("team")
        session.tasks.plan([f"t{number}" for number in range(120)])
        workers = [start(WORKER, tmp_path, f"w{number}") for number in range(4)]
        for worker in workers:
            _, error = worker.communicate(timeout=100)
            assert (worker.returncode, error) == (0, "")
        completed = [e.payload["task"] for e in session.events() if e.kind == "task.completed"]
        assert Counter(completed) == Counter(f"t{number}" for number in range(120))
        assert Counter(task for task, _ in session.state.get("done")) == Counter(completed)
        assert store.verify().ok


def test_a_killed_worker_goes_on_where_it_was(tmp_path: Path):
    with mulligan.open(tmp_path) as store:
        session = store.session("team")
        session.tasks.plan([f"t{number}" for number in range(60)])
        for kills in range(5):
            worker = start(WORKER, tmp_path, "w")
            assert worker.stdout is not None
            for _ in range(3 + kills):
                worker.stdout.readline()
            worker.send_signal(signal.SIGKILL)
            worker.communicate(timeout=100)
        worker = start(WORKER, tmp_path, "w")
        assert worker.communicate(timeout=100)[1] == ""
        completed = [e.payload["task"] for e in session.events() if e.kind == "task.completed"]
        assert completed == [f"t{number}" for number in range(60)]


def test_a_process_learns_from_its_variables_which_agent_it_is(tmp_path: Path):
    beat = tmp_path / "beat"
    with mulligan.open(tmp_path) as store:
        session = store.agent("coder", session="team")
        assert session.agent.lease is not None
        variables = agent_variables(
            str(tmp_path),
            "team",
            "coder",
            session.agent.lease.epoch,
            heartbeat=beat,
            checkpoint_interval=300,
        )
        child = start(ATTACHED, **variables)
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n", child.communicate()
        assert beat.exists()
        assert session.state.get("seen") == {"coder": 1}
        lease = session.internal.lease_of("coder")
        assert lease is not None
        assert lease.holder.process == child.pid
        store.agent("coder", session="team", steal=True)
        _, error = child.communicate("\n", timeout=60)
        assert "StaleLease" in error
        assert session.state.get("seen") == {"coder": 1}
        late = start(ATTACHED, **variables)
        assert "StaleLease" in late.communicate(timeout=60)[1]


def test_nobody_attaches_without_a_supervisor(monkeypatch: pytest.MonkeyPatch):
    for name in [n for n in os.environ if n.startswith("MULLIGAN_")]:
        monkeypatch.delenv(name)
    with pytest.raises(mulligan.errors.NotAttached, match="MULLIGAN_STORE"):
        mulligan.attach()


HELPED = """
    import subprocess, sys
    import mulligan

    session = mulligan.attach()
    helper = "import mulligan; s = mulligan.attach(); s.state.set('helped', True); s.close()"
    subprocess.run([sys.executable, "-c", helper], check=True)
    session.state.set("went on", True)
"""


def test_a_helper_that_attaches_takes_nothing_from_its_agent(tmp_path: Path):
    with mulligan.open(tmp_path) as store:
        session = store.agent("coder", session="team")
        assert session.agent.lease is not None
        variables = agent_variables(
            str(tmp_path),
            "team",
            "coder",
            session.agent.lease.epoch,
            heartbeat=tmp_path / "beat",
            checkpoint_interval=300,
        )
        child = start(HELPED, **variables)
        assert child.communicate(timeout=60)[1] == ""
        assert session.state.get("helped")
        assert session.state.get("went on")
