"""`mulligan watch`, and `mulligan run --watch`: checkpoints of files that others change."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import mulligan
from mulligan.cli import following
from mulligan.cli.commands.watch import _show
from mulligan.cli.context import CliContext
from mulligan.coding import follow
from mulligan.coding.transcripts.transcript_format import encode
from mulligan.errors import DiskFull, StoreGone
from mulligan.testing.clock import FakeClock
from tests.cli.conftest import PATIENCE, Cli
from tests.disks import disk_of
from tests.unit.coding.claude_entries import Transcript
from tests.unit.coding.codex_entries import OLD, Rollout

Start = Callable[..., subprocess.Popen[str]]

WAIT_FOR_CHECKPOINTS = """
import pathlib, subprocess, sys
pathlib.Path("made").write_text("by the agent")
while True:
    shown = subprocess.run(
        [sys.executable, "-m", "mulligan", "log", "--json"], capture_output=True, text=True
    ).stdout
    if "the files changed" in shown:
        break
"""

TALK = """
import os, pathlib, subprocess, sys
del os.environ["MULLIGAN_SESSION"]  # status lists all
if pathlib.Path("fails").exists():
    sys.exit(1)
pathlib.Path("said").rename("{target}")
while True:
    shown = subprocess.run(
        [sys.executable, "-m", "mulligan", "status", "--quiet"], capture_output=True, text=True
    ).stdout
    if "codex-" in shown:
        break
"""
"""An agent that writes a transcript, and ends when it has a session."""


def test_a_change_becomes_a_checkpoint(store: Cli, process: Start, place: Path) -> None:
    watch = process("watch", "--settle", "10ms", "--json")
    assert watch.stdout is not None
    first = json.loads(watch.stdout.readline())
    (place / "new.txt").write_text("hello")
    second = json.loads(watch.stdout.readline())
    assert second["seq"] > first["seq"]
    watch.send_signal(signal.SIGINT)
    assert watch.wait(PATIENCE) == 0
    shown = store("restore", second["checkpoint_id"], "--only", "new.txt", "--to", "copy")
    assert shown.code == 0, shown.err
    assert (place / "copy" / "new.txt").read_text() == "hello"


def test_a_disk_that_was_full_for_a_while_ends_no_watch(
    process: Start,
    place: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with disk_of(8, tmp_path_factory.mktemp("small") / "disk") as disk:
        monkeypatch.setenv("XDG_STATE_HOME", str(disk))
        assert cli("init").code == 0
        watch = process("watch", "--settle", "10ms", "--longest", "10ms", "--json")
        assert watch.stdout is not None
        assert watch.stderr is not None
        watch.stdout.readline()
        fill(disk / "filler")
        (place / "new.txt").write_text("hello")
        assert "no checkpoint was taken" in watch.stderr.readline()
        (disk / "filler").unlink()
        copy, code = ["--only", "new.txt", "--to", str(place / "copy")], 1
        while code:  # one that has the state alone may come before
            taken = json.loads(watch.stdout.readline())
            code = cli("restore", taken["checkpoint_id"], *copy).code
        assert (place / "copy" / "new.txt").read_text() == "hello"
        watch.send_signal(signal.SIGINT)
        assert watch.wait(PATIENCE) == 0


def fill(file: Path) -> None:
    """Write a file until the disk is full."""
    with suppress(OSError), file.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(1024))


class Failing:
    """A follower of transcripts that fails as it is told."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.looks = 0

    def look(self) -> list[Any]:
        """Fail, or find nothing."""
        self.looks += 1
        if self.error is not None:
            raise self.error
        return []

    close = look

    def unmatched(self) -> list[str]:
        """Return no pattern."""
        return []

    def unread(self) -> list[str]:
        """Return a pattern."""
        return ["*.md"]


def test_transcripts_are_followed_again_after_a_failure_that_passes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, clock, said = Failing(), FakeClock(), list[str]()
    monkeypatch.setattr(following, "monotonic", clock.monotonic)
    monkeypatch.setattr(follow, "TranscriptFollower", lambda *args: failing)
    follower = following.Follower(cast(Any, None), place, (), said.append)
    failing.error = DiskFull("There is no space left.")
    for _ in range(3):
        follower.look()
        follower.look()
        clock.advance(following.RETRY_SECONDS)
    assert failing.looks == 3
    assert said == ["transcripts are not followed for now: There is no space left."]
    failing.error = None
    follower.look()
    assert said[1:] == ["transcripts are followed again"]
    follower.close()
    [about] = said[2:]
    assert "nothing was recorded of '*.md': it is no transcript of" in about


def test_a_pattern_in_quotes_may_begin_with_the_home_directory(
    store: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(place / "home"))
    said = list[str]()
    with mulligan.open(place) as opened:
        following.Follower(opened, place, ["~/talk/*.jsonl"], said.append)
    assert said == [f"no file matches the transcript '{place}/home/talk/*.jsonl' in {place} yet"]


