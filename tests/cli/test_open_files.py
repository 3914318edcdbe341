"""Commands keep within a low limit of open files, and say so where they cannot."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mulligan.cli.errors import describe
from mulligan.cli.render.restored import print_problems
from mulligan.model import Problem
from mulligan.workspace.restore.fileops import reason

FILES = 400


def under(limit: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that may have so many files open."""
    return subprocess.run(
        [sys.executable, "-m", "mulligan", *arguments],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def project(cli, place: Path, monkeypatch) -> Path:
    """A project with many directories, deep ones among them, and a change in every file."""
    (place / "project").mkdir()
    monkeypatch.chdir(place / "project")
    cli("init")
    for content in ("one", "two"):
        for number in range(FILES):
            file = Path(f"d{number % 150}/e/f/g/h/{number}.txt")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{content} {number}")
        assert cli("checkpoint", "--label", content).code == 0
    return place / "project"


@pytest.mark.parametrize("only", [(), ("--only", "d1", "--only", "d2", "--only", "d3")])
def test_a_restore_within_64_open_files(project: Path, only: tuple[str, ...]):
    done = under(64, "restore", "one", "--yes", *only)
    assert (done.returncode, done.stderr) == (0, "")
    assert (project / "d1/e/f/g/h/1.txt").read_text() == "one 1"
    assert under(64, "diff", "one", *only, "--name-only").stdout == ""


def test_a_copy_and_a_fork_within_64_open_files(project: Path):
    assert under(64, "restore", "one", "--to", "../copy").returncode == 0
    assert under(64, "fork", "one", "--to", "../fork").returncode == 0
    for place in ("copy", "fork"):
        assert len(list((project.parent / place).rglob("*.txt"))) == FILES


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_too_many_open_files_are_no_question_of_permissions(capsys, code: int):
    class Call:
        json = False

    error = OSError(code, os.strerror(code))
    print_problems(Call(), [Problem("file", "a.txt", reason(error))])  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "a.txt: too many files are open" in said
    assert "ulimit -n" in said
    assert "writable" not in said
    assert describe(error).hint != ""


def test_the_limit_is_named():
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert str(limit) in reason(OSError(errno.EMFILE, "Too many open files"))
