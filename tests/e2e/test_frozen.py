"""Agents stopped in the middle of a write: nobody waits for the lock they have for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mulligan
from mulligan.journal.lmdb import write_lock
from mulligan.journal.lmdb.write_lock import find_write_lock_owner
from mulligan.journal.lock_owner import LockOwner
from mulligan.opener import agent_variables
from mulligan.supervisor.stopped import end_stopped, find_stopped
from tests.children import end_processes_in
from tests.e2e.test_resume import PATIENCE, until

QUICK = """
from mulligan.journal import lock_owner
lock_owner.REPORT_AFTER_SECONDS = 0.1
import sys
if sys.argv[1] == "up":
    from mulligan.supervisor import runner
    runner.STALL_SECONDS = 0.5
from mulligan.cli.main import main
main()
"""
"""The command line, which says sooner for whom it waits, and ends sooner what blocks it."""

MULLIGAN = [sys.executable, "-c", QUICK]

AGENT = """
import os, signal
import mulligan

session = mulligan.attach()
if session.agent.lease.epoch == 1:
    with session._engine.write():
        open("frozen", "w").close()
        os.kill(os.getpid(), signal.SIGSTOP)
session.state.set("came", "back")
"""

TEAM = f"""
[agents.frozen]
command = ["{sys.executable}", "agent.py"]

[agents.other]
command = ["sh", "-c", "until test -f frozen; do sleep 0.1; done"]
"""

WRITER = """
import os, signal
import mulligan

with mulligan.open(".").session("main")._engine.write():
    os.kill(os.getpid(), signal.SIGSTOP)
"""
"""Is no agent, and stopped in the middle of a write."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in [n for n in os.environ if n.startswith("MULLIGAN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    mulligan.open(tmp_path).close()
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "team.toml").write_text(TEAM)
    yield tmp_path
    end_processes_in(tmp_path)


def start(*args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*MULLIGAN, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MULLIGAN, *args], capture_output=True, text=True, timeout=PATIENCE)


def came_back(place: Path) -> bool:
    with mulligan.open(place) as store:
        return bool(store.session("main").state.get("came") == "back" and store.verify().ok)


def test_the_supervisor_ends_one_that_holds_it_up(place: Path) -> None:
    done = run("up", "team.toml")
    assert done.returncode == 0, done.stderr
    assert "frozen was ended by SIGKILL" in done.stderr
    assert came_back(place)


def test_resume_ends_one_whose_supervisor_is_dead(place: Path) -> None:
    supervisor = start("up", "team.toml")
    until((place / "frozen").exists, "the agent was in the middle of a write")
    supervisor.kill()
    supervisor.wait()
    done = run("resume")
    assert done.returncode == 0, done.stderr
    assert "Ended the stopped process" in done.stderr
    assert came_back(place)


def test_looking_waits_for_nobody(place: Path) -> None:
    supervisor = start("up", "team.toml")
    until((place / "frozen").exists, "the agent was in the middle of a write")
    supervisor.kill()
    supervisor.wait()
    planned = run("resume", "--dry-run", "--rollback")
    assert planned.returncode == 0, planned.stderr
    assert "State and files would go back to main #" in planned.stdout
    assert "frozen" in run("status").stdout
    assert len(find_stopped(str(place / ".mulligan"))) == 1, "a dry run ends nobody"


def test_one_whose_supervisor_lives_is_left_to_it(place: Path) -> None:
    with mulligan.open(place) as store:
        store.session("main")
    code = "import time; time.sleep(60)"
    variables = agent_variables(
        str(place / ".mulligan"), "main", "a", 1, heartbeat=place / "beat", checkpoint_interval=1
    )
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **variables})
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert find_stopped(str(place / ".mulligan")) == []
        assert end_stopped(str(place / ".mulligan")) == []
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(PATIENCE)


