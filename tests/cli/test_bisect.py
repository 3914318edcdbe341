"""mulligan bisect: real files, a real command, the first bad checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

CHECK = ["--", "sh", "-c", "grep -q works app.txt"]


@pytest.fixture
def broken(store, place: Path):
    """Twelve checkpoints, of which #8 of them is the first bad one."""
    for number in range(12):
        (place / "app.txt").write_text("broken\n" if number >= 8 else "works\n")
        (place / "notes.txt").write_text(f"step {number}\n")
        store("state", "set", "step", str(number))
        store("checkpoint", "--label", f"c{number}")
    return store


def test_it_finds_the_first_bad_one(broken, place: Path):
    done = broken("bisect", "--good", "c0", "--bad", "c11", "--json", *CHECK)
    assert done.code == 0, done.err
    found = done.json
    assert found["first_bad"]["label"] == "c8"
    assert found["last_good"]["label"] == "c7"
    ends = [broken("show", label, "-q").out.strip() for label in ("c0", "c11")]
    assert [run["checkpoint_id"] for run in found["runs"][:2]] == ends
    assert len(found["runs"]) <= 2 + 4
    assert {change["path"] for change in found["files"]} >= {"app.txt", "notes.txt"}
    assert found["first_bad"]["verdict"] is None
    assert (place / "app.txt").read_text() == "broken\n"


def test_people_see_the_runs_and_what_changed(broken):
    done = broken("bisect", "--good", "c0", "--bad", "c11", *CHECK)
    assert done.code == 0
    assert "c8" in done.out
    assert "app.txt" in done.out
    assert "exit 1" in done.err


def test_marks_and_the_ids_alone(broken):
    done = broken("bisect", "--good", "c6", "--bad", "c9", "--mark", "-q", *CHECK)
    identity = broken("show", "c8", "-q").out
    assert done.out == identity
    assert broken("show", "@good", "--json").json["label"] == "c7"
    assert broken("show", "@bad", "--json").json["label"] == "c8"


def test_the_command_sees_the_state_and_no_store(broken, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MULLIGAN_AGENT", "somebody")
    code = (
        "import json, os, sys; assert 'MULLIGAN_AGENT' not in os.environ;"
        "step = json.load(open(os.environ['MULLIGAN_STATE']))['step']; sys.exit(step >= 3)"
    )
    done = broken(
        "bisect", "--good", "c0", "--bad", "c11", "--json", "--", sys.executable, "-c", code
    )
    assert done.json["first_bad"]["label"] == "c3"


def test_what_is_skipped_leaves_suspects(broken):
    code = "case $(cat notes.txt) in 'step 7'|'step 8') exit 125;; esac; grep -q works app.txt"
    done = broken("bisect", "--good", "c5", "--bad", "c10", "--json", "--", "sh", "-c", code)
    assert done.json["first_bad"] is None
    assert [one["label"] for one in done.json["suspects"]] == ["c7", "c8", "c9"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--good", "c3", "--bad", "c1", *CHECK], "wrong order"),
        (["--good", "c3", "--bad", "c3", *CHECK], "the same checkpoint"),
        (["--good", "c3", "--bad", "c9", "--", "sh", "-c", "exit 125"], "judged none"),
        (["--good", "c3", "--bad", "c9", "--", "no-such-program"], "could not be run"),
        (["--good", "#1", "--bad", "c9", *CHECK], "no checkpoint at or before"),
    ],
)
def test_wrong_input_is_said_clearly(broken, args: list[str], said: str):
    done = (
        broken("bisect", *args, "--json") if "--" not in args else broken("--json", "bisect", *args)
    )
    assert done.code == 34
    assert said in json.loads(done.err)["message"]


def test_a_bad_moment_after_the_last_checkpoint_needs_one(broken):
    broken("state", "set", "step", "99")
    done = broken("bisect", "--good", "c3", "--bad", "0s ago", *CHECK)
    assert done.code == 34
    assert "mulligan checkpoint" in done.err


def test_another_session_is_another_timeline(broken):
    broken("fork", "c5", "--name", "other")
    broken("-s", "other", "checkpoint", "--label", "mine")
    done = broken("bisect", "--good", "c0", "--bad", "other:mine", *CHECK)
    assert done.code == 34
    assert "not on the timeline" in done.err


@pytest.mark.parametrize("command", ["true", "false", "no-such-tool-here"])
def test_a_command_that_always_says_the_same_finds_nothing(broken, command: str):
    for good in ("c0", "c10"):
        refused = broken("bisect", "--good", good, "--bad", "c11", "--", "sh", "-c", command)
        assert (refused.code, "said to be" in refused.err) == (34, True), refused


@pytest.mark.parametrize(
    "command",
    [
        "false",
        "true",
        "exit 125",
        # It is gone, or stopped, when some checkpoints have been judged already.
        "test $(wc -l < $LOG) -lt 4 || kill -9 $PPID; echo >> $LOG; grep -q works app.txt",
    ],
)
def test_a_search_that_fails_leaves_no_verdict(
    broken, process, place: Path, command: str, monkeypatch: pytest.MonkeyPatch
):
    (place / "log").touch()
    monkeypatch.setenv("LOG", str(place / "log"))
    started = process("bisect", "--good", "c0", "--bad", "c11", "--mark", "--", "sh", "-c", command)
    started.communicate(timeout=120)
    assert started.returncode in (34, -9)
    assert [entry["verdict"] for entry in broken("log", "--json").json["entries"]] == [None] * 12


def test_the_ends_are_tried_before_anything_else(broken, place: Path):
    log = place / "log"
    code = f"cat notes.txt >> {log}; grep -q works app.txt"
    broken("bisect", "--good", "c9", "--bad", "c11", "--", "sh", "-c", code)
    assert log.read_text() == "step 9\n"
    broken("bisect", "--good", "c0", "--bad", "c7", "--", "sh", "-c", code)
    assert log.read_text() == "step 9\nstep 0\nstep 7\n"


def test_a_good_point_after_a_restore_is_no_checkpoint(broken, place: Path):
    """The checkpoint before it is that of what the restore took away."""
    broken("restore", "c2", "-y")
    broken("state", "set", "step", "2")
    (place / "app.txt").write_text("broken\n")
    broken("checkpoint", "--label", "bad")
    seq = broken("show", "bad", "--json").json["seq"]
    refused = broken("--json", "bisect", "--good", f"#{seq - 1}", "--bad", "bad", *CHECK)
    assert refused.code == 34
    assert "the restore" in refused.error["message"]
