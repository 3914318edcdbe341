"""Git passes over stores and pointers: told by real git."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import mulligan
from mulligan.locate.git import (
    exclude,
    exclude_file,
    git_outside,
    guard,
    main_work_tree,
    may_be_stashed,
)
from mulligan.locate.pointer import read_pointer, write_pointer

IDENTITY = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]


def git(at: Path, *args: str) -> str:
    command = ["git", *IDENTITY, "-c", "protocol.file.allow=always", *args]
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    made = tmp_path / "repo"
    made.mkdir()
    git(made, "init", "-q")
    (made / "tracked.txt").write_text("tracked\n")
    git(made, "add", "-A")
    git(made, "commit", "-qm", "first")
    return made


def is_waited_for(file: Path) -> bool:
    """Whether a lock of a file is held, and another thread or process waits for it."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f":{file.stat().st_ino} " in line for line in lines)


def stored(repo: Path) -> None:
    with mulligan.open(repo) as store:
        store.session("main").state.set("a", "x" * 10_000)


def check(repo: Path) -> None:
    with mulligan.open(repo, create=False) as store:
        assert store.session("main", create=False).state.get("a") == "x" * 10_000
        assert store.verify().ok


@pytest.mark.parametrize(
    "command",
    [
        ["clean", "-fdx"],
        ["clean", "-fdX"],
        ["stash", "--all"],
        ["stash", "--include-untracked"],
        ["reset", "-q", "--hard"],
        ["checkout", "-q", "."],
    ],
)
def test_git_leaves_a_store_inside_alone(repo: Path, command: list[str]) -> None:
    stored(repo)
    (repo / "untracked.txt").touch()
    (repo / "tracked.txt").write_text("changed\n")
    git(repo, *command)
    check(repo)


def test_git_neither_shows_nor_adds_it(repo: Path) -> None:
    stored(repo)
    assert git(repo, "status", "--porcelain") == ""
    git(repo, "add", "-A")
    assert git(repo, "status", "--porcelain") == ""


def test_a_store_of_before_git_is_guarded_at_its_next_use(tmp_path: Path) -> None:
    stored(tmp_path)
    assert not (tmp_path / ".mulligan/.git").exists()
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    assert git(tmp_path, "status", "--porcelain") == ""
    check(tmp_path)
    git(tmp_path, "add", "-A")
    git(tmp_path, "clean", "-fdx")
    check(tmp_path)


