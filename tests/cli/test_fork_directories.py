"""Forks with a directory of their own, and the ways in which that can be impossible."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import mulligan


@pytest.fixture
def project(cli, place: Path, monkeypatch):
    """A project in a directory beside which there is room for forks."""
    (place / "project/src").mkdir(parents=True)
    monkeypatch.chdir(place / "project")
    cli("init")
    Path("src/app.py").write_text("one\n")
    Path("run.sh").write_text("#!/bin/sh\n")
    Path("run.sh").chmod(0o755)
    assert cli("checkpoint", "--label", "one").code == 0
    return cli


@pytest.fixture
def bold(project, place: Path) -> Path:
    """The directory of a fork of it."""
    assert project("fork", "one", "--name", "bold", "--to", "../bold").out == "bold\n"
    return place / "bold"


def test_a_fork_has_complete_files_of_its_own(project, bold: Path):
    assert (bold / "src/app.py").read_text() == "one\n"
    assert (bold / "run.sh").stat().st_mode & 0o777 == 0o755
    (bold / "src/app.py").write_text("two\n")
    assert Path("src/app.py").read_text() == "one\n"


def test_a_fork_of_a_git_worktree_warns_of_the_index_that_both_share(
    project, place: Path, monkeypatch: pytest.MonkeyPatch
):
    assert "Warning" not in project("fork", "one", "--to", "../without-git").err
    git = place / "repository/.git/worktrees/project"
    git.mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/project\n")
    Path(".git").write_text(f"gitdir: {git}\n")
    project("checkpoint", "--label", "in-git")
    said = project("fork", "in-git", "--to", "../bold").err
    assert f"Warning: {Path('../bold/.git')} names {git}, as in the directory" in said
    shutil.rmtree(git)
    assert "Warning" not in project("fork", "in-git", "--to", "../gone").err


def test_exec_beside_the_files_of_its_session_says_so(project, bold: Path, monkeypatch):
    beside = project("exec", "-s", "bold", "--", "true")
    assert f"Warning: CMD runs here; the checkpoints hold the files of {bold}." in beside.err
    for inside in (bold, bold / "src"):
        monkeypatch.chdir(inside)
        assert "Warning" not in project("exec", "--", "true").err


def test_a_fork_as_json(project, place: Path):
    made = project("fork", "one", "--to", "../bold", "--json").json
    assert made == {
        "session": "main-fork-1",
        "parent": {"session": "main", "seq": 2},
        "seq": 3,
        "directory": str(place / "bold"),
    }


def test_a_person_is_told_where_it_is(project, on_terminal, place: Path):
    _, shown = on_terminal("--store", "project", "fork", "one", "--to", "bold", "--name", "bold")
    assert "forked from main #2" in shown
    assert "commands there work on it" in shown


def test_commands_in_the_directory_work_on_the_fork(project, bold: Path, place: Path, monkeypatch):
    monkeypatch.chdir(bold / "src")
    Path("app.py").write_text("two\n")
    assert project("checkpoint", "--label", "two", "--json").json["session"] == "bold"
    assert "-one\n+two" in project("diff", "one").out
    assert project("restore", "one", "--json").json["directory"] == str(bold)
    assert (bold / "src/app.py").read_text() == "one\n"
    project("undo")
    assert (bold / "src/app.py").read_text() == "two\n"
    assert (place / "project/src/app.py").read_text() == "one\n"
    assert (bold / ".mulligan").is_file()


def test_the_session_works_on_its_own_directory_from_anywhere(project, bold: Path):
    (bold / "new.txt").write_text("new\n")
    taken = project("-s", "bold", "checkpoint", "--json").json
    assert taken["files"] == 3
    assert project("-s", "bold", "diff", "one", "--name-only").out == "new.txt\n"
    assert project("diff", "one", "--name-only").out == ""
    project("-s", "bold", "restore", "one")
    assert not (bold / "new.txt").exists()


def test_another_session_can_be_named_in_the_directory(project, bold: Path, monkeypatch):
    monkeypatch.chdir(bold)
    assert project("log", "-s", "main", "--json").json["session"] == "main"


def test_a_fork_of_a_fork_without_a_directory_shares_that_of_its_parent(project, bold: Path):
    project("-s", "bold", "fork", "@latest", "--name", "third")
    assert project("-s", "third", "checkpoint", "--json").json["files"] == 2
    (bold / "new.txt").touch()
    assert project("-s", "third", "diff", "one", "--name-only").out == "new.txt\n"


def test_the_pointer_says_where_it_belongs(project, bold: Path):
    said = json.loads((bold / ".mulligan").read_text())
    status = bold.stat()
    assert (said["version"], said["session"]) == (1, "bold")
    assert (said["device"], said["inode"]) == (status.st_dev, status.st_ino)
    assert said["id"] == json.loads((Path(said["store"]) / "FORMAT").read_text())["id"]
    assert (bold / ".mulligan").stat().st_mode & 0o777 == 0o600


def make_old(bold: Path, *fields: str) -> None:
    """Put the pointer of an earlier version into the place of the present one."""
    said = json.loads((bold / ".mulligan").read_text())
    (bold / ".mulligan").unlink()
    (bold / ".mulligan").mkdir()
    known = {key: said[key] for key in ("store", "session", *fields)}
    (bold / ".mulligan/FORK").write_text(json.dumps(known))


def test_a_pointer_of_an_earlier_version_is_followed(project, bold: Path, place: Path, monkeypatch):
    make_old(bold, "device", "inode")
    moved = bold.rename(place / "moved")
    monkeypatch.chdir(moved)
    (moved / "new.txt").touch()
    assert project("restore", "one", "--json").json["directory"] == str(moved)
    assert not (moved / "new.txt").exists()


def test_a_fork_from_the_fork(project, bold: Path, place: Path, monkeypatch):
    monkeypatch.chdir(bold)
    (bold / "new.txt").write_text("new\n")
    project("checkpoint", "--label", "two")
    assert project("fork", "two", "--to", "../third", "--name", "third").code == 0
    assert (place / "third/new.txt").read_text() == "new\n"
    monkeypatch.chdir(place / "third")
    assert "Nothing differs" in project("diff", "two").out


@pytest.mark.parametrize(
    ("target", "more", "code", "said"),
    [
        ("..", [], 80, "empty directory"),
        ("inside", [], 80, "inside the workspace"),
        ("run.sh", [], 80, ""),
        ("../x", ["--name", "main"], 21, "already"),
        ("../x", ["--name", "@x"], 22, "'@x'"),
    ],
)
def test_an_impossible_fork_says_why_and_leaves_nothing(
    project, place: Path, target: str, more: list[str], code: int, said: str
):
    failed = project("fork", "one", "--to", target, *more)
    assert failed.code == code
    assert said in failed.err
    assert "Hint:" in failed.err
    assert project("status", "-q").out == "main\n"
    assert not (place / "x").exists()
    assert not Path("inside").exists()


def test_a_directory_that_was_moved_is_followed(project, bold: Path, place: Path, monkeypatch):
    moved = bold.rename(place / "moved")
    monkeypatch.chdir(moved / "src")
    (moved / "new.txt").touch()
    assert project("diff", "one", "--name-only").out == "new.txt\n"
    assert project("checkpoint", "--json").json["files"] == 3
    assert project("restore", "one", "--json").json["directory"] == str(moved)
    assert not (moved / "new.txt").exists()
    assert project("undo").code == 0
    assert (moved / "new.txt").exists()
    assert not bold.exists()


def move_and_leave_another(bold: Path, to: Path) -> None:
    bold.rename(to)
    bold.mkdir()


def move_to_another_disk(bold: Path, to: Path) -> None:
    shutil.copytree(bold, to)
    shutil.rmtree(bold)


def move_what_an_earlier_version_made(bold: Path, to: Path) -> None:
    make_old(bold)
    bold.rename(to)


@pytest.mark.parametrize(
    "moving", [move_and_leave_another, move_to_another_disk, move_what_an_earlier_version_made]
)
def test_a_directory_that_may_not_be_the_moved_one_is_not_taken_by_itself(
    project, bold: Path, place: Path, monkeypatch, moving
):
    moved = place / "moved"
    moving(bold, moved)
    monkeypatch.chdir(moved)
    for command in (["checkpoint"], ["diff", "one"], ["restore", "one"], ["undo"]):
        refused = project(*command)
        assert refused.code == 80
        assert f"forked into {bold}" in refused.err
        assert "--force" in refused.err
    (moved / "new.txt").touch()
    assert project("diff", "one", "--force", "--name-only").out == "new.txt\n"
    assert project("checkpoint", "--no-files").code == 0
    assert project("log").code == 0


def test_a_directory_that_is_gone(project, bold: Path, place: Path):
    bold.rename(place / "moved")
    refused = project("-s", "bold", "checkpoint")
    assert refused.code == 80
    assert "not there any more" in refused.err
    assert "restore @latest --to DIR` writes its files elsewhere" in " ".join(refused.err.split())
    assert "run the command in it" in refused.err


def test_a_store_cannot_lead_to_a_directory_that_does_not_point_back(project, place: Path):
    with mulligan.open(".") as store:
        store.session("main", workspace=".").fork("one", "stray", place / "stray")
    (place / "stray/precious.txt").write_text("precious")
    refused = project("-s", "stray", "restore", "one")
    assert refused.code == 80
    assert "does not point back" in refused.err
    assert (place / "stray/precious.txt").exists()
    assert project("-s", "stray", "diff", "one", "--force", "--name-only").out == "precious.txt\n"


def test_a_copy_of_the_directory_is_not_mistaken_for_it(
    project, bold: Path, place: Path, monkeypatch
):
    copy = shutil.copytree(bold, place / "copy")
    (copy / "precious.txt").write_text("precious")
    (bold / "src/app.py").write_text("two\n")
    monkeypatch.chdir(copy)
    refused = project("restore", "one")
    assert refused.code == 80
    assert f"forked into {bold}, and this is {copy}" in refused.err
    assert (bold / "src/app.py").read_text() == "two\n"
    assert (copy / "precious.txt").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"store": 1}', "\xff"])
def test_a_broken_pointer_is_no_store(cli, place: Path, content: str):
    (place / ".mulligan").mkdir()
    (place / ".mulligan/FORK").write_text(content)
    failed = cli("log")
    assert failed.code == 11
    assert "Traceback" not in failed.err
