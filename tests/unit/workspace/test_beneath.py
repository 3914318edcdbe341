"""No symlink leads a capture out of the workspace, whenever it is put there."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mulligan import Session
from mulligan.model import Checkpoint
from mulligan.workspace.beneath import MAX_OPEN_DIRECTORIES, Beneath
from mulligan.workspace.capture import ignore
from mulligan.workspace.capture.file_reader import read_leaf
from mulligan.workspace.capture.scan import Scan
from tests.neighbours import neighbour
from tests.scale import times

FILES = 150


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that is no part of the workspace, and looks like one that is."""
    made = tmp_path / "outside"
    (made / "deep" / "secret directory").mkdir(parents=True)
    for number in range(FILES):
        (made / "deep" / str(number)).write_bytes(b"leaked")
    (made / "deep" / "secret").write_bytes(b"leaked")
    (made / "deep" / "link").symlink_to("leaked")
    (made / "deep").chmod(0o731)
    return made


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / "d" / "deep").mkdir(parents=True)
    for number in range(FILES):
        (made / "d" / "deep" / str(number)).write_bytes(b"inside")
    (made / "d" / "deep" / "link").symlink_to("inside")
    return made


def swap(work: Path, outside: Path) -> None:
    """Put a symlink where the directory was."""
    (work / "d").rename(work.with_name("aside"))
    (work / "d").symlink_to(outside)


def assert_inside(session: Session, made: Checkpoint, to: Path) -> None:
    """See that a checkpoint holds nothing from outside: no content, name, target or mode."""
    assert session.files.copy(made, to) == []
    for path in to.rglob("*"):
        found = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_text()
        assert found != "leaked", f"{path} is from outside"
        assert not path.name.startswith("secret")
        assert stat.S_IMODE(path.lstat().st_mode) != 0o731


MOMENTS: dict[str, tuple[str, Callable[..., object]]] = {
    "before a listing": ("mulligan.workspace.capture.scan.Scan._listed", Scan._listed),
    "before a reading": ("mulligan.workspace.capture.capture.read_leaf", read_leaf),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("nth", [1, 2, 3, 60])
def test_a_directory_swapped_for_a_symlink_during_a_capture_leads_nowhere(
    session: Session,
    work: Path,
    outside: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    nth: int,
) -> None:
    place, real = MOMENTS[moment]
    count = 0

    def swapped(*arguments: object) -> object:
        nonlocal count
        count += 1
        if count == nth:
            swap(work, outside)
        return real(*arguments)

    monkeypatch.setattr(place, swapped)
    assert_inside(session, session.checkpoint(), tmp_path / "first")
    made = session.checkpoint()
    assert_inside(session, made, tmp_path / "second")


@pytest.mark.parametrize("watch", [False, True], ids=["scan", "watch"])
def test_captures_while_directory_and_symlink_change_places(
    session: Session, work: Path, outside: Path, tmp_path: Path, watch: bool
) -> None:
    (work / "other").symlink_to(outside)
    if watch:
        session.internal.watch()
    code = """
        import os, sys
        from mulligan.workspace.syscalls import EXCHANGE, rename
        root = os.open(sys.argv[1], os.O_RDONLY)
        print("ready", flush=True)
        while True:
            for _ in range(3):
                rename(b"d", b"other", root, EXCHANGE)
            os.utime("d/deep/7", dir_fd=root)
    """
    with neighbour(code, work):
        for number in range(times(6)):
            made = session.checkpoint()
            assert_inside(session, made, tmp_path / f"copy-{number}")


def test_rules_are_read_through_symlinks_that_stay_inside(session: Session, work: Path) -> None:
    (work / ".gitignore").write_text("/d/\n")
    (work / ".mulliganignore").symlink_to(".gitignore")
    made = session.checkpoint()
    assert made.coverage is not None
    assert [left.path for left in made.coverage.left_out] == ["d"]


@pytest.mark.parametrize("target", ["../rules", "/etc/passwd", "up/rules"])
def test_rules_outside_are_none(work: Path, target: str) -> None:
    (work.parent / "rules").write_text("*\n")
    (work / "up").symlink_to("..")
    (work / ".mulliganignore").symlink_to(target)
    assert ignore.Rules.read(work).identity == ignore.Rules([]).identity


def test_handles_are_few_and_follow_what_is_there_now(work: Path) -> None:
    for number in range(3 * MAX_OPEN_DIRECTORIES):
        (work / str(number)).mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with Beneath(os.fsencode(work)) as beneath:
        for number in range(3 * MAX_OPEN_DIRECTORIES):
            beneath.directory(b"%d" % number)
        assert len(os.listdir("/proc/self/fd")) <= before + MAX_OPEN_DIRECTORIES
        (work / "0").rename(work / "moved")
        (work / "0").mkdir()
        assert os.fstat(beneath.renewed(b"0")).st_ino == (work / "0").stat().st_ino
        (work / "0").rmdir()
        (work / "0").symlink_to("moved")
        with pytest.raises(NotADirectoryError):
            beneath.renewed(b"0")
        with pytest.raises(FileNotFoundError):
            beneath.directory(b"moved/none")
    assert len(os.listdir("/proc/self/fd")) == before
