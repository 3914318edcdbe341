"""The versions of tools: asked for once, and never in the way of a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import mulligan
from mulligan.session import tool_versions as tools
from mulligan.session.environment import TOOLS_CACHE as CACHE
from mulligan.session.tool_versions import find_tools


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a git first on PATH that notes each call of it in a file; return the file."""
    programs = tmp_path / "programs"
    programs.mkdir()
    calls = tmp_path / "calls"
    write_git(programs / "git", f'echo called >> "{calls}"; echo git version 9.8')
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return calls


def write_git(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def taken(store: Path) -> dict[str, str]:
    """Return the tools that the checkpoint of a fresh handle records."""
    with mulligan.open(store) as opened:
        return opened.session("s").checkpoint().environment.tools


def test_a_git_that_hangs_does_not_fail_a_checkpoint(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_git(tmp_path / "programs/git", "exec sleep 1000")
    monkeypatch.setattr(tools, "GIT_TIMEOUT_SECONDS", 0.05)
    found = taken(tmp_path / "store")
    assert "mulligan" in found
    assert "git" not in found


@pytest.mark.parametrize("script", ["exit 1", "kill -9 $$", "printf '\\377\\n' >&2"])
def test_a_git_that_fails_does_not_fail_a_checkpoint(
    tmp_path: Path, calls: Path, script: str
) -> None:
    write_git(tmp_path / "programs/git", script)
    assert "git" not in taken(tmp_path / "store")


def test_a_git_that_did_not_answer_is_asked_again(tmp_path: Path, calls: Path) -> None:
    git = tmp_path / "programs/git"
    answer = git.read_text()
    write_git(git, "exit 1")
    assert "git" not in find_tools(tmp_path / CACHE).versions
    git.write_text(answer)
    assert find_tools(tmp_path / CACHE).versions["git"] == "9.8"


def test_git_is_asked_once_for_all_processes(tmp_path: Path, calls: Path) -> None:
    first, second = taken(tmp_path / "store"), taken(tmp_path / "store")
    assert first == second
    assert first["git"] == "9.8"
    assert calls.read_text().splitlines() == ["called"]


def test_another_git_is_asked(tmp_path: Path, calls: Path) -> None:
    taken(tmp_path / "store")
    write_git(tmp_path / "programs/git", "echo git version 10.11")
    assert taken(tmp_path / "store")["git"] == "10.11"


def test_another_git_of_the_same_size_and_time_is_asked(tmp_path: Path, calls: Path) -> None:
    """Installers keep the times of the files in an archive."""
    git, cache = tmp_path / "programs/git", tmp_path / CACHE
    write_git(git, "echo git version 1.1")
    assert find_tools(cache).versions["git"] == "1.1"
    known = git.stat()
    write_git(git, "echo git version 1.2")
    os.utime(git, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert find_tools(cache).versions["git"] == "1.2"


def test_a_git_that_comes_first_on_the_path_is_asked(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_tools(tmp_path / CACHE)
    (tmp_path / "first").mkdir()
    write_git(tmp_path / "first/git", "echo git version 10.11")
    monkeypatch.setenv("PATH", f"{tmp_path / 'first'}{os.pathsep}{os.environ['PATH']}")
    assert find_tools(tmp_path / CACHE).versions["git"] == "10.11"


def test_after_an_installation_of_packages_all_are_asked_again(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.setattr(tools, "_packages", lambda: str(packages))
    monkeypatch.setattr(tools, "_installed", lambda: {"mulligan": "1.0"})
    assert find_tools(tmp_path / CACHE).versions["mulligan"] == "1.0"
    monkeypatch.setattr(tools, "_installed", lambda: {"mulligan": "2.0"})
    assert find_tools(tmp_path / CACHE).versions["mulligan"] == "1.0"  # from the cache
    (packages / "mulligan-2.0.dist-info").mkdir()
    assert find_tools(tmp_path / CACHE).versions["mulligan"] == "2.0"


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", b'{"git": 1}'])
def test_a_cache_that_cannot_be_read_is_not_used(
    tmp_path: Path, calls: Path, damage: bytes
) -> None:
    cache = tmp_path / CACHE
    cache.write_bytes(damage)
    assert find_tools(cache).versions["git"] == "9.8"
    assert find_tools(cache).versions["git"] == "9.8"
    assert calls.read_text().splitlines() == ["called"]


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path, calls: Path) -> None:
    assert find_tools(tmp_path / "nowhere" / CACHE).versions["git"] == "9.8"
