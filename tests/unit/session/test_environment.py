"""What a checkpoint records of its surroundings: enough to come back, and never a secret."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

import mulligan
from mulligan.locate.git import find_git
from mulligan.redact import is_secret
from mulligan.session.environment import ALLOWED, EnvironmentReader, git_head

SECRETS = {
    "ANTHROPIC_API_KEY": "whatever",
    "AWS_SECRET_ACCESS_KEY": "whatever",
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "GITHUB_TOKEN": "whatever",
    "DB_PASSWORD": "whatever",
    "PGPASSFILE": "whatever",
    "SSH_AUTH_SOCK": "whatever",
    "SENTRY_DSN": "whatever",
    "SIGNING_KEY": "whatever",
    "KEY": "whatever",
    "session_cookie": "whatever",
    "GOOGLE_CREDENTIALS": "whatever",
    "HTTP_PROXY": "http://user:hunter2@proxy:80",
    "SETTINGS": "postgres://app:hunter2@db/app",
    "BLOB": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "A": "sk-" + "x" * 24,
    "B": "ghp_abcdefghijklmnopqrstuvwxyz0123",
    "C": "xoxb-123-456",
    "D": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_known_by_its_name_or_its_value(name: str) -> None:
    assert is_secret(name, SECRETS[name])


@pytest.mark.parametrize(
    ("name", "value"),
    [("LANG", "C.UTF-8"), ("PATH", "/usr/bin:/bin"), ("USER", "ada"), ("CI", "true")],
)
def test_an_ordinary_variable_is_no_secret(name: str, value: str) -> None:
    assert not is_secret(name, value)


def test_secrets_are_left_out_even_when_asked_for() -> None:
    variables = {**SECRETS, "LANG": "C", "OWN": "kept", "OTHER": "not asked for"}
    taken = EnvironmentReader(Path("/"), variables, keep=[*SECRETS, "OWN"]).capture()
    assert taken.variables == {"LANG": "C", "OWN": "kept"}


def test_no_secret_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2-hunter2-hunter2")
    monkeypatch.setenv("PATH", "https://me:hunter2-hunter2-hunter2@host/bin")
    monkeypatch.setenv("UNKNOWN_TO_US", "hunter2-hunter2-hunter2")
    with mulligan.open(tmp_path, keep_env=["MY_TOKEN"]) as store:
        made = store.session("s").checkpoint()
        assert "hunter2" not in repr(made)
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"hunter2" not in file.read_bytes()


def test_only_named_variables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAVOURITE_COLOUR", "green")
    monkeypatch.setenv("FAVOURITE_FOOD", "soup")
    with mulligan.open("memory:", keep_env=["FAVOURITE_COLOUR"]) as store:
        variables = store.session("s").checkpoint().environment.variables
    assert variables["FAVOURITE_COLOUR"] == "green"
    assert set(variables) <= ALLOWED | {"FAVOURITE_COLOUR"}


def test_a_checkpoint_says_where_it_was_taken() -> None:
    with mulligan.open("memory:") as store:
        taken = store.session("s").checkpoint().environment
    assert taken.platform
    assert taken.host
    assert taken.python.startswith("3.")
    assert "mulligan" in taken.tools


# --- git, read from its files, with the real git beside ---------------------------------------

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(directory: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        [*command, *arguments], cwd=directory, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    place = tmp_path / "repository"
    place.mkdir()
    git(place, "init", "-q")
    git(place, "commit", "-q", "--allow-empty", "-m", "first")
    return place


def head(directory: Path) -> str | None:
    found = find_git(directory)
    return None if found is None else git_head(found)


@needs_git
def test_the_head_of_a_branch(repository: Path) -> None:
    assert head(repository) == git(repository, "rev-parse", "HEAD")


@needs_git
def test_the_head_is_found_from_a_directory_inside(repository: Path) -> None:
    inside = repository / "a" / "b"
    inside.mkdir(parents=True)
    assert head(inside) == git(repository, "rev-parse", "HEAD")


@needs_git
def test_a_detached_head(repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    assert head(repository) == git(repository, "rev-parse", "HEAD")


@needs_git
def test_packed_refs(repository: Path) -> None:
    git(repository, "branch", "main-two")
    git(repository, "pack-refs", "--all")
    assert not (repository / ".git" / "refs" / "heads" / "main").exists()
    assert head(repository) == git(repository, "rev-parse", "HEAD")


@needs_git
@pytest.mark.parametrize("packed", [False, True])
def test_a_worktree_has_its_own_head(repository: Path, packed: bool) -> None:
    git(repository, "worktree", "add", "-q", "-b", "side", "../side")
    side = repository.parent / "side"
    git(side, "commit", "-q", "--allow-empty", "-m", "on the side")
    if packed:
        git(repository, "pack-refs", "--all")
    assert head(side) == git(side, "rev-parse", "HEAD") != head(repository)


@needs_git
def test_a_repository_without_commits_has_no_head(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert head(tmp_path) is None


def test_outside_a_repository_there_is_none(tmp_path: Path) -> None:
    assert head(tmp_path) is None


def test_a_broken_git_directory_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /nowhere/at/all\n")
    assert head(tmp_path) is None
    with mulligan.open(tmp_path) as store:
        assert store.session("s").checkpoint().environment.git_head is None


@needs_git
def test_every_checkpoint_looks_at_the_head_anew(repository: Path) -> None:
    with mulligan.open(repository) as store:
        session = store.session("s")
        first = session.checkpoint().environment.git_head
        git(repository, "commit", "-q", "--allow-empty", "-m", "second")
        second = session.checkpoint().environment.git_head
    assert first != second == git(repository, "rev-parse", "HEAD")


def test_a_git_head_that_leads_elsewhere_is_not_read(tmp_path: Path) -> None:
    git = tmp_path / "repository/.git"
    (git / "refs").mkdir(parents=True)
    (tmp_path / "secret").write_text("a" * 40)
    (git / "HEAD").write_text("ref: ../../secret\n")
    assert git_head(git) is None
    (git / "HEAD").write_text("ref: refs/../../../secret\n")
    assert git_head(git) is None
    (git / "refs/text").write_text("not a digest, but a password\n")
    (git / "HEAD").write_text("ref: refs/text\n")
    assert git_head(git) is None
    os.mkfifo(git / "refs/fifo")
    (git / "HEAD").write_text("ref: refs/fifo\n")
    assert git_head(git) is None


def test_a_fork_does_not_wait_for_a_thread_that_looks_for_tools(tmp_path: Path) -> None:
    pipe = tmp_path / "tools"
    os.mkfifo(pipe)
    looking = Thread(target=EnvironmentReader(tmp_path, {}, cache=pipe).capture)
    looking.start()
    writing = None
    while writing is None:
        with suppress(OSError):  # until the thread reads
            writing = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # only against hanging
        try:
            EnvironmentReader(tmp_path, {}).capture()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    os.close(writing)
    looking.join()
    assert status == 0
