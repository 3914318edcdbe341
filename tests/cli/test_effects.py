"""mulligan effects, approve, deny, tools and exec; effects in status, restore, undo and resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import ApprovalPending, EffectInDoubt
from tests.cli.conftest import Cli

PYTHON = [sys.executable, "-c"]


@pytest.fixture
def session(store: Cli, place: Path) -> Session:
    store("checkpoint", "--create", "--label", "start")
    return mulligan.open(place).session("main")


def doubt(session: Session, name: str = "mail.send") -> str:
    with pytest.raises(EffectInDoubt), session.effect(name, {"to": "ann"}, key="7") as effect:
        raise EffectInDoubt("the line went dead")
    return effect.id


def ask(session: Session, intent: Any = None) -> str:
    session.effects.rule("deploy", approval="ask")
    with pytest.raises(ApprovalPending), session.effect("deploy", intent or {"replicas": 5}):
        raise AssertionError
    return session.approvals.pending()[0].id


def test_effects_are_listed(store: Cli, session: Session) -> None:
    assert "has no effects" in store("effects").err
    with session.effect("pay", {"eur": 7}):
        pass
    id = doubt(session)
    said = store("effects").out
    assert "pay" in said
    assert "in doubt" in said
    assert store("effects", "-q").out.splitlines()[1] == id
    [only] = store("effects", "--in-doubt", "--json").json["effects"]
    assert (only["id"], only["status"], only["error"]) == (
        id,
        "in_doubt",
        "EffectInDoubt: the line went dead",
    )
    assert "has no effects that wait for approval." in store("effects", "--pending").err


def test_a_person_settles_an_effect_once(store: Cli, session: Session) -> None:
    id = doubt(session)
    done = store("effects", "settle", id[:5], "done", "--result", '{"id": 4}', "--json")
    assert done.json["result"] == {"id": 4}
    again = store("effects", "settle", id, "failed")
    assert (again.code, "is done, not in doubt" in again.err) == (43, True)
    unknown = store("effects", "settle", "ffff", "done")
    assert unknown.code == 113
    wrong = store("effects", "settle", id, "done", "--result", "{")
    assert (wrong.code, "not JSON" in wrong.err) == (2, True)
    assert store("effects", "settle", id, "maybe").code == 2
    with session.effect("mail.send", {"to": "ann"}, key="7") as effect:
        assert effect.settled


def test_a_person_approves_and_denies(store: Cli, session: Session) -> None:
    id = ask(session)
    wrong = store("approve", id, "--edit", '{"replicas": "many"}')
    assert (wrong.code, "'replicas' is a number" in wrong.err) == (114, True)
    done = store("approve", id, "--edit", '{"replicas": 2}', "--note", "small", "--json").json
    assert (done["status"], done["question"]["note"]) == ("approved", "small")
    assert store("approve", id).code == 43
    with session.effect("deploy", {"replicas": 5}) as effect:
        assert effect.intent == {"replicas": 2}
    denied = ask(session, {"replicas": 9})
    assert store("deny", denied, "--note", "too many").code == 0
    assert "too many" in store("effects").out
    assert store("deny", "ffff").code == 113
    event = next(e for e in session.events() if e.kind == "approval.granted")
    assert event.actor == "cli"
    assert event.payload["by"]


def test_status_says_what_needs_a_look(store: Cli, session: Session) -> None:
    ask(session)
    doubt(session)
    said = store("status").out
    assert "1 effect waits for approval: `mulligan effects -s main --pending`" in said
    assert "1 effect in doubt" in said
    [view] = store("status", "--json").json["sessions"]
    assert view["effects"] == {
        "pending": 1,
        "in_doubt": 1,
        "left_behind": 0,
        "calls_in_doubt": 0,
    }


def test_a_restore_lists_what_it_undoes_and_what_it_leaves(
    store: Cli, session: Session, tmp_path_factory: pytest.TempPathFactory
) -> None:
    undone = tmp_path_factory.mktemp("world") / "undone"
    undo = [*PYTHON, f"import sys; open({str(undone)!r}, 'w').write(sys.stdin.read())"]
    with session.effect("vm.start", {"size": 2}, undo=undo):
        pass
    with session.effect("pay", {"eur": 7}):
        pass
    dry = store("restore", "start", "--dry-run").out
    assert "1 effect to undo" in dry
    assert "1 effect cannot be undone" in dry
    refused = store("restore", "start")
    assert (refused.code, "pay" in refused.err, "--accept-left-behind" in refused.err) == (
        119,
        True,
        True,
    )
    assert not undone.exists()
    done = store("restore", "start", "--accept-left-behind", "--json")
    assert done.code == 0
    plan = done.json["effects"]
    assert [e["name"] for e in plan["compensated"]] == ["vm.start"]
    assert [e["name"] for e in plan["left_behind"]] == ["pay"]
    assert json.loads(undone.read_text())["name"] == "vm.start"
    assert "left behind" in store("effects").out
    assert "1 effect beyond its timeline" in store("status").out
    # The undo of the restore brings the payment back onto the timeline.
    assert store("undo").code == 0
    assert "left behind" not in store("effects").out
    assert store("redo").code == 119
    assert store("redo", "--accept-left-behind").code == 0


def test_exec_records_a_command_and_has_its_exit_code(store: Cli, place: Path) -> None:
    store("checkpoint", "--create")
    script = "import sys; print('out'); print('err', file=sys.stderr); open('a', 'w'); sys.exit(3)"
    done = run(place, "exec", "--", *PYTHON, script)
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert "err\n" in done.stderr
    assert "1 path changed" in done.stderr
    [call] = store("tools", "--failed", "--json").json["calls"]
    assert call["result"] == {"exit": 3, "stdout": "out\n", "stderr": "err\n", "is_cut": False}
    assert (call["files"], call["args"]) == (["a"], {"command": [*PYTHON, script]})
    assert "exit code 3" in store("tools").out
    notes = [entry["note"] for entry in store("log", "--json").json["entries"]]
    assert notes[:2] == ["after shell", "before shell"]
    assert run(place, "exec", "--", "no-such-command").returncode == 127
    assert run(place, "exec", "--", str(place)).returncode == 126
    assert run(place, "exec").returncode == 2
    assert run(place, "exec", "--key", "1", "--", "true").returncode == 2


def test_exec_of_an_effect_runs_once(store: Cli, place: Path) -> None:
    store("checkpoint", "--create")
    command = ["exec", "--effect", "deploy", "--", *PYTHON, "print('x', file=open('log', 'a'))"]
    for _ in range(2):
        done = run(place, *command)
        assert done.returncode == 0
    assert "was done before" in done.stderr
    assert (place / "log").read_text() == "x\n"
    again = [*command[:3], "--key", "2", *command[3:]]
    assert run(place, *again).returncode == 0
    assert (place / "log").read_text() == "x\nx\n"


def test_ctrl_c_goes_to_the_command_and_its_end_is_recorded(store: Cli, place: Path) -> None:
    store("checkpoint", "--create")
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, lambda *_: sys.exit(7)); "
        "print('ready', flush=True); signal.pause()"
    )
    arguments = [sys.executable, "-m", "mulligan", "exec", "--", *PYTHON, script]
    with subprocess.Popen(
        arguments, cwd=place, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 7
    [call] = store("tools", "--json").json["calls"]
    assert (call["status"], call["result"]["exit"]) == ("failed", 7)


def test_a_call_whose_process_was_killed_is_in_doubt(store: Cli, place: Path) -> None:
    store("checkpoint", "--create")
    script = "import os, time; open('half', 'w'); print(os.getpid(), flush=True); input()"
    arguments = [sys.executable, "-m", "mulligan", "exec", "--", *PYTHON, script]
    with subprocess.Popen(
        arguments, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
        said = store("tools", "--in-doubt").out
        assert "in doubt" in said
        assert "changed since it began: half" in said
        assert f"process {child} still runs" in said
        os.kill(child, signal.SIGKILL)
    shown = store("tools", "--in-doubt")
    assert "still runs" not in shown.out
    assert "`mulligan tools -s main settle ID done|failed`" in shown.err
    assert "1 tool call in doubt" in store("status").out
    [call] = store("tools", "--in-doubt", "--json").json["calls"]
    settled = store("tools", "settle", call["id"], "failed", "--note", "half a file", "--json").json
    assert (settled["status"], settled["error"]) == ("failed", "half a file")
    assert "in doubt" not in store("status").out
    again = store("tools", "settle", call["id"], "done")
    assert (again.code, "is failed, not in doubt" in again.err) == (43, True)
    assert store("tools", "list", "--failed", "-q").out == f"{call['id']}\n"


def run(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a process: what its child prints is seen there alone."""
    return subprocess.run(
        [sys.executable, "-m", "mulligan", *arguments],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_a_session_without_calls_of_tools_says_so(store):
    assert store("tools").err == "Session 'main' has no tool calls.\n"
    assert store("tools", "--failed").err == "Session 'main' has no such tool calls.\n"
