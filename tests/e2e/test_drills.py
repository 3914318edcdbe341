"""Drills beside a real team: run on schedule, loud when they fail, and no danger to the team."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mulligan.testing.objects import noise

PATIENCE = 120
MULLIGAN = [sys.executable, "-c", "from mulligan.cli.main import main; main()"]

TEAM = """
[drill]
every = "1d"
[agents.a]
command = ["sh", "-c", "read _ < {done}"]
drill = ["sh", "-c", "nice > {nice}; {drill}"]
"""


CHECKED = """
[verify]
every = "200ms"
sample = "100%"
[agents.a]
command = ["sh", "-c", "read _ < {done}"]
"""


class Team:
    """A project whose agent runs until the test lets it end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project = root / "project"
        self.project.mkdir()
        (self.project / "app.txt").write_text("works")
        self.done, self.nice = root / "done", root / "nice"
        os.mkfifo(self.done)
        self.mulligan("init")

    def start(self, drill: str, team: str = TEAM) -> subprocess.Popen[str]:
        (self.project / "team.toml").write_text(
            team.format(done=self.done, nice=self.nice, drill=drill)
        )
        return subprocess.Popen(
            [*MULLIGAN, "up", "team.toml"], cwd=self.project, stderr=subprocess.PIPE, text=True
        )

    def end(self) -> None:
        self.done.write_text("\n")

    def mulligan(self, *args: str) -> str:
        done = subprocess.run(
            [*MULLIGAN, *args], cwd=self.project, capture_output=True, text=True, check=True
        )
        return done.stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.mulligan("status", "--json"))["sessions"][0]
        return found


@pytest.fixture
def team(tmp_path: Path) -> Team:
    return Team(tmp_path)


def read_until(up: subprocess.Popen[str], words: str) -> str:
    assert up.stderr is not None
    return next(line for line in up.stderr if words in line)


def test_a_drill_runs_beside_the_team_with_a_low_priority(team: Team) -> None:
    up = team.start("test -f app.txt")
    read_until(up, "the drill passed")
    assert team.status()["drill"]["ok"] is True
    assert int(team.nice.read_text()) == min(os.nice(0) + 10, 19)
    team.end()
    up.communicate(timeout=PATIENCE)
    assert up.returncode == 0
    again = team.start("test -f app.txt")  # the last one is not a day old
    team.end()
    _, said = again.communicate(timeout=PATIENCE)
    assert "drill" not in said
    assert again.returncode == 0


def test_a_failed_drill_is_loud_and_the_team_goes_on(team: Team) -> None:
    up = team.start("false")
    said = read_until(up, "THE DRILL FAILED")
    assert "agent a: its drill command exited with 1" in said
    seen = team.status()
    assert (seen["drill"]["ok"], seen["status"]) == (False, "running")
    assert "FAILED" in team.mulligan("status")
    team.end()
    up.communicate(timeout=PATIENCE)
    assert up.returncode == 0


def test_a_drill_that_runs_when_the_team_ends_is_ended_with_it(team: Team) -> None:
    ready = team.root / "ready"
    os.mkfifo(ready)
    up = team.start(f"echo > {ready}; sleep 1000")
    ready.read_text()  # until the drill runs its command
    team.end()
    up.communicate(timeout=PATIENCE)
    assert up.returncode == 0
    store = Path(json.loads(team.mulligan("status", "--json"))["store"])
    assert list((store / "tmp").glob("*drill-*")) == []
    assert team.status()["drill"] is None


def test_damage_is_found_beside_the_team_and_the_team_goes_on(team: Team) -> None:
    (team.project / "large.bin").write_bytes(noise(300_000))
    team.mulligan("checkpoint")
    store = Path(json.loads(team.mulligan("status", "--json"))["store"])
    [pack] = (store / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[150_000] ^= 1
    pack.write_bytes(data)
    up = team.start("", CHECKED)
    assert "00000001.pack" in read_until(up, "VERIFY FOUND DAMAGE")
    seen = json.loads(team.mulligan("status", "--json"))
    assert (seen["verify"]["ok"], seen["sessions"][0]["status"]) == (False, "running")
    assert "found damage" in team.mulligan("status")
    assert "verify.failed" in team.mulligan("events")
    team.end()
    up.communicate(timeout=PATIENCE)
    assert up.returncode == 0