def test_transcripts_are_followed_no_longer_after_a_failure_that_stays(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, said = Failing(), list[str]()
    monkeypatch.setattr(follow, "TranscriptFollower", lambda *args: failing)
    follower = following.Follower(cast(Any, None), place, (), said.append)
    failing.error = StoreGone("The store is gone.")
    follower.look()
    follower.look()
    follower.close()
    assert said == ["transcripts are no longer followed: The store is gone."]
    assert failing.looks == 1


def test_ctrl_c_keeps_what_changed_last(store: Cli, process: Start, place: Path) -> None:
    watch = process("watch", "--settle", "1h", "--longest", "1h", "--json")
    assert watch.stdout is not None
    watch.stdout.readline()
    (place / "late.txt").write_text("hello")
    watch.send_signal(signal.SIGINT)
    last = json.loads(watch.stdout.readline())
    assert watch.wait(PATIENCE) == 0
    assert store("show", "--json").json["checkpoint_id"] == last["checkpoint_id"]


def test_run_watch_keeps_what_a_program_changed(store: Cli, process: Start, place: Path) -> None:
    (place / "agent.py").write_text(WAIT_FOR_CHECKPOINTS)
    run = process("run", "--watch", "--", sys.executable, "agent.py", stdin=subprocess.DEVNULL)
    _, err = run.communicate(timeout=PATIENCE * 2)
    assert run.returncode == 0, err


def test_a_prompt_in_a_transcript_becomes_a_checkpoint(
    store: Cli, process: Start, place: Path
) -> None:
    (place / "a.txt").write_text("hello")
    watch = process(
        "watch", "--settle", "1h", "--longest", "1h", "--transcript", "*.jsonl", "--json"
    )
    assert watch.stdout is not None
    watch.stdout.readline()
    said = Transcript(cwd=str(place))
    said.prompt("fix the build", promptId="p0")
    draft = place / "new"
    draft.write_bytes(encode(said.entries))
    draft.rename(place / "said.jsonl")
    taken = json.loads(watch.stdout.readline())
    assert (taken["kind"], taken["note"]) == ("prompt", "fix the build")
    watch.send_signal(signal.SIGINT)
    assert watch.wait(PATIENCE) == 0
    (prompt,) = store("rewind", "--json").json["prompts"]
    assert (prompt["text"], prompt["checkpoint_id"]) == ("fix the build", taken["checkpoint_id"])


@pytest.mark.parametrize("command", [["up", "team.toml"], ["resume", "main"]])
def test_a_team_that_watches_takes_a_checkpoint_at_each_prompt(
    store: Cli,
    process: Start,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    command: list[str],
) -> None:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("CODEX_HOME", str(home))
    rollouts = home / "sessions/2026/11/18"
    rollouts.mkdir(parents=True)
    said = Rollout(str(place))
    said.prompt("fix the build", "t1")
    (place / "said").write_bytes(encode(said.entries))
    (place / "agent.py").write_text(TALK.format(target=rollouts / f"rollout-x-{OLD}.jsonl"))
    agent = f"command = {json.dumps([sys.executable, 'agent.py'])}"
    (place / "team.toml").write_text(f'watch = true\n[agents.one]\n{agent}\nrestart = "never"\n')
    if command[0] == "resume":
        (place / "fails").touch()
        assert process("up", "team.toml", stdin=subprocess.DEVNULL).wait(PATIENCE) == 1
        (place / "fails").unlink()
    run = process(*command, stdin=subprocess.DEVNULL)
    _, err = run.communicate(timeout=PATIENCE * 2)
    assert run.returncode == 0, err
    (prompt,) = store("rewind", "-s", f"codex-{OLD}", "--json").json["prompts"]
    assert prompt["text"] == "fix the build"
    assert prompt["checkpoint_id"] is not None


def test_a_transcript_that_is_not_there_yet_is_named(
    store: Cli, process: Start, place: Path
) -> None:
    watch = process("watch", "--settle", "1h", "--transcript", "talk/*.jsonl", "--json")
    assert watch.stdout is not None
    watch.stdout.readline()
    watch.send_signal(signal.SIGINT)
    _, err = watch.communicate(timeout=PATIENCE)
    assert f"no file matches the transcript 'talk/*.jsonl' in {place} yet" in err


def test_a_person_sees_why_each_checkpoint_was_taken(
    store: Cli, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store("checkpoint", "-m", "fix the build")
    with mulligan.open(place) as opened:
        taken = opened.session("main").checkpoints()[-1]
    _show(cast(CliContext, SimpleNamespace(json=False, bare=False)), taken)
    assert capsys.readouterr().out.rstrip().endswith("fix the build")


def test_a_transcript_is_followed_only_by_a_watch(store: Cli) -> None:
    done = store("run", "--transcript", "x.jsonl", "--", "true")
    assert done.code == 2
    assert "--transcript needs --watch" in done.err
