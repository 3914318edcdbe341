"""What only a process of its own shows: signals, pipes, shells, terminals."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mulligan


def test_follow_shows_events_as_they_happen_and_ends_with_ctrl_c(store, process, place: Path):
    following = process("events", "--follow", "--json")
    assert following.stdout is not None
    assert json.loads(following.stdout.readline())["kind"] == "session.created"
    with mulligan.open(place) as opened:
        opened.session("main").state.set("x", 1)
    assert json.loads(following.stdout.readline())["payload"] == {"path": ["x"], "value": 1}
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=60)
    assert (following.returncode, out) == (0, "")
    assert "Traceback" not in err


def test_ctrl_c_elsewhere_is_130_and_leaves_nothing_behind(process, place: Path):
    telling = process("demo", env={**os.environ, "TMPDIR": str(place)})
    assert telling.stdout is not None
    while "An agent at work" not in telling.stdout.readline():
        pass
    telling.send_signal(signal.SIGINT)
    _, err = telling.communicate(timeout=60)
    assert telling.returncode == 130
    assert "Interrupted" in err
    assert "Traceback" not in err
    assert list(place.iterdir()) == []


def test_a_closed_pipe_is_silent(store, process, place: Path):
    with mulligan.open(place) as opened:
        session = opened.session("main")
        with session.batch():
            for number in range(3000):
                session.state.set(f"k{number}", "x" * 50)
    printing = process("events", "--json")
    assert printing.stdout is not None
    printing.stdout.readline()
    printing.stdout.close()
    assert printing.stderr is not None
    assert printing.stderr.read() == ""
    assert printing.wait(60) == 141
    printing.stderr.close()


def test_a_shell_script_can_go_there_and_back(place: Path, path_with_mulligan: str):
    script = """
    set -e
    mulligan init --quiet
    mulligan state set goal 'ship it'
    id=$(mulligan checkpoint -m 'before')
    mulligan state set goal 'panic'
    mulligan restore "$id" --quiet >/dev/null
    test "$(mulligan state get goal --raw)" = 'ship it'
    branch=$(mulligan fork "$id")
    printf '{"a": 1}' | mulligan -s "$branch" state set extra -
    mulligan -s "$branch" state get extra/a
    echo "$id"
    """
    environment = {**os.environ, "PATH": path_with_mulligan}
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    one, identity = done.stdout.split()
    assert one == "1"
    assert len(identity) == 32


def test_a_terminal_is_asked_before_a_restore(store, on_terminal):
    store("state", "set", "x", "1")
    store("checkpoint", "--label", "one")
    store("state", "set", "x", "2")
    code, shown = on_terminal("restore", "one", answer="n\n")
    assert code == 1
    assert "Restore?" in shown
    assert "Nothing was changed" in shown
    assert store("state", "get", "x").json == 2
    assert on_terminal("restore", "one", answer="y\n")[0] == 0
    assert store("state", "get", "x").json == 1
    code, shown = on_terminal("restore", "#4", "--yes")
    assert code == 0
    assert "Restore?" not in shown


def test_colours_are_for_terminals_that_want_them(store, on_terminal, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    store("checkpoint")
    assert "\x1b[33m" in on_terminal("log")[1]
    assert "\x1b" not in on_terminal("log", NO_COLOR="1")[1]
    assert "\x1b" not in on_terminal("show", "nowhere", NO_COLOR="1")[1]


def test_lines_fit_the_terminal(store, on_terminal):
    store("checkpoint", "-m", "long " * 100)
    _, shown = on_terminal("log", COLUMNS="70", NO_COLOR="1")
    assert max(len(line) for line in shown.splitlines()) <= 70
    assert "…" in shown


def test_ctrl_c_at_the_prompt_of_a_restore_changes_nothing(store, place: Path, on_terminal):
    (place / "a.txt").write_text("one")
    store("checkpoint", "--label", "one")
    (place / "a.txt").write_text("two")
    before = store("events", "--json").out
    code, shown = on_terminal("restore", "one", answer="\x03")
    assert code == 130
    assert "Restore?" in shown
    assert "Nothing was changed." in shown
    assert "Traceback" not in shown
    assert (place / "a.txt").read_text() == "two"
    assert store("events", "--json").out == before


def test_a_declined_restore_leaves_the_files(store, place: Path, on_terminal):
    (place / "a.txt").write_text("one")
    store("checkpoint", "--label", "one")
    (place / "a.txt").write_text("two")
    code, shown = on_terminal("restore", "one", answer="n\n")
    assert code == 1
    assert "1 to update" in shown
    assert (place / "a.txt").read_text() == "two"


def test_a_long_capture_shows_how_far_it_is_on_a_terminal_only(store, place: Path, on_terminal):
    for number in range(600):
        (place / f"{number}.txt").write_text(str(number))
    quiet = store("checkpoint")
    assert quiet.err == ""
    for file in place.glob("*.txt"):
        file.write_text("changed")
    code, shown = on_terminal("checkpoint")
    assert code == 0
    assert "\rreading files: 256 files, 1.8 KB" in shown
    assert re.search(r"\r +\r", shown), "the line is taken away"
    assert "600 files" in shown.splitlines()[-1]
    for file in place.glob("*.txt"):
        file.write_text("once more")
    assert "reading files" not in on_terminal("checkpoint", "--quiet")[1]


def test_a_capture_of_one_large_file_shows_how_far_it_is(store, place: Path, on_terminal):
    (place / "large").write_bytes(random.Random(1).randbytes(20 << 20))
    code, shown = on_terminal("checkpoint")
    assert code == 0
    assert re.findall(r"\rreading files: 1 file, (?:8|9|1\d|2\d)(?:\.\d)? MB", shown)
    assert "reading files" not in on_terminal("checkpoint", TERM="dumb")[1]


@pytest.mark.parametrize("command", [["checkpoint"], ["verify"], ["status"]])
def test_commands_work_on_a_terminal(store, on_terminal, command: list[str]):
    code, shown = on_terminal(*command)
    assert code == 0
    assert shown.strip()


def test_a_command_whose_output_is_closed_does_its_work(store, place: Path):
    command = 'exec "$0" -m mulligan checkpoint --label quiet >&- 2>&- <&-'
    done = subprocess.run(["/bin/sh", "-c", command, sys.executable], cwd=place, check=False)
    assert done.returncode == 0
    assert store("show", "quiet").code == 0
