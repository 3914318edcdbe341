"""Captures while other programs rename files and work with git: nothing is lost between looks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mulligan import Session
from mulligan.model import Checkpoint
from mulligan.workspace.capture import scan
from mulligan.workspace.capture.capture import Capture
from mulligan.workspace.capture.rescan import RETRY_DELAYS_SECONDS
from mulligan.workspace.capture.scan import Changes
from tests.neighbours import neighbour
from tests.pictures import picture
from tests.scale import times

WAYS = pytest.mark.parametrize("watch", [False, True], ids=["scan", "watch"])


def changing(made: Checkpoint) -> list[str]:
    assert made.coverage is not None
    return [found.path for found in made.coverage.changing]


# --- renames between the listing and the reading ---------------------------------------------

PLACES = [("a", "z"), ("z", "a")]
"""From a directory that is listed early to a later one, and back."""


def fill(work: Path, where: str) -> None:
    for name in ("a", "m", "z"):
        (work / name).mkdir()
    for number in range(20):
        (work / where / str(number)).write_text(str(number))


def move(work: Path, source: str, target: str) -> None:
    for file in (work / source).iterdir():
        file.rename(work / target / file.name)


@WAYS
@pytest.mark.parametrize("known", [False, True], ids=["first capture", "later capture"])
@pytest.mark.parametrize(("source", "target"), PLACES)
def test_files_renamed_after_their_listing_are_found_where_they_went(
    session: Session,
    work: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    target: str,
    known: bool,
    watch: bool,
) -> None:
    fill(work, source)
    if watch:
        session.internal.watch()
    if known:
        session.checkpoint()
        (work / "m" / "new").write_text("new")
    listed = picture(work)
    real = Capture.take
    moves = iter([(source, target)])

    def moved(self: Capture, changes: Changes) -> None:
        for pair in moves:
            move(work, *pair)
        real(self, changes)

    monkeypatch.setattr(Capture, "take", moved)
    made = session.checkpoint()
    assert session.files.copy(made, tmp_path / "copy") == []
    copy = picture(tmp_path / "copy")
    # Files that were known need not be read: then all of them may be where they were listed.
    assert copy == picture(work) or (known and copy == listed)
    assert changing(made) == []


@pytest.mark.parametrize("known", [False, True], ids=["first capture", "later capture"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize(("source", "target"), PLACES)
def test_files_renamed_between_two_listings_are_not_lost(
    session: Session,
    work: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    target: str,
    nth: int,
    known: bool,
) -> None:
    fill(work, source)
    if known:
        session.checkpoint()
        for name in ("a", "m", "z"):
            (work / name / "new").write_text("new")
    real, count = scan.Scan._directory, 0

    def moved(self: scan.Scan, path: bytes) -> object:
        nonlocal count
        count += 1
        if count == nth:
            move(work, source, target)
        return real(self, path)

    monkeypatch.setattr(scan.Scan, "_directory", moved)
    made = session.checkpoint()
    assert session.files.copy(made, tmp_path / "copy") == []
    assert picture(tmp_path / "copy") == picture(work)


@WAYS
def test_names_that_never_settle_are_named(
    session: Session, work: Path, monkeypatch: pytest.MonkeyPatch, watch: bool
) -> None:
    (work / "busy").mkdir()
    (work / "quiet").mkdir()
    (work / "quiet" / "file").touch()
    if watch:
        session.internal.watch()
        session.checkpoint()
        (work / "quiet" / "other").touch()
    real, numbers = Capture.take, iter(range(1000))
    listed = scan.Scan._directory

    def busy(self: Capture, changes: Changes) -> None:
        real(self, changes)
        (work / "busy" / str(next(numbers))).touch()

    def listed_while_busy(self: scan.Scan, path: bytes) -> object:
        (work / "busy" / "begun").touch()
        return listed(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(Capture, "take", busy)
        patch.setattr(scan.Scan, "_directory", listed_while_busy)
        made = session.checkpoint()
    assert changing(made) == ["busy"]
    assert made.coverage is not None
    assert made.coverage.changing[0].torn
    assert next(numbers) <= len(RETRY_DELAYS_SECONDS) + 2
    made = session.checkpoint()
    assert changing(made) == []
    assert session.files.read(made, "busy/0") == b""
    assert made.coverage is not None
    assert made.coverage.files == len(picture(work)) - 3


@WAYS
def test_files_that_are_renamed_all_the_time_are_each_in_every_checkpoint(
    session: Session, work: Path, tmp_path: Path, watch: bool
) -> None:
    for name in "abcdefgh":
        (work / name).mkdir()
        (work / name / "same").write_text(name)
    for number in range(60):
        (work / "a" / f"moving-{number}").write_text(str(number))
    code = """
        import os, sys, time
        os.chdir(sys.argv[1])
        places = "ahbgcfde"
        print("ready", flush=True)
        while True:
            for before, after in zip(places, places[1:] + places[:1]):
                for number in range(60):
                    os.rename(f"{before}/moving-{number}", f"{after}/moving-{number}")
                time.sleep(0.2)
    """
    if watch:
        session.internal.watch()
    with neighbour(code, work):
        for number in range(times(6)):
            made = session.checkpoint()
            assert session.files.copy(made, tmp_path / f"copy-{number}") == []
            found = {path.name for path in (tmp_path / f"copy-{number}").rglob("moving-*")}
            if not changing(made):
                assert len(found) == 60


# --- git at work -----------------------------------------------------------------------------


@pytest.fixture
def quiet_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gitconfig").write_text(
        "[user]\nname = A\nemail = a@example.org\n[init]\ndefaultBranch = main\n"
        "[gc]\nauto = 0\n[advice]\ndetachedHead = false\n[core]\nfsync = none\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)


def git(place: Path, *arguments: str) -> str:
    command = ["git", "-C", str(place), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


AT_WORK = """
    import itertools, os, subprocess, sys
    os.chdir(sys.argv[1])

    def git(*arguments):
        subprocess.run(["git", *arguments], check=True, capture_output=True)

    print("ready", flush=True)
    for number in itertools.count():
        for part in range(3):
            name = f"{number % 7}-{part}"
            with open(name, "w") as file:
                file.write(f"{number} {part}" * 50)
            git("add", name)
            git("commit", "-q", "-m", f"{number} {part}")
        if "rebase" in sys.argv:
            git("checkout", "-q", "-B", "topic", "HEAD~2")
            with open("topic", "w") as file:
                file.write(str(number))
            git("add", "topic")
            git("commit", "-q", "-m", f"topic {number}")
            git("rebase", "-q", "main")
            git("checkout", "-q", "main")
            git("merge", "-q", "--ff-only", "topic")
        if "gc" in sys.argv:
            git("gc", "-q")
            git("pack-refs", "--all", "--prune")
"""


@WAYS
@pytest.mark.parametrize("works", [(), ("gc",), ("rebase", "gc")], ids=["commits", "gc", "rebase"])
@pytest.mark.usefixtures("quiet_git")
def test_every_capture_of_a_repository_at_work_is_whole(
    session: Session, work: Path, tmp_path: Path, watch: bool, works: tuple[str, ...]
) -> None:
    git(work, "init", "-q")
    for number in range(5):
        git(work, "commit", "-q", "--allow-empty", "-m", f"first {number}")
    git(work, "worktree", "add", "-q", "-b", "other", "tree")
    (work / ".git" / "info" / "exclude").write_text("tree/\n")
    if watch:
        session.internal.watch()
    with neighbour(AT_WORK, work, *works):
        for number in range(times(4)):
            made = session.checkpoint()
            copy = tmp_path / f"copy-{number}"
            assert session.files.copy(made, copy) == []
            found = git(copy, "fsck", "--full", "--no-dangling")
            assert "missing" not in found
            assert "error" not in found
            assert git(copy, "log", "--oneline", "HEAD").count("\n") >= 5
            assert list((copy / ".git").rglob("*.lock")) == []
            assert list((copy / ".git" / "objects").rglob("tmp_*")) == []
