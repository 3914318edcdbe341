"""Restores that give files the present time, so that builds which go by it are made again."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from mulligan import Session
from tests.pictures import picture, without_times

OLD = 1_700_000_000 * 10**9
MAKEFILE = """\
build/out: in extra
\tmkdir -p build
\tcat in extra > build/out
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A project with a build directory that no checkpoint holds."""
    made = tmp_path / "work"
    made.mkdir()
    (made / "Makefile").write_text(MAKEFILE)
    (made / ".mulliganignore").write_text("build/\n*.log\n")
    (made / "in").write_text("one\n")
    (made / "extra").write_text("extra\n")
    for name in ("in", "extra"):
        os.utime(made / name, ns=(OLD, OLD))
    return made


def make(work: Path) -> str:
    subprocess.run(["make", "-s"], cwd=work, check=True)
    return (work / "build/out").read_text()


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_builds_the_files_that_were_brought_back(session: Session, work: Path) -> None:
    made = session.checkpoint()
    (work / "in").write_text("two\n")
    assert make(work) == "two\nextra\n"
    assert session.files.plan(made).builds == ("build",)
    session.restore(made)
    assert make(work) == "two\nextra\n"  # the times are exact, and make goes by them
    session.undo()
    assert session.restore(made, touch=True).problems == ()
    assert make(work) == "one\nextra\n"
    session.undo(touch=True)
    assert make(work) == "two\nextra\n"
    session.redo(touch=True)
    assert make(work) == "one\nextra\n"


def test_only_what_changes_gets_the_present_time(session: Session, work: Path) -> None:
    (work / "link").symlink_to("in")
    (work / "gone").write_text("gone\n")
    os.utime(work / "gone", ns=(OLD, OLD))
    before, made = picture(work), session.checkpoint()
    (work / "in").write_text("two\n")
    (work / "gone").unlink()
    (work / "link").unlink()
    (work / "link").symlink_to("extra")
    (work / "extra").chmod(0o600)
    os.utime(work / "extra", ns=(OLD + 1, OLD + 1))
    start = (work / "link").lstat().st_mtime_ns
    done = session.restore(made, touch=True)
    assert done.problems == ()
    now = picture(work)
    assert without_times(now) == without_times(before)
    touched = {path for path in now if now[path].mtime != before[path].mtime}
    assert touched == {b"in", b"gone", b"link"}
    assert all(start <= now[path].mtime <= time.time_ns() for path in touched)


def test_undo_and_redo_are_exact(session: Session, work: Path) -> None:
    made = session.checkpoint()
    (work / "in").write_text("two\n")
    (work / "new").write_text("new\n")
    before = picture(work)
    session.restore(made, touch=True)
    after = picture(work)
    for _ in range(2):
        session.undo()
        assert picture(work) == before
        session.redo()
        assert picture(work) == after
    session.restore(made)
    assert (work / "in").stat().st_mtime_ns == OLD


def test_parts_can_be_touched_as_well(session: Session, work: Path) -> None:
    made = session.checkpoint()
    for name in ("in", "extra"):
        (work / name).write_text("two\n")
    session.restore(made, ["in"], touch=True)
    assert (work / "in").stat().st_mtime_ns > OLD
    session.restore(made, ["extra"])
    assert (work / "extra").stat().st_mtime_ns == OLD


def test_the_plan_names_builds_only_where_files_change(session: Session, work: Path) -> None:
    made = session.checkpoint()
    (work / "build").mkdir()
    (work / "src/__pycache__").mkdir(parents=True)
    (work / "debug.log").touch()
    os.utime(work / "in")
    assert session.files.plan(made).builds == ()
    (work / "in").write_text("two\n")
    assert session.files.plan(made).builds == ("build",)
