"""Real agents under a real supervisor: killed, hung, paused, orphaned, and brought back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan.errors import StaleLease
from mulligan.session.parts.tasks import health
from mulligan.supervisor.requests import request_checkpoint
from mulligan.supervisor.workflow import from_plain
from tests.children import end_processes_in

PATIENCE = 60.0
PYTHON = sys.executable

QUICK = """
import sys
if sys.argv[1] in ("up", "run", "resume"):
    from mulligan.supervisor import runner
    runner.HEARTBEAT_POLL_SECONDS = 0.1
from mulligan.cli.main import main
main()
"""
"""The command line, whose supervisor looks for heartbeats and verdicts more often."""

MULLIGAN = [PYTHON, "-c", QUICK]


class Place:
    """A directory with a store, the agents' programs, and the supervisors started there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: list[subprocess.Popen[str]] = []
        self.store = mulligan.open(root)
        self.session = self.store.session("main", actor="test")

    def program(self, name: str, code: str) -> str:
        """Write the program of an agent, and return its command for a workflow."""
        (self.root / name).write_text(textwrap.dedent(code))
        return json.dumps([PYTHON, str(self.root / name)])

    def up(self, workflow: str) -> subprocess.Popen[str]:
        """Start a team."""
        (self.root / "team.toml").write_text(textwrap.dedent(workflow))
        return self.mulligan("up", "team.toml", "--no-files")

    def mulligan(self, *args: str) -> subprocess.Popen[str]:
        """Start a command."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith("MULLIGAN_")}
        started = subprocess.Popen(
            [*MULLIGAN, *args],
            cwd=self.root,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(started)
        return started

    def agent(self, name: str = "a") -> dict[str, Any]:
        return self.session.state.get(("agents", name), {})

    def kinds(self) -> list[str]:
        return [event.kind for event in self.session.events()]

    def close(self) -> None:
        for started in self.started:
            if started.poll() is None:
                started.kill()
        # Before what they said is read: an agent that lives holds the pipe open.
        end_processes_in(self.root)
        for started in self.started:
            started.communicate()
        self.store.close()


def kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_for(true: Callable[[], Any], what: str = "") -> Any:
    """Return the first true value; fail after a while."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if found := true():
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited too long for {what or true}")


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the end of a supervisor; return its exit code and what it said."""
    _, error = process.communicate(timeout=PATIENCE)
    return process.returncode, error


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


WORKER = """
    import time
    import mulligan

    session = mulligan.attach()
    for cycle in session.loop():
        with cycle:
            task = session.tasks.claim()
            if task is None:
                break
            session.agent.update(working_on=task.id, attempt=task.attempts)
            while session.state.get(("hold", task.id)) and not session.internal.control("request"):
                time.sleep(0.01)
            if not session.state.get(("hold", task.id)):
                session.tasks.complete(task.id)
    """
"""Works on tasks; one that is on hold takes until it is not, or until a request comes."""


def test_an_agent_that_is_killed_resumes_the_task_it_had_claimed(place: Place) -> None:
    place.session.tasks.plan(["one", "two", "three"])
    place.session.state.set("hold/two", True)
    running = place.up(f"[agents.a]\ncommand = {place.program('a.py', WORKER)}")
    wait_for(lambda: place.agent().get("working_on") == "two")
    killed = place.agent()["process_id"]
    kill(killed, signal.SIGKILL)
    wait_for(lambda: place.agent().get("attempt") == 2)
    assert place.agent()["process_id"] != killed
    assert place.agent()["restarts"] == 1
    place.session.state.delete("hold")
    code, said = end(running)
    assert (code, place.session.internal.control("status")) == (0, "done"), said
    assert [task.status for task in place.session.tasks] == ["completed"] * 3
    assert [task.attempts for task in place.session.tasks] == [1, 2, 1]
    agent = place.agent()
    assert (agent["state"], agent["exit_status"], agent["signal"]) == ("done", 0, None)
    assert agent["resources"]["max_rss_bytes"] > 1_000_000
    assert [c.kind for c in place.session.checkpoints()].count("recovery") == 1
    assert place.store.verify().ok


def test_a_task_that_ends_its_agent_three_times_is_put_in_quarantine(place: Place) -> None:
    place.session.tasks.plan(["one", "poison", "two"])
    program = place.program(
        "a.py",
        """
        import os
        import mulligan

        session = mulligan.attach()
        while task := session.tasks.claim():
            if task.id == "poison":
                os.kill(os.getpid(), 9)
            session.tasks.complete(task.id)
        """,
    )
    code, said = end(
        place.up(
            f'[agents.a]\ncommand = {program}\nmax_restarts = 2\nbackoff = {{initial = "10ms"}}'
        )
    )
    assert code == 1, said
    found = {task.id: task for task in place.session.tasks}
    assert [found[name].status for name in ("one", "poison", "two")] == [
        "completed",
        "failed",
        "completed",
    ]
    assert found["poison"].attempts == 3
    assert "3 processes of a ended" in (found["poison"].error or "")
    assert "1 task is quarantined: poison." in said
    assert health(place.session.tasks) == "degraded"


def test_a_hang_is_noticed_by_the_heartbeat_and_by_the_deadline(place: Place) -> None:
    stopped = place.program(
        "stopped.py",
        """
        import os, signal, mulligan
        session = mulligan.attach()
        if not session.state.get("stopped"):
            session.state.set("stopped", True)
            os.kill(os.getpid(), signal.SIGSTOP)
        """,
    )
    slow = place.program(
        "slow.py",
        """
        import time, mulligan
        session = mulligan.attach()
        if not session.state.get("slow"):
            session.state.set("slow", True)
            with session.agent.step("a call that never returns", deadline=0.5):
                time.sleep(1000)
        """,
    )
    running = place.up(f"""
        [agents.stopped]
        command = {stopped}
        heartbeat = "2s"
        max_restarts = 100

        [agents.slow]
        command = {slow}
        """)
    code, said = end(running)
    assert code == 0, said
    assert "no sign of life" in said
    assert "its step took longer than it may" in said
    assert place.agent("slow")["restarts"] == 1
    # On a busy machine a process may take longer than two seconds to its first heartbeat.
    assert place.agent("stopped")["restarts"] >= 1
    notes = [c.note for c in place.session.checkpoints() if c.kind == "recovery"]
    assert {note.split()[0] for note in notes} == {"slow", "stopped"}


def test_too_many_failures_end_an_agent_and_the_others_go_on(place: Place) -> None:
    running = place.up("""
        [agents.a]
        command = "false"
        max_restarts = 2
        backoff = {initial = "10ms", max = "20ms"}

        [agents.b]
        command = "sleep 0.3"

        [agents.after-a]
        command = "true"
        after = ["a"]

        [agents.after-b]
        command = "true"
        after = ["b"]
        """)
    code, said = end(running)
    assert (code, place.session.internal.control("status")) == (1, "failed"), said
    assert place.agent("a")["state"] == "failed"
    assert place.agent("a")["restarts"] == 2
    assert place.agent("b")["state"] == place.agent("after-b")["state"] == "done"
    assert place.agent("after-a") == {"state": "waiting"}
    assert place.kinds().count("orchestrator.escalated") == 1


def test_a_refresh_is_no_failure(place: Place) -> None:
    program = place.program(
        "a.py",
        """
        import mulligan
        session = mulligan.attach()
        runs = session.state.get("runs", 0) + 1
        session.state.set("runs", runs)
        for cycle in session.loop(refresh_after=0 if runs == 1 else 99):
            break
        """,
    )
    code, said = end(place.up(f"[agents.a]\ncommand = {program}\nmax_restarts = 0"))
    assert code == 0, said
    assert place.session.state.get("runs") == 2
    assert any("refresh" in (c.note or "") for c in place.session.checkpoints())


def test_a_pause_waits_for_safe_points_and_names_who_was_late(place: Place) -> None:
    place.session.tasks.plan(["one"])
    place.session.state.set("hold/one", True)
    running = place.up(f"""
        [agents.a]
        command = {place.program("a.py", WORKER)}

        [agents.deaf]
        command = "sleep 1000"
        """)
    wait_for(lambda: place.agent().get("working_on") == "one")
    wait_for(lambda: place.agent("deaf").get("process_id"))
    asked = place.mulligan("pause", "--json", "--timeout", "10m")
    out, error = asked.communicate(timeout=PATIENCE)
    assert asked.returncode == 0, error
    answer = json.loads(out)
    assert (answer["status"], answer["answered"], answer["late"]) == ("paused", ["a"], ["deaf"])
    code, said = end(running)
    assert code == 75, said
    assert place.agent("a")["state"] == place.agent("deaf")["state"] == "suspended"
    newest = place.session.checkpoints()[-1]
    assert newest.id == answer["checkpoint_id"]
    assert "answered: a; late: deaf" in (newest.note or "")
    assert place.kinds()[-2:] == ["orchestrator.barrier", "orchestrator.finished"]

    place.session.state.delete("hold")
    (place.root / "team.toml").write_text(f"[agents.a]\ncommand = {place.program('a.py', WORKER)}")
    code, said = end(place.mulligan("up", "team.toml", "--no-files"))
    assert code == 0, said
    assert place.session.tasks.get("one").status == "completed"


def test_ctrl_c_pauses_and_sigterm_does_the_same(place: Place) -> None:
    place.session.tasks.plan(["one"])
    place.session.state.set("hold/one", True)
    for number, expected in ((signal.SIGINT, 130), (signal.SIGTERM, 75)):
        running = place.up(f"[agents.a]\ncommand = {place.program('a.py', WORKER)}")
        wait_for(lambda: place.agent().get("state") == "working")
        running.send_signal(number)
        code, said = end(running)
        assert (code, place.session.internal.control("status")) == (expected, "paused"), said
        assert place.agent()["state"] == "suspended"
        assert not is_alive(place.agent()["process_id"])
        assert "Traceback" not in said


def test_a_second_ctrl_c_ends_the_agents_at_once(place: Place) -> None:
    program = place.program(
        "a.py",
        """
        import time, mulligan
        session = mulligan.attach()
        session.agent.update(state="working")
        time.sleep(1000)
        """,
    )
    running = place.up(f"[agents.a]\ncommand = {program}")
    wait_for(lambda: place.agent().get("state") == "working")
    running.send_signal(signal.SIGINT)
    wait_for(lambda: place.session.internal.control("request"))
    running.send_signal(signal.SIGINT)
    code, said = end(running)
    assert (code, place.session.internal.control("status")) == (130, "paused"), said
    assert (place.agent()["state"], place.agent()["signal"]) == ("suspended", signal.SIGKILL)


def test_agents_of_a_dead_supervisor_are_shut_out_and_ended_by_the_next(place: Place) -> None:
    place.session.tasks.plan(["one", "two"])
    place.session.state.set("hold/one", True)
    workflow = f"[agents.a]\ncommand = {place.program('a.py', WORKER)}"
    first = place.up(workflow)
    wait_for(lambda: place.agent().get("working_on") == "one")
    orphan, epoch = place.agent()["process_id"], place.agent()["epoch"]
    first.kill()
    first.wait()
    assert is_alive(orphan)
    second = place.up(workflow)
    wait_for(lambda: place.agent().get("attempt") == 2)
    assert not is_alive(orphan)
    stale = place.store.session("main", actor="a")
    with pytest.raises(StaleLease):
        stale.internal.adopt(epoch, 30)
    place.session.state.delete("hold")
    code, said = end(second)
    assert code == 0, said
    assert f"ended process {orphan}" in said
    assert "its supervisor" in said
    assert [task.status for task in place.session.tasks] == ["completed"] * 2
    notes = [c.note for c in place.session.checkpoints() if c.kind == "recovery"]
    assert len(notes) == 1
    assert notes[0].startswith("before recovery: its supervisor")
    assert [made["outcome"] for made in place.session.internal.control("recoveries")] == ["ok"]


def test_an_agent_that_prints_outlives_its_supervisor(place: Place) -> None:
    """It prints more than a pipe holds, so somebody has to read it."""
    code = """
        import time
        import mulligan

        session = mulligan.attach()
        while not session.state.get("killed"):
            print("at work", flush=True)
            time.sleep(0.01)
        for number in range(300):
            print("x" * 1000, flush=True)
        session.state.set("printed", True)
        """
    command = place.program("a.py", code)
    running = place.up(f"""
        [agents.a]
        command = {command}

        [agents.b]
        command = "sleep 1000"
        """)
    assert running.stdout is not None
    assert running.stdout.readline() == "a | at work\n"
    wait_for(lambda: place.agent("b").get("process_id"))
    running.kill()
    running.wait(PATIENCE)
    place.session.state.set("killed", True)
    wait_for(lambda: place.session.state.get("printed"), "what it prints after that")


def test_a_restore_does_not_make_it_forget_which_processes_run(place: Place) -> None:
    sleeps = place.program("sleeps.py", "import time; time.sleep(600)")
    up = place.up(f"""
        [agents.a]
        command = {sleeps}
    """)
    first = wait_for(lambda: place.agent().get("process_id"))
    before = place.session.checkpoint()
    kill(first, signal.SIGKILL)
    second = wait_for(lambda: (pid := place.agent().get("process_id")) != first and pid)
    place.session.restore(before)
    assert wait_for(lambda: place.agent().get("process_id") == second)
    assert is_alive(second)
    up.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, up.pid, os.WSTOPPED | os.WNOWAIT)
    shown, _ = place.mulligan("status").communicate(timeout=PATIENCE)
    assert f"The supervisor, process {up.pid}, is stopped" in shown
    up.send_signal(signal.SIGCONT)
    up.send_signal(signal.SIGTERM)
    assert end(up)[0] == 75


def test_a_terminal_that_nobody_reads_holds_no_team_up(place: Place) -> None:
    noisy = place.program("noisy.py", "for n in range(30_000): print(n, 'x' * 100, flush=True)")
    quiet = place.program("quiet.py", "print('also', flush=True)")
    up = place.up(f"""
        [agents.noisy]
        command = {noisy}
        [agents.quiet]
        command = {quiet}
    """)
    # Three megabytes do not fit into a pipe, and nobody has read a byte of it.
    wait_for(lambda: place.session.internal.control("status") == "done", "the team")
    code, errors = end(up)
    assert code == 0
    assert "not shown" not in errors  # they waited for whoever reads them now


def test_a_team_checkpoint_waits_for_everybody_and_stops_nobody(place: Place) -> None:
    program = place.program(
        "a.py",
        """
        import time, mulligan
        session = mulligan.attach()
        for cycle in session.loop(collect=lambda: {"cycle": cycle.number}):
            if session.state.get("over"):
                break
            time.sleep(0.01)
        """,
    )
    running = place.up(f"[agents.a]\ncommand = {program}\n[agents.b]\ncommand = {program}")
    for name in ("a", "b"):
        wait_for(lambda name=name: place.agent(name).get("last_cycle"))
    answer = request_checkpoint(place.session, limit=20)
    assert (answer.answered, answer.late, answer.status) == (("a", "b"), (), "running")
    taken = place.session.checkpoints.at(answer.checkpoint)
    private = [place.session.state.at(taken).get(f"agents/{name}/private") for name in ("a", "b")]
    assert all(found["cycle"] > 0 for found in private)
    place.session.state.set("over", True)
    assert end(running)[0] == 0


def test_only_one_supervisor_runs_a_session(place: Place) -> None:
    running = place.up('[agents.a]\ncommand = "sleep 1000"')
    wait_for(lambda: place.agent().get("process_id"))
    again = place.mulligan("run", "--no-files", "--", "true")
    code, said = end(again)
    assert (code, "Another supervisor runs" in said) == (50, True)
    running.send_signal(signal.SIGTERM)
    assert end(running)[0] == 75


def test_run_exits_as_its_command_did(place: Place) -> None:
    def run(*command: str) -> int:
        return end(place.mulligan("run", "--no-files", "--restart", "never", "--", *command))[0]

    assert run("true") == 0
    assert run("sh", "-c", "exit 3") == 3
    assert run("sh", "-c", "kill -9 $$") == 137


def test_a_supervisor_that_was_replaced_ends_with_its_agents(place: Place) -> None:
    running = place.up('[agents.a]\ncommand = "sleep 1000"\n[agents.b]\ncommand = "sleep 1000"')
    wait_for(lambda: place.agent("b").get("process_id"))
    place.store.session("main", actor="supervisor").internal.take(30, steal=True)
    kill(place.agent("a")["process_id"], signal.SIGKILL)
    code, said = end(running)
    assert code == 51, said
    assert not is_alive(place.agent("b")["process_id"])


def test_a_health_command_marks_checkpoints_and_restarts_the_sick(place: Place) -> None:
    running = place.up("""
        [agents.a]
        command = "sleep 1000"
        health = "test ! -e sick"
        health_interval = "50ms"
        """)
    wait_for(lambda: place.session.internal.control("marks"))
    first = place.agent()["process_id"]
    (place.root / "sick").touch()
    wait_for(lambda: place.agent().get("process_id") != first)
    verdicts = [mark["verdict"] for mark in place.session.internal.control("marks").values()]
    assert verdicts.count("good") >= 1
    assert verdicts.count("bad") >= 3
    running.send_signal(signal.SIGTERM)
    assert end(running)[0] == 75


def test_a_restarted_agent_has_its_current_prompt_and_a_new_one_counts(place: Place) -> None:
    program = place.program(
        "a.py",
        """
        import os, mulligan
        session = mulligan.attach()
        session.state.append("prompts", os.environ["MULLIGAN_PROMPT"])
        session.agent.update(prompt="go on with step 2")
        if len(session.state.get("prompts")) % 2:
            os.kill(os.getpid(), 9)
        """,
    )
    workflow = f'[agents.a]\ncommand = {program}\nprompt = "step 1"'
    assert end(place.up(workflow))[0] == 0
    assert place.session.state.get("prompts") == ["step 1", "go on with step 2"]
    assert end(place.up(workflow))[0] == 0
    assert place.session.state.get("prompts")[2:] == ["step 1", "go on with step 2"]


def test_what_is_kept_of_an_agent_holds_no_secret(place: Place) -> None:
    running = place.up("""
        [agents.a]
        command = "true"
        env = { MODE = "fast", API_KEY = "hush" }
        """)
    assert end(running)[0] == 0
    kept = place.agent()
    assert kept["environment"]["MODE"] == "fast"
    assert kept["environment"].keys() >= {"PATH"}
    assert "hush" not in str(place.session.state.get())
    workflow = from_plain(place.session.state.get("orchestrator/workflow"))
    assert workflow.agents["a"].pass_env == ("API_KEY",)


def test_what_was_there_before_the_agents_is_in_a_checkpoint(place: Place) -> None:
    (place.root / "precious.txt").write_text("precious")
    running = place.mulligan("run", "--", "rm", "precious.txt")
    assert end(running)[0] == 0
    first = place.session.checkpoints()[0]
    assert first.note == "before the agents start"
    assert place.session.files.read(first, "precious.txt") == b"precious"


def test_a_new_run_does_not_take_agents_for_done_that_were_done_in_an_earlier_one(
    place: Place,
) -> None:
    hold = "while test -e hold; do sleep 0.01; done"
    workflow = f'[agents.b]\ncommand = ["sh", "-c", "{hold}"]\n'
    workflow += '[agents.c]\ncommand = ["sh", "-c", "echo ran >> c.log"]\nafter = ["b"]\n'
    assert end(place.up(workflow))[0] == 0
    (place.root / "hold").touch()
    running = place.up(workflow)
    wait_for(lambda: place.agent("b").get("state") == "starting")
    running.send_signal(signal.SIGTERM)
    assert end(running)[0] == 75
    (place.root / "hold").unlink()
    assert end(place.mulligan("resume", "main"))[0] == 0
    assert (place.root / "c.log").read_text() == "ran\n" * 2
