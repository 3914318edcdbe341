"""mulligan drill: real files, real commands, and a failure that nobody can overlook."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import mulligan
from tests.cli.conftest import PATIENCE, Cli
from tests.cli.test_contract import documented, section

TEAM = """
[drill]
timeout = "30s"
[agents.coder]
command = "true"
drill = ["sh", "-c", "test -f app.txt && grep -q goal $MULLIGAN_STATE"]
health = "grep -q works app.txt"
"""


@pytest.fixture
def used(store: Cli, place: Path) -> Cli:
    """A project with a checkpoint, and a change since."""
    store("state", "set", "memory/goal", "first")
    (place / "app.txt").write_text("works\n")
    store("checkpoint", "--label", "one")
    (place / "later.txt").touch()
    return store


@pytest.fixture
def team(used: Cli, place: Path) -> Cli:
    """The same with a team that has run."""
    (place / "team.toml").write_text(TEAM)
    assert used("up", "team.toml").code == 0
    return used


def drill_event(cli: Cli) -> str:
    lines = cli("events", "--json").out.splitlines()
    return str(json.loads(lines[-1])["kind"])


def test_a_drill_that_passes(used: Cli, place: Path) -> None:
    done = used("drill")
    assert done.code == 0
    assert "can be brought back" in done.out
    assert "1 file, 6 bytes, compared" in done.out
    assert "1 changed path, 0 events since" in done.out
    assert drill_event(used) == "drill.passed"
    assert used("drill", "-q").out == ""
    assert sorted(path.name for path in place.iterdir()) == [".mulligan", "app.txt", "later.txt"]


def test_the_fields_of_a_drill(team: Cli) -> None:
    done = team("drill", "--json")
    assert set(done.json) == documented("drill")
    (first, second) = done.json["commands"]
    for field in (*first, *second, *done.json["loss"]):
        assert f"`{field}`" in section("drill")
    assert (first["kind"], second["kind"]) == ("drill", "health")


def test_status_shows_the_last_drill(used: Cli) -> None:
    assert used("status", "--json").json["sessions"][0]["drill"] is None
    assert "never" in used("status").out
    made = used("drill", "--json").json
    assert used("status", "--json").json["sessions"][0]["drill"] == made
    assert "passed now" in used("status").out
    assert "never" not in used("status").out


def test_a_session_without_checkpoints_has_no_drill_to_miss(store: Cli) -> None:
    assert "never" not in store("status").out
    assert store("drill", "--json").error["error"] == "UnknownPoint"


def test_a_failed_drill_is_loud(team: Cli, place: Path) -> None:
    (place / "app.txt").write_text("broken\n")
    team("checkpoint")
    failed = team("drill")
    assert failed.code == 102
    assert "✗ agent  coder: its health command exited with 1" in failed.out
    assert "Error: The drill of #" in failed.err
    assert "Hint:" in failed.err
    assert drill_event(team) == "drill.failed"
    shown = team("status").words
    assert "FAILED" in shown
    assert "failed: agent coder: its health command exited with 1." in shown
    assert team("status", "--json").json["sessions"][0]["drill"]["ok"] is False
    assert team("drill", "-q").code == 102
    assert team("drill", "one").code == 0
    assert "FAILED" not in team("status").out


def test_the_json_of_a_failed_drill_is_its_result(team: Cli, place: Path) -> None:
    (place / "app.txt").write_text("broken\n")
    team("checkpoint")
    failed = team("drill", "--json")
    assert (failed.code, failed.json["ok"], failed.err) == (102, False, "")
    assert failed.json["problems"][0]["where"] == "coder"


def test_a_damaged_file_is_found(used: Cli, place: Path) -> None:
    content = os.urandom(20_000)
    (place / "key.bin").write_bytes(content)
    used("checkpoint")
    directory = Path(used("status", "--json").json["store"])
    for pack in (directory / "packs").iterdir():
        pack.write_bytes(pack.read_bytes().replace(content[5000:5100], bytes(100)))
    failed = used("drill", "--no-files", "--json")
    assert failed.code == 102
    assert ("file", "key.bin") in [(p["what"], p["where"]) for p in failed.json["problems"]]


def test_another_directory_for_the_files(used: Cli, tmp_path: Path) -> None:
    assert used("drill", "--scratch", "missing").code == 80
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert used("drill", "--scratch", "scratch").code == 0
    assert list(scratch.iterdir()) == []


def test_a_command_that_takes_too_long(used: Cli, place: Path) -> None:
    team = '[agents.a]\ncommand = "true"\ndrill = "sleep 1000"\n'
    (place / "team.toml").write_text(team)
    assert used("up", "team.toml").code == 0
    failed = used("drill", "--timeout", "200ms", "--json")
    assert failed.code == 102
    assert failed.json["problems"][0]["detail"] == "its drill command was ended after 0.2 s"
    assert used("drill", "--timeout", "0s").code == 2


def test_a_team_with_a_secret_in_its_command_cannot_be_resumed(used: Cli, place: Path) -> None:
    team = '[agents.a]\ncommand = ["true", "--password", "hunter2"]\n'
    (place / "team.toml").write_text(team)
    assert used("up", "team.toml").code == 0
    failed = used("drill", "--json")
    assert failed.code == 102
    assert failed.json["problems"][0]["what"] == "team"
    assert "held a secret" in failed.json["problems"][0]["detail"]


def test_what_a_command_prints_is_not_mixed_with_the_result(
    used: Cli, place: Path, process: Callable[..., subprocess.Popen[str]]
) -> None:
    team = '[agents.a]\ncommand = "true"\ndrill = "echo dry run"\n'
    (place / "team.toml").write_text(team)
    assert used("up", "team.toml").code == 0
    out, err = process("drill").communicate(timeout=PATIENCE)
    assert "dry run" in err
    assert "dry run" not in out
    out, err = process("drill", "--json").communicate(timeout=PATIENCE)
    assert (json.loads(out)["ok"], err) == (True, "")


def test_ctrl_c_removes_the_files(
    used: Cli, place: Path, process: Callable[..., subprocess.Popen[str]]
) -> None:
    os.mkfifo(place / "ready")
    script = f"echo > {place}/ready; sleep 1000"
    team = f'[agents.a]\ncommand = "true"\ndrill = ["sh", "-c", "{script}"]\n'
    (place / "team.toml").write_text(team)
    assert used("up", "team.toml").code == 0
    started = process("drill", "--scratch", ".")
    (place / "ready").read_text()  # until the command runs
    assert list(place.glob(".mulligan.new-drill-*")) != []
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=PATIENCE)
    assert started.returncode == 130
    assert list(place.glob(".mulligan.new-drill-*")) == []
    with mulligan.open(place) as store:
        assert "drill" not in [e.kind.split(".")[0] for e in store.session("main").events()]
