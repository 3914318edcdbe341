"""Differences of files: added, removed, changed, renamed, attributes; kinds, modes and sizes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mulligan import Session
from mulligan.errors import PathNotFound
from mulligan.model import FileChange


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / "src").mkdir(parents=True)
    (made / "src" / "app.py").write_text("print('one')\n")
    (made / "notes.txt").write_text("notes\n")
    return made


def summary(changes: tuple[FileChange, ...]) -> list[tuple[str, str, str]]:
    return [(change.path, change.change, change.kind) for change in changes]


def test_a_diff_with_the_present_is_the_opposite_of_a_plan(session: Session, work: Path) -> None:
    made = session.checkpoint()
    (work / "src" / "app.py").write_text("two")
    (work / "new").mkdir()
    (work / "new" / "file").write_text("x")
    (work / "notes.txt").unlink()
    assert summary(session.diff(made).files) == [
        ("new", "added", "directory"),
        ("new/file", "added", "file"),
        ("notes.txt", "removed", "file"),
        ("src/app.py", "changed", "file"),
    ]
    assert [change.path for change in session.files.plan(made).files] == [
        change.path for change in session.diff(made).files
    ]


def test_a_diff_between_two_checkpoints_does_not_see_the_present(
    session: Session, work: Path
) -> None:
    one = session.checkpoint()
    (work / "notes.txt").write_text("two\n")
    two = session.checkpoint()
    (work / "src" / "app.py").unlink()
    [change] = session.diff(one, two).files
    assert (change.path, change.old_size, change.size) == ("notes.txt", 6, 4)
    [change] = session.diff(two, one).files
    assert (change.path, change.old_size, change.size) == ("notes.txt", 4, 6)


def test_a_moved_file_is_one_change(session: Session, work: Path) -> None:
    made = session.checkpoint()
    (work / "notes.txt").rename(work / "src" / "renamed.txt")
    [change] = session.diff(made).files
    assert (change.change, change.old_path, change.path) == (
        "renamed",
        "notes.txt",
        "src/renamed.txt",
    )


def test_empty_files_are_not_taken_for_each_other(session: Session, work: Path) -> None:
    (work / "one").touch()
    made = session.checkpoint()
    (work / "one").unlink()
    (work / "two").touch()
    assert summary(session.diff(made).files) == [
        ("one", "removed", "file"),
        ("two", "added", "file"),
    ]


def test_modes_and_times_alone_are_attributes(session: Session, work: Path) -> None:
    made = session.checkpoint()
    (work / "notes.txt").chmod(0o755)
    (work / "src").chmod(0o700)
    os.utime(work / "src" / "app.py", ns=(1, 1))
    os.utime(work, ns=(1, 1))
    found = session.diff(made).files
    assert summary(found) == [
        ("notes.txt", "attributes", "file"),
        ("src", "attributes", "directory"),
        ("src/app.py", "attributes", "file"),
    ]
    assert (found[0].old_mode, found[0].mode) == (0o644, 0o755)


def test_a_change_of_kind_is_a_removal_and_an_addition(session: Session, work: Path) -> None:
    made = session.checkpoint()
    (work / "notes.txt").unlink()
    (work / "notes.txt").mkdir()
    (work / "src" / "app.py").unlink()
    (work / "src" / "app.py").symlink_to("elsewhere")
    found = session.diff(made).files
    assert sorted(summary(found)) == [
        ("notes.txt", "added", "directory"),
        ("notes.txt", "removed", "file"),
        ("src/app.py", "changed", "symlink"),
    ]


def test_only_parts_are_compared(session: Session, work: Path) -> None:
    session.state.set("memory", 1)
    made = session.checkpoint()
    (work / "notes.txt").write_text("two")
    (work / "src" / "app.py").write_text("two")
    session.state.set("memory", 2)
    found = session.diff(made, only=["src"])
    assert summary(found.files) == [("src/app.py", "changed", "file")]
    assert found.state == ()
    found = session.diff(made, only=["memory"])
    assert found.files == ()
    assert len(found.state) == 1
    with pytest.raises(PathNotFound):
        session.diff(made, only=["nope"])


def test_names_that_are_no_text_are_shown_escaped(session: Session, work: Path) -> None:
    made = session.checkpoint()
    with open(os.fsencode(work) + b"/caf\xe9", "wb") as file:
        file.write(b"x")
    assert [change.path for change in session.diff(made).files] == ["caf\\xe9"]