def test_a_store_of_before_git_is_guarded_at_the_next_checkpoint_of_files(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        session = store.session("s", workspace=tmp_path)
        git(tmp_path, "init", "-q")
        checkpoint = session.checkpoint()
        git(tmp_path, "clean", "-fdx")
        assert session.checkpoint().parent == checkpoint.id


def test_looking_at_a_store_writes_nothing(tmp_path: Path) -> None:
    stored(tmp_path)
    git(tmp_path, "init", "-q")
    before = (tmp_path / ".git/info/exclude").read_bytes()
    mulligan.open(tmp_path, read_only=True).close()
    assert not (tmp_path / ".mulligan/.git").exists()
    assert (tmp_path / ".git/info/exclude").read_bytes() == before


def test_a_pointer_is_ignored_in_the_main_tree_a_worktree_a_subdirectory_and_a_submodule(
    repo: Path, tmp_path: Path
) -> None:
    with mulligan.open(tmp_path / "store") as store:
        path = str(store.path)
    git(repo, "worktree", "add", "-q", str(tmp_path / "tree"))
    git(repo, "submodule", "--quiet", "add", str(repo), "module")
    git(repo, "commit", "-qm", "module")
    (repo / "sub").mkdir()
    for place in (repo, tmp_path / "tree", repo / "sub", repo / "module"):
        write_pointer(place, path)
        assert git(place, "status", "--porcelain") == ""
        assert ".mulligan" in git(place, "status", "--porcelain", "--ignored")
        assert read_pointer(place) is not None


def test_the_main_work_tree_of_a_worktree(repo: Path, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "-q", str(tmp_path / "other"))
    git(repo, "submodule", "add", "-q", str(repo), "module")
    (tmp_path / "other" / "below").mkdir()
    assert main_work_tree(tmp_path / "other") == repo
    assert main_work_tree(tmp_path / "other" / "below") == repo
    assert [main_work_tree(one) for one in (repo, repo / "module", tmp_path)] == [None] * 3
    git(tmp_path, "clone", "-q", "--bare", str(repo), "bare")
    git(tmp_path / "bare", "worktree", "add", "-q", str(tmp_path / "of-bare"))
    assert main_work_tree(tmp_path / "of-bare") is None


def test_the_git_directory_of_a_worktree_is_outside_of_it(repo: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    git(repo, "worktree", "add", "-q", str(other))
    git(repo, "submodule", "add", "-q", str(repo), "module")
    shutil.copytree(other, tmp_path / "copy")
    own = repo / ".git/worktrees/other"
    assert [git_outside(one) for one in (other, tmp_path / "copy")] == [own, own]
    assert git_outside(repo / "module") == repo / ".git/modules/module"
    assert [git_outside(one) for one in (repo, tmp_path)] == [None, None]
    (tmp_path / "copy/.git").write_text("gitdir: elsewhere\n")
    assert git_outside(tmp_path / "copy") is None


def test_lines_are_added_once_and_after_what_is_there(repo: Path) -> None:
    file = repo / ".git/info/exclude"
    file.write_text("*.log")
    assert exclude(repo)
    assert exclude(repo)
    assert file.read_text() == "*.log\n.mulligan\n.mulligan.new*\n"


def test_without_a_work_tree_there_is_nothing_to_tell(tmp_path: Path) -> None:
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake/.git").write_text("gitdir: /nonexistent\n")
    assert not exclude(tmp_path / "fake")
    assert not guard(tmp_path / "fake" / ".mulligan")
    assert not (tmp_path / "fake/.mulligan").exists()


@pytest.mark.parametrize("place", [".", "deep/er"])
def test_a_stash_that_holds_the_pointer_is_seen(repo: Path, tmp_path: Path, place: str) -> None:
    with mulligan.open(tmp_path / "store") as store:
        path = str(store.path)
    work = repo / place
    work.mkdir(parents=True, exist_ok=True)
    write_pointer(work, path)
    assert not may_be_stashed(work)
    git(repo, "stash", "--all")
    work.mkdir(parents=True, exist_ok=True)
    assert may_be_stashed(work)
    git(repo, "gc", "-q")
    assert may_be_stashed(work)
    git(repo, "stash", "pop")
    assert not may_be_stashed(work)


def test_a_stash_that_holds_another_file_is_seen(repo: Path) -> None:
    (repo / "deep").mkdir()
    (repo / "deep/er").touch()
    git(repo, "stash", "--all")
    assert may_be_stashed(repo, "deep/er")
    assert not may_be_stashed(repo, "deep/est")


@pytest.mark.parametrize("option", ["--all", "--include-untracked", "--keep-index"])
def test_a_stash_without_the_pointer_does_not_count(repo: Path, option: str) -> None:
    (repo / "tracked.txt").write_text("changed\n")
    (repo / "untracked.txt").touch()
    git(repo, "stash", option)
    assert not may_be_stashed(repo)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/locks")
def test_hooks_that_run_side_by_side_add_a_line_once(repo: Path) -> None:
    name, file = ".claude/settings.local.json", repo / ".git/info/exclude"
    other = threading.Thread(target=exclude_file, args=(repo, name))
    with file.open("a") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        other.start()
        while other.is_alive() and not is_waited_for(file):
            pass
        first.write(f"/{name}\n")
    other.join()
    assert file.read_text().count(name) == 1
