"""A workspace with git in it: HEAD, refs, index and files come back together, objects stay."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mulligan import Session
from mulligan.workspace.capture import capture, rescan
from mulligan.workspace.capture.file_reader import Read, read_leaf
from mulligan.workspace.entries import Directory, File
from mulligan.workspace.restore.plan import TreeChange
from mulligan.workspace.restore.protect import split_protected
from tests.pictures import picture


@pytest.fixture(autouse=True)
def quiet_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no configuration of this machine change what git does."""
    (tmp_path / "gitconfig").write_text(
        "[user]\nname = A\nemail = a@example.org\n[init]\ndefaultBranch = main\n"
        '[protocol "file"]\nallow = always\n[gc]\nauto = 0\n[advice]\ndetachedHead = false\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)


def git(place: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", place, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()


def commit(place: Path, name: str, text: str) -> str:
    (place / name).write_text(text)
    git(place, "add", name)
    git(place, "commit", "-q", "-m", f"{name}: {text}")
    return git(place, "rev-parse", "HEAD")


def assert_clean(place: Path) -> None:
    assert git(place, "status", "--porcelain") == ""
    assert git(place, "fsck", "--strict", "--no-dangling") == ""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A repository with two branches, a tag, a submodule and a worktree, all inside."""
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    git(upstream, "init", "-q")
    commit(upstream, "lib.c", "int one;")
    made = tmp_path / "work"
    made.mkdir()
    git(made, "init", "-q")
    commit(made, "README", "first")
    git(made, "submodule", "--quiet", "add", str(upstream), "vendor/lib")
    git(made, "commit", "-q", "-m", "submodule")
    git(made, "branch", "feature")
    git(made, "tag", "-a", "v1", "-m", "one")
    git(made, "worktree", "add", "-q", "trees/feature", "feature")
    (made / ".git" / "info" / "exclude").write_text("trees/\n*.o\n")
    (made / "ignored.o").write_bytes(b"\x7fELF")
    return made


PLACES = (".", "vendor/lib", "trees/feature")


def refs(work: Path) -> dict[str, tuple[str, str, str]]:
    """Return HEAD, all refs and the index of each repository."""
    return {
        place: (
            git(work / place, "rev-parse", "HEAD"),
            git(work / place, "for-each-ref"),
            git(work / place, "ls-files", "--stage"),
        )
        for place in PLACES
    }


def work_on(work: Path) -> dict[str, str]:
    """Commit in every repository, and return the new heads."""
    commit(work / "vendor/lib", "lib.c", "int two;")
    commit(work / "trees/feature", "feature", "new")
    git(work, "add", "vendor/lib")
    commit(work, "README", "second")
    git(work, "checkout", "-q", "-b", "other")
    commit(work, "other", "more")
    git(work, "tag", "-d", "v1")
    git(work, "stash", "list")
    return {place: git(work / place, "rev-parse", "HEAD") for place in PLACES}


def test_a_repository_with_submodule_and_worktree_comes_back_clean(
    session: Session, work: Path
) -> None:
    for place in PLACES:
        assert_clean(work / place)
    then, before = refs(work), picture(work)
    made = session.checkpoint()
    heads = work_on(work)
    done = session.restore(made)
    assert done.problems == ()
    assert refs(work) == then
    for place in PLACES:
        assert_clean(work / place)
    # Nothing is missing, and only objects are there that were not.
    after = picture(work)
    assert {path for path in before if path not in after} == set()
    extra = {path for path in after if path not in before}
    assert extra
    assert all(b"/objects/" in path for path in extra)
    for place, head in heads.items():
        assert git(work / place, "cat-file", "-t", head) == "commit"


def test_commits_made_after_the_checkpoint_are_reached_by_undo(
    session: Session, work: Path
) -> None:
    made = session.checkpoint()
    heads = work_on(work)
    (work / "README").write_text("not committed yet")
    git(work, "add", "README")
    (work / "README").write_text("nor staged")
    later, status = refs(work), git(work, "status", "--porcelain")
    session.restore(made)
    assert session.undo().problems == ()
    assert refs(work) == later
    assert git(work, "status", "--porcelain") == status
    assert {place: git(work / place, "rev-parse", "HEAD") for place in PLACES} == heads
    for place in PLACES:
        assert git(work / place, "fsck", "--strict", "--no-dangling") == ""
    assert session.redo().problems == ()
    for place in PLACES:
        assert_clean(work / place)


def test_what_was_staged_and_changed_is_so_again(session: Session, work: Path) -> None:
    (work / "README").write_text("staged")
    git(work, "add", "README")
    (work / "README").write_text("changed after")
    (work / "untracked").write_text("untracked")
    then, status = refs(work), git(work, "status", "--porcelain")
    made = session.checkpoint()
    git(work, "commit", "-q", "-a", "-m", "all")
    git(work, "clean", "-q", "-f", "-d", "-x")
    assert session.restore(made).problems == ()
    assert (refs(work), git(work, "status", "--porcelain")) == (then, status)
    assert (work / "ignored.o").exists()
    assert git(work, "diff", "--cached", "--stat") != ""


def test_a_repository_that_was_packed_since_comes_back(session: Session, work: Path) -> None:
    then, made = refs(work), session.checkpoint()
    heads = work_on(work)
    git(work, "repack", "-a", "-d", "-q")
    git(work, "pack-refs", "--all")
    git(work, "commit-graph", "write", "--reachable")
    later = refs(work)
    assert session.restore(made).problems == ()
    assert refs(work) == then
    for place in PLACES:
        assert_clean(work / place)
    assert git(work, "cat-file", "-t", heads["."]) == "commit"
    assert session.undo().problems == ()
    assert refs(work) == later
    assert git(work, "fsck", "--strict", "--no-dangling") == ""


def test_a_repository_made_after_the_checkpoint_goes_as_a_whole_and_comes_back(
    session: Session, work: Path
) -> None:
    before, made = picture(work), session.checkpoint()
    nested = work / "nested"
    nested.mkdir()
    git(nested, "init", "-q")
    commit(nested, "file", "text")
    now = picture(work)
    assert session.restore(made).problems == ()
    assert picture(work) == before
    assert session.undo().problems == ()
    assert picture(work) == now
    assert_clean(nested)


def test_a_nested_repository_that_came_back_goes_again_by_undo(
    session: Session, work: Path
) -> None:
    nested = work / "nested"
    git(work, "clone", "-q", str(work / "vendor/lib"), str(nested))
    git(work, "clone", "-q", "--bare", str(nested), str(work / "bare.git"))
    commit(nested, "file", "text")
    git(nested, "gc", "-q")
    commit(nested, "file", "loose objects, too")
    then, made = picture(work), session.checkpoint()
    shutil.rmtree(nested)
    shutil.rmtree(work / "bare.git")
    (work / "bare.git").write_text("something else")
    commit(work, "README", "second")
    now = picture(work)
    for _ in range(2):
        assert session.restore(made).problems == ()
        without_new = {path: seen for path, seen in picture(work).items() if path in then}
        assert without_new.keys() == then.keys()
        assert_clean(nested)
        back = picture(work)
        for _ in range(2):
            assert session.undo().problems == ()
            assert picture(work) == now
            assert session.redo().problems == ()
            assert picture(work) == back
        assert session.undo().problems == ()


def test_objects_stay_when_a_part_of_their_repository_is_in_no_checkpoint(
    session: Session, work: Path
) -> None:
    made = session.checkpoint()
    nested = work / "nested"
    nested.mkdir()
    git(nested, "init", "-q")
    head = commit(nested, "file", "text")
    (work / ".mulliganignore").write_text("nested/.git/packed-refs\n")
    git(nested, "pack-refs", "--all")
    assert session.restore(made).problems == ()
    assert (nested / ".git/packed-refs").exists()
    assert (nested / f".git/objects/{head[:2]}/{head[2:]}").exists()


def test_a_deleted_repository_comes_back_whole(session: Session, work: Path) -> None:
    then, made = picture(work), session.checkpoint()
    subprocess.run(["rm", "-rf", work / ".git", work / "vendor"], check=True)
    assert session.restore(made).problems == ()
    assert picture(work) == then
    for place in PLACES:
        assert_clean(work / place)


@pytest.mark.parametrize("place", [".", "trees/feature"])
@pytest.mark.parametrize("watch", [False, True])
def test_the_branch_that_head_names_is_there_if_it_was_made_meanwhile(
    session: Session,
    work: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    watch: bool,
) -> None:
    if watch:
        session.internal.watch()
    branches = iter(["branch-0", "branch-1", "branch-2"])  # more than a capture has rounds for
    directory_of_head = git(work / place, "rev-parse", "--absolute-git-dir")

    def read(directory: int, name: bytes, *rest: Any) -> Read:
        is_head = name == b"HEAD" and os.path.samestat(
            os.fstat(directory), os.stat(directory_of_head)
        )
        # Just before HEAD is read, after refs were listed.
        if is_head and (branch := next(branches, None)):
            git(work / place, "checkout", "-q", "-b", branch)
        elif name.startswith(b"branch-"):
            git(work / place, "symbolic-ref", "HEAD", f"refs/heads/{name.decode()}")
        return read_leaf(directory, name, *rest)

    monkeypatch.setattr(capture, "read_leaf", read)
    made = session.checkpoint()
    session.files.copy(made, tmp_path / "copy")
    git(tmp_path / "copy", "worktree", "repair", "trees/feature")
    now = git(tmp_path / "copy" / place, "rev-parse", "--abbrev-ref", "HEAD")
    assert now == "branch-2"
    assert git(tmp_path / "copy" / place, "log", "--oneline") != ""


def test_a_repository_that_is_renamed_meanwhile_is_there_as_a_whole(
    session: Session, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its refs and objects are missed under the old name; then the names are looked at again."""
    session.checkpoint()
    (work / ".git/description").write_text("the only change so far")
    # No directory counts as fresh: those are looked at again anyway.
    monkeypatch.setattr(rescan, "TIMESTAMP_GRAIN_NS", -(1 << 60))

    def read(directory: int, name: bytes, *rest: Any) -> Read:
        if name == b"description" and (work / ".git").exists():
            (work / ".git").rename(work / "bare.git")
        return read_leaf(directory, name, *rest)

    monkeypatch.setattr(capture, "read_leaf", read)
    session.files.copy(session.checkpoint(), tmp_path / "copy")
    assert picture(tmp_path / "copy") == picture(work)


def test_a_fork_is_a_repository_of_its_own(session: Session, work: Path, tmp_path: Path) -> None:
    made = session.checkpoint()
    session.fork(made, workspace=tmp_path / "fork")
    fork = tmp_path / "fork"
    git(fork, "worktree", "repair", "trees/feature")
    assert_clean(fork)
    before = git(work, "rev-parse", "HEAD")
    commit(fork, "README", "in the fork")
    assert git(work, "rev-parse", "HEAD") == before


FILE, DIRECTORY = File(0o444, 0, 0, ()), Directory(0o755, 0)


@pytest.mark.parametrize(
    ("path", "stays"),
    [
        (".git/objects/ab/cdef", True),
        (".git/objects/pack/pack-1.pack", True),
        (".git/objects/info/commit-graph", True),
        ("deep/inside/.git/objects/ab/cdef", True),
        (".git/modules/vendor/lib/objects/ab/cdef", True),
        (".git/modules/objects/objects/ab/cdef", True),
        ("bare.git/objects/ab/cdef", True),
        (".git/refs/heads/main", False),
        (".git/HEAD", False),
        (".git/logs/objects/ab", False),
        (".git/modules/objects/refs/heads/main", False),
        ("objects/ab/cdef", False),
        ("src/git/objects/ab/cdef", False),
    ],
)
def test_which_files_are_objects_of_git(path: str, stays: bool) -> None:
    step = TreeChange(tuple(path.split("/")), FILE, None)
    assert split_protected([step], ()) == (([], [step]) if stays else ([step], []))


@pytest.mark.parametrize(
    ("repository", "path"),
    [
        (".git", ".git/objects/ab/cdef"),
        ("deep/.git", "deep/.git/objects/pack/pack-1.pack"),
        ("bare.git", "bare.git/objects/ab/cdef"),
        (".git/modules/lib", ".git/modules/lib/objects/ab/cdef"),
        (".git/modules/a/modules/b", ".git/modules/a/modules/b/objects/ab/cdef"),
    ],
)
def test_objects_go_with_a_repository_of_which_all_is_held(repository: str, path: str) -> None:
    parts, length = tuple(path.split("/")), repository.count("/") + 1
    inner = [TreeChange(parts[:n], DIRECTORY, None) for n in range(length + 1, len(parts))]
    inner.append(TreeChange(parts, FILE, None))
    steps = [TreeChange(parts[:length], DIRECTORY, None), *inner]
    assert split_protected(steps, ()) == (steps, [])
    assert split_protected(inner, ()) == ([], inner)
    assert split_protected(steps, {f"{repository}/secret"}) == ([], steps)


def test_objects_of_git_are_made_and_changed_like_other_files() -> None:
    path = (".git", "objects", "ab", "cdef")
    steps = [TreeChange(path, None, FILE), TreeChange(path, FILE, File(0o644, 1, 0, ()))]
    assert split_protected(steps, ()) == (steps, [])
