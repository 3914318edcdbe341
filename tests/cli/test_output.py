"""Output that is not read, or cannot be written, never stops the work of a command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mulligan

PROGRAM = [sys.executable, "-m", "mulligan"]


@contextmanager
def unread() -> Iterator[int]:
    """A pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


@contextmanager
def full() -> Iterator[int]:
    """A file that takes nothing."""
    handle = os.open("/dev/full", os.O_WRONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def run(place: Path, *args: str, stdout: int, stderr: int = subprocess.PIPE) -> tuple[int, str]:
    done = subprocess.run(
        [*PROGRAM, *args], cwd=place, stdout=stdout, stderr=stderr, text=True, timeout=120
    )
    return done.returncode, done.stderr or ""


def closed(place: Path, *args: str, which: str) -> int:
    """Run a command with some of its standard streams closed."""
    script = f'exec "$@" {which}'
    done = subprocess.run(["sh", "-c", script, "sh", *PROGRAM, *args], cwd=place, timeout=120)
    return done.returncode


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A project with a store, a checkpoint, and changes since."""
    made = tmp_path / "place"
    made.mkdir()
    with mulligan.open(made) as store:
        session = store.session("main", workspace=made)
        for number in range(30):
            (made / f"{number}.txt").write_text("then")
        session.state.set("a", "then")
        session.checkpoint(label="then")
        for number in range(30):
            (made / f"{number}.txt").write_text("now and longer")
        session.state.set("a", "now")
    return made


def is_then(place: Path) -> bool:
    files = {(place / f"{number}.txt").read_text() for number in range(30)}
    with mulligan.open(place) as store:
        assert store.session("main").files.pending is None
        return (files, store.session("main").state.get("a")) == ({"then"}, "then")


def is_now(place: Path) -> bool:
    files = {(place / f"{number}.txt").read_text() for number in range(30)}
    with mulligan.open(place) as store:
        return (files, store.session("main").state.get("a")) == ({"now and longer"}, "now")


@pytest.mark.parametrize("output", [unread, full])
@pytest.mark.parametrize("form", [(), ("--json",), ("--quiet",)], ids=" ".join)
def test_a_restore_and_an_undo_are_done(place: Path, output, form: tuple[str, ...]) -> None:
    with output() as stdout:
        code, err = run(place, "restore", "then", *form, stdout=stdout)
        assert (code, is_then(place)) == (0, True), err
        code, err = run(place, "undo", *form, stdout=stdout)
        assert (code, is_now(place)) == (0, True), err
        code, err = run(place, "redo", *form, stdout=stdout)
        assert (code, is_then(place)) == (0, True), err


def test_output_that_could_not_be_written_is_told_of_and_is_no_full_store(place: Path) -> None:
    with full() as stdout:
        code, err = run(place, "checkpoint", stdout=stdout)
    assert code == 0
    assert (
        "the command succeeded, but its output could not be written: No space left on device" in err
    )


def test_neither_stream_has_to_be_read(place: Path) -> None:
    with unread() as pipe:
        assert run(place, "restore", "then", stdout=pipe, stderr=pipe)[0] == 0
    assert is_then(place)


def test_checkpoints_and_forks_are_made(place: Path, tmp_path: Path) -> None:
    with unread() as pipe:
        assert run(place, "checkpoint", "--label", "made", stdout=pipe)[0] == 0
        copy = str(tmp_path / "copy")
        assert run(place, "fork", "made", "--name", "branch", "--to", copy, stdout=pipe)[0] == 0
    with mulligan.open(place) as store:
        assert store.session("main").checkpoints.at("made").label == "made"
        assert "branch" in [session.name for session in store.sessions()]
    assert (tmp_path / "copy" / "7.txt").read_text() == "now and longer"


def test_a_store_is_made(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with unread() as pipe:
        assert run(tmp_path / "new", "init", stdout=pipe, stderr=pipe)[0] == 0
        assert run(tmp_path / "new", "status", stdout=pipe)[0] == 141


def test_an_agent_is_run_and_resumed(place: Path) -> None:
    script = "test -f half && touch whole && exit 0; touch half; kill -9 $PPID; exit 1"
    with unread() as pipe:
        run(place, "run", "--", "sh", "-c", script, stdout=pipe)
        assert (place / "half").exists()
        code, err = run(place, "resume", stdout=pipe)
        assert (code, (place / "whole").exists()) == (0, True), err


def test_the_exit_code_is_that_of_the_work(place: Path) -> None:
    with unread() as pipe:
        assert run(place, "restore", "nowhere", stdout=pipe, stderr=pipe)[0] == 30


def test_a_command_that_only_prints_ends(place: Path) -> None:
    with unread() as pipe:
        assert run(place, "log", stdout=pipe) == (141, "")
    with full() as device:
        code, err = run(place, "log", stdout=device)
    assert code == 74
    assert "The output could not be written: No space left on device." in err
    assert "Traceback" not in err


def test_a_pipe_that_does_not_block_gets_all(place: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(50_000))
    with mulligan.open(place) as store:
        store.session("main").state.set("long", text)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    args = [*PROGRAM, "state", "get", "long", "--raw"]
    with subprocess.Popen(args, cwd=place, stdout=writing) as started:
        os.close(writing)
        with os.fdopen(reading) as pipe:
            assert pipe.read().strip() == text.strip()
    assert started.returncode == 0


@pytest.mark.parametrize("which", [">&-", "2>&-", ">&- 2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_at_the_start_is_no_file_of_the_store(
    place: Path, which: str
) -> None:
    assert closed(place, "restore", "then", which=which) == 0
    assert is_then(place)
    assert closed(place, "run", "--", "sh", "-c", "echo said; echo err >&2", which=which) == 0
    with mulligan.open(place) as store:
        assert store.verify().problems == ()
    for file in (place / ".mulligan").rglob("*"):
        assert not file.is_file() or b"said\n" not in file.read_bytes()[-4096:], file
