"""Plans name the programs that use what would be replaced or deleted, and no others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mulligan import Session
from mulligan.session.names import SUPERVISOR
from mulligan.store import Store

HOLD = """
import os, sys
if os.path.isdir(sys.argv[1]):
    os.chdir(sys.argv[1])
else:
    held = open(sys.argv[1], sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""

Hold = Callable[..., int]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Start a program that has a file open, or works in a directory; return its pid."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path, mode: str = "a") -> int:
        words = [sys.executable, "-c", HOLD, os.fspath(path), mode]
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, cwd=tmp_path)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process.pid

    yield start
    for process in started:
        process.communicate()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / "src").mkdir(parents=True)
    for name in ("log", "other", "mode", "src/file", "caf\udce9"):
        (made / name).write_text("one\n")
    return made


def found(session: Session, point: object) -> set[tuple[int, str, str]]:
    return {(one.pid, one.path, one.mode) for one in session.files.plan(point).open_files}  # type: ignore[arg-type]


def test_files_that_change_or_go_are_named_with_their_programs(
    session: Session, work: Path, hold: Hold
) -> None:
    made = session.checkpoint()
    for name in ("log", "new", "caf\udce9"):
        (work / name).write_text("two\n")
    writers = {name: hold(work / name) for name in ("log", "new", "caf\udce9")}
    assert found(session, made) == {
        (writers["log"], "log", "write"),
        (writers["new"], "new", "write"),
        (writers["caf\udce9"], "caf\\xe9", "write"),
    }
    commands = {one.command for one in session.files.plan(made).open_files}
    assert all(sys.executable in command for command in commands)
    session.restore(made)
    assert (work / "log").read_text() == "one\n"
    assert (
        session.internal.preview("undo").files.open_files == ()
    )  # they hold files without a name now


def test_what_the_plan_does_not_replace_is_not_named(
    session: Session, work: Path, hold: Hold
) -> None:
    (work / ".mulliganignore").write_text("left\n")
    made = session.checkpoint()
    (work / "log").write_text("two\n")
    (work / "mode").chmod(0o755)
    (work / "left").write_text("left\n")
    hold(work / "other")
    hold(work / "mode")
    hold(work / "left")
    hold(work / "log", "r")
    hold(work / "src")
    with (work / "log").open("a"):
        assert found(session, made) == set()


def test_a_program_that_works_in_a_directory_that_goes_is_named(
    session: Session, work: Path, hold: Hold
) -> None:
    made = session.checkpoint()
    (work / "new/deep").mkdir(parents=True)
    pid = hold(work / "new/deep")
    assert found(session, made) == {(pid, "new/deep", "cwd")}
    other = session.checkpoint()
    shutil.rmtree(work / "src")
    assert found(session, other) == set()


def test_the_supervisor_of_the_session_does_not_count(
    store: Store, session: Session, work: Path, tmp_path: Path
) -> None:
    made = session.checkpoint()
    (work / "log").write_text("two\n")
    code = (
        "import mulligan, sys\n"
        "store = mulligan.open(sys.argv[1])\n"
        "session = store.session('run', actor=sys.argv[2])\n"
        "session.internal.take(600, steal=True)\n"
        "held = open(sys.argv[3], 'a')\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    for actor, count in (("agent", 1), (SUPERVISOR, 0)):
        words = [sys.executable, "-c", code, str(tmp_path / "store"), actor, str(work / "log")]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert len(session.files.plan(made).open_files) == count
            process.communicate()
