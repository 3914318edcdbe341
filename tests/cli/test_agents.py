"""run, up, pause and checkpoint --team: their text, their JSON and their exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import mulligan

PATIENCE = 60

AGENT = """
import time, mulligan
session = mulligan.attach()
for cycle in session.loop():
    time.sleep(0.01)
"""


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, error = process.communicate(timeout=PATIENCE)
    return process.returncode, out, error


@pytest.fixture
def running(store, process, place: Path) -> Callable[[], subprocess.Popen[str]]:
    """Start an agent that works until it is asked to pause."""
    (place / "agent.py").write_text(AGENT)

    def start() -> subprocess.Popen[str]:
        started = process("run", "--json", "--", sys.executable, "agent.py")
        until = time.monotonic() + PATIENCE
        with mulligan.open(place) as opened:
            session = opened.session("main", actor="test")
            while session.state.get("agents/agent/last_cycle") is None:
                assert time.monotonic() < until
                time.sleep(0.01)
        return started

    return start


def test_run_passes_the_output_on_and_tells_on_standard_error(store, process):
    code, out, error = end(
        process("run", "--prompt", "hi", "--", "sh", "-c", "echo $MULLIGAN_PROMPT")
    )
    assert (code, out) == (0, "hi\n")
    assert "agent started as process" in error
    assert "main is done" in error
    assert end(process("run", "-q", "--", "true")) == (0, "", "")


def test_run_in_json_keeps_standard_output_for_the_result(store, process, place: Path):
    (place / "prompt.md").write_text("from a file")
    command = ["sh", "-c", "echo $MULLIGAN_PROMPT; exit 4"]
    args = ["--restart", "never", "--agent", "coder", "--prompt", "@prompt.md"]
    code, out, error = end(process("run", "--json", *args, "--", *command))
    result = json.loads(out)
    assert code == 4
    assert "from a file" in error
    assert set(result) == {"session", "status", "reason", "quarantined", "agents"}
    assert (result["session"], result["status"], result["reason"]) == ("main", "failed", "failed")
    [agent] = result["agents"]
    assert (agent["name"], agent["state"], agent["exit_status"]) == ("coder", "failed", 4)


def test_run_makes_the_session_that_is_named(store, process):
    assert end(process("run", "-s", "new", "--", "true"))[0] == 0
    assert store("log", "-s", "new").code == 0


def test_run_has_the_files_in_its_checkpoints(store, process):
    assert end(process("run", "--", "sh", "-c", "echo one > made.txt"))[0] == 0
    newest = store("log", "--json").json["entries"][0]
    assert (newest["kind"], newest["files"]) == ("routine", 1)


@pytest.mark.parametrize(("program", "code"), [("no-such-program", 127), ("./no", 126)])
def test_a_program_that_cannot_be_run_leaves_no_checkpoint(store, place: Path, program, code):
    (place / "no").touch()
    failed = store("run", "--", program)
    assert failed.code == code
    assert "nothing was started" in failed.err
    assert "Hint:" in failed.err
    assert store("log", "--json").json["entries"] == []


def test_a_program_for_restarts_that_is_not_there_is_found_before_the_start(store):
    failed = store("run", "--again", "no-such-program --continue", "--", "true")
    assert failed.code == 127
    assert "--again: there is no program 'no-such-program' on the PATH" in failed.err
    assert store("log", "--json").json["entries"] == []


def test_a_run_that_failed_says_what_is_kept_and_what_is_next(store, process):
    _, _, error = end(process("run", "--restart", "never", "--", "false"))
    newest = store("log", "--json").json["entries"][0]["checkpoint_id"]
    assert f"is in the checkpoint {newest[:12]}" in error
    assert "`mulligan resume main` starts it again" in error
    again = process("resume", "main")
    assert "It failed again;\n`mulligan resume main --rollback`" in end(again)[2]
    assert "resume" not in end(process("run", "-q", "--restart", "never", "--", "false"))[2]


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (["yes"], 128 + signal.SIGPIPE),
        (["sh", "-c", "yes"], 128 + signal.SIGPIPE),
        ([sys.executable, "-uc", "while True: print(1)"], 1),
    ],
)
def test_a_program_whose_output_is_closed_is_not_started_again(store, place: Path, program, code):
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-m", "mulligan", "run", "--", *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=variables,
        cwd=place,
    ) as run:
        run.stdout.readline()
        run.stdout.close()
        error = run.stderr.read().decode()
        assert run.wait(PATIENCE) == code
    assert "nothing reads its output any more" in error
    assert "starts again" not in error


def test_wrong_command_lines(store):
    assert store("run").code == 2
    assert store("run", "--checkpoint-interval", "often", "--", "true").code == 2
    assert store("run", "--restart", "sometimes", "--", "true").code == 2
    assert store("checkpoint", "--limit", "1s").code == 2
    assert store("checkpoint", "--team", "--label", "@x").code == 22
    assert store("run", "--agent", "@x", "--", "true").code == 22
    assert store("up", "nowhere.toml").code == 93


def test_an_error_in_a_workflow_names_the_line(store, place: Path):
    (place / "team.toml").write_text('[agents.a]\ncommand = "true"\nrestarts = 3\n')
    failed = store("up", "team.toml", "--json")
    assert failed.code == 93
    assert failed.error["message"].startswith(
        "team.toml:3: agents.a.restarts: there is no such key"
    )
    assert failed.error["message"].endswith("did you mean 'restart'?")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('workspace = "no"\n[agents.a]\ncommand = "true"', "1: workspace: there is no directory"),
        ('[agents.a]\ncommand = "no-such x"', "2: agents.a.command: there is no program 'no-such'"),
        ('[agents.a]\ncommand = ["./no"]', "2: agents.a.command: there is no program /"),
        ('[agents.a]\ncommand = "./team.toml"', "2: agents.a.command: /"),
        (
            '[agents.a]\ncommand = "true"\ndirectory = "no"',
            "3: agents.a.directory: there is no directory",
        ),
        ('[agents.a]\ncommand = "true"\nhealth = "no-such"', "3: agents.a.health: there is no"),
        (
            '[agents.a]\ncommand = "true"\n[agents.b]\nafter = ["a"]\ncommand = "no-such"',
            "5: agents.b.command: there is no program",
        ),
    ],
)
def test_what_is_not_there_is_found_before_anything_starts(store, place: Path, text: str, said):
    (place / "team.toml").write_text(text)
    failed = store("up", "team.toml", "--json")
    assert failed.code == 93
    assert failed.error["message"].startswith(f"team.toml:{said}")
    assert store("status", "--json").json["sessions"][0]["status"] is None


def test_what_an_agent_needs_may_be_made_by_the_one_before(store, process, place: Path):
    script = "mkdir made && printf '#!/bin/sh\\necho here' > made/it && chmod +x made/it"
    (place / "team.toml").write_text(
        f"[agents.a]\ncommand = ['sh', '-c', {json.dumps(script)}]\n"
        '[agents.b]\nafter = ["a"]\ndirectory = "made"\ncommand = "./it"\n'
    )
    code, out, error = end(process("up", "team.toml"))
    assert (code, out) == (0, "b | here\n"), error


def test_a_variable_that_an_agent_needs_is_missing(store, place: Path):
    (place / "team.toml").write_text('[agents.a]\ncommand = "true"\npass_env = ["NO_SUCH_VAR"]\n')
    failed = store("up", "team.toml")
    assert (failed.code, "needs NO_SUCH_VAR" in failed.err) == (93, True)


def test_up_puts_the_name_before_each_line(store, process, place: Path):
    (place / "team.toml").write_text(
        '[agents.a]\ncommand = "echo one"\n[agents.bcd]\ncommand = "echo two"\nafter = ["a"]\n'
    )
    code, out, _ = end(process("up", "team.toml"))
    assert (code, out) == (0, "a   | one\nbcd | two\n")
    code, out, error = end(process("up", "team.toml", "--json"))
    assert [agent["state"] for agent in json.loads(out)["agents"]] == ["done", "done"]
    assert "bcd | two" in error


def test_nobody_to_pause(store):
    assert store("pause").code == 94
    assert store("checkpoint", "--team").code == 94


def test_a_pause_from_beside(store, running):
    supervisor = running()
    taken = store("checkpoint", "--team", "--json").json
    assert taken["actor"] == "supervisor"
    assert "answered: agent" in taken["note"]
    done = store("pause", "--json").json
    assert set(done) == {"session", "status", "answered", "late", "checkpoint_id"}
    assert (done["status"], done["answered"], done["late"]) == ("paused", ["agent"], [])
    code, out, _ = end(supervisor)
    assert (code, json.loads(out)["reason"]) == (75, "pause")


def test_a_team_checkpoint_takes_label_note_and_kind(store, running):
    supervisor = running()
    wanted = ["--label", "green", "-m", "x" * 600, "-k", "nightly"]
    taken = store("checkpoint", "--team", "--json", *wanted).json
    assert (taken["label"], taken["kind"]) == ("green", "nightly")
    assert taken["note"] == "x" * 600 + "; answered: agent"
    assert (taken["answered"], taken["late"]) == (["agent"], [])
    assert store("show", "green", "--json").json["checkpoint_id"] == taken["checkpoint_id"]
    assert store("pause").code == 0
    assert end(supervisor)[0] == 75


def started(process, place: Path, *args: str) -> subprocess.Popen[str]:
    """Start an agent that knows nothing of pauses, and wait until it runs."""
    supervisor = process("run", *args, "--", "sleep", "1000")
    line = ""
    while "started as process" not in line:
        assert supervisor.stderr is not None
        line = supervisor.stderr.readline()
        assert line, "it has ended"
    return supervisor


def test_late_agents_are_named_without_a_terminal(store, process, place: Path):
    supervisor = started(process, place)
    paused = store("pause", "--timeout", "1s")
    assert (paused.code, len(paused.out.strip())) == (0, 32)
    assert paused.err == "Not at a safe point: agent.\n"
    assert end(supervisor)[0] == 75


def test_the_session_that_runs_is_the_one_that_is_paused(store, process, place: Path):
    one = started(process, place, "-s", "one")
    taken = store("checkpoint", "--team", "--json")
    assert taken.json["session"] == "one"
    assert taken.err == "The running session is one.\n"
    two = started(process, place, "-s", "two")
    failed = store("pause", "--json")
    assert failed.code == 20
    assert failed.error["message"] == "Several sessions are running:\n  one\n  two"
    assert store("pause", "-s", "two").code == 0
    assert end(two)[0] == 75
    assert store("pause", "--json").json["session"] == "one"
    assert end(one)[0] == 75


def test_a_supervisor_that_is_stopped_is_noticed_at_once(store, process, place: Path):
    supervisor = started(process, place)
    supervisor.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, supervisor.pid, os.WSTOPPED | os.WNOWAIT)
    with mulligan.open(place) as opened:
        head = opened.session("main").head
        failed = store("pause", "--json")
        assert opened.session("main").head == head  # nothing was asked of it
    assert failed.code == 94
    assert f"process {supervisor.pid}, is stopped" in failed.error["message"]
    assert f"kill -CONT {supervisor.pid}" in failed.error["hint"]
    supervisor.send_signal(signal.SIGCONT)
    assert store("pause").code == 0
    assert end(supervisor)[0] == 75


def test_ctrl_c_is_130(running):
    supervisor = running()
    supervisor.send_signal(signal.SIGINT)
    code, out, error = end(supervisor)
    assert (code, json.loads(out)["status"]) == (130, "paused")
    assert "Ctrl-C again" in error


def test_an_agent_cannot_have_the_name_of_the_supervisor(store):
    refused = store("run", "--agent", "supervisor", "--", "true")
    assert refused.code == 2
    assert "the supervisor itself" in refused.err
    assert store("state", "get", "agents/supervisor").code == 42


def test_a_prompt_file_that_is_not_there_is_a_usage_error(store):
    refused = store("run", "--prompt", "@nofile", "--", "true")
    assert refused.code == 2
    assert "nofile' cannot be read: No such file" in refused.err


@pytest.mark.parametrize("name", ["cli", "main", ""])
def test_an_agent_is_not_named_as_commands_and_plain_handles_are(store, place: Path, name: str):
    refused = store("run", "--agent", name, "--", "true")
    assert refused.code == 22
    (place / "team.toml").write_text(f'[agents."{name}"]\ncommand = ["true"]\n')
    assert store("up", "team.toml").code == 93
    assert store("checkpoint").code == 0