def test_a_variable_that_names_no_supervisor_is_no_bug(place: Path) -> None:
    store = str(place / ".mulligan")
    variables = agent_variables(
        store, "main", "a", 1, heartbeat=place / "beat", checkpoint_interval=1
    )
    process = subprocess.Popen(
        ["sleep", "60"], env={**os.environ, **variables, "MULLIGAN_SUPERVISOR": "nobody"}
    )
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert find_stopped(store) == []
    finally:
        process.kill()
        process.wait(PATIENCE)


@pytest.fixture
def stopped(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    with mulligan.open(place) as store:
        store.session("main").checkpoint()
    process = subprocess.Popen([sys.executable, "-c", WRITER])
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    yield process
    process.kill()
    process.wait(PATIENCE)


def test_commands_say_for_whom_they_wait(place: Path, stopped: subprocess.Popen[bytes]) -> None:
    commands = [
        subprocess.Popen([*MULLIGAN, *command], stderr=subprocess.PIPE, text=True)
        for command in (["state", "set", "x", "1"], ["run", "--", "true"])
    ]
    for command in commands:
        assert command.stderr is not None
        said = command.stderr.readline() + command.stderr.readline()
        assert f"Waiting for process {stopped.pid} ({sys.executable} -c" in said
        assert f"`kill -9 {stopped.pid}` is safe" in said
    stopped.send_signal(signal.SIGCONT)
    for command in commands:
        assert command.wait(PATIENCE) == 0, command.communicate()


def test_ctrl_c_ends_a_command_that_waits(place: Path, stopped: subprocess.Popen[bytes]) -> None:
    for command in (["state", "set", "x", "1"], ["run", "--", "true"]):
        waiting = subprocess.Popen([*MULLIGAN, *command], stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        assert f"process {stopped.pid} " in waiting.stderr.readline()
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(PATIENCE) == 130
        waiting.stderr.close()


def test_a_pause_is_refused_at_once(place: Path, stopped: subprocess.Popen[bytes]) -> None:
    done = run("pause", "--timeout", "1s")
    assert done.returncode == 94
    assert f"process {stopped.pid} " in done.stderr
    assert "is stopped inside a write" in done.stderr


@pytest.mark.parametrize(
    "command", ["log", "show", "events", "tasks", "mail", "state get", "verify", "status"]
)
def test_who_only_looks_does_not_wait(
    place: Path, stopped: subprocess.Popen[bytes], command: str
) -> None:
    done = run(*command.split())
    assert done.returncode == 0, done.stderr
    assert "Waiting" not in done.stderr


def test_a_check_shows_what_it_found_without_waiting(
    place: Path, stopped: subprocess.Popen[bytes]
) -> None:
    done = run("verify", "--full")
    assert done.returncode == 0, done.stderr
    assert f"not on the timeline: Process {stopped.pid} is stopped" in done.stderr


def test_who_writes_is_found_by_the_lock_itself(
    place: Path, stopped: subprocess.Popen[bytes]
) -> None:
    journal = place / ".mulligan/journal"
    found = find_write_lock_owner(journal)
    assert found is not None
    assert (found.pid, found.is_stopped) == (stopped.pid, True)
    assert found.command.startswith(sys.executable)
    stopped.kill()
    stopped.wait(PATIENCE)
    with mulligan.open(place) as store:
        session = store.session("main")
        assert find_write_lock_owner(journal) is None
        with session._engine.write():
            here = find_write_lock_owner(journal)
            assert here is not None
            assert (here.pid, here.is_stopped) == (os.getpid(), False)
    assert find_write_lock_owner(place) is None


def test_a_program_is_told_once_for_whom_it_waits(
    place: Path, stopped: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_lock, "REPORT_AFTER_SECONDS", 0.1)
    told: list[LockOwner | None] = []

    def tell(holder: LockOwner | None) -> None:
        told.append(holder)
        stopped.send_signal(signal.SIGCONT)

    with mulligan.open(place, on_wait=tell) as store:
        assert [holder and holder.pid for holder in told] == [stopped.pid]  # even that waits
        store.session("main").state.set("x", 1)
    assert len(told) == 1
