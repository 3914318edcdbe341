"""A project that was deleted: every message on the way says how its files come back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def lost(cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one file that was deleted; the shell stands in its parent."""
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    project = place / "a project"
    project.mkdir()
    monkeypatch.chdir(project)
    cli("init")
    (project / "file").write_text("one")
    assert cli("checkpoint").code == 0
    monkeypatch.chdir(place)
    shutil.rmtree(project)
    return project


def words(text: str) -> str:
    return " ".join(text.split())


def ways(project: Path) -> str:
    return f"`mkdir '{project}'`, `cd '{project}'`, and `mulligan restore @latest`"


def test_from_its_parent(lost: Path, cli: Cli) -> None:
    for command in (["status"], ["restore", "@latest"], ["log"]):
        failed = cli(*command)
        assert failed.code == 10
        assert f"The store of {lost}, which is gone, is kept" in words(failed.err)
        assert ways(lost) in words(failed.err)


def test_several_are_left_to_the_list(lost: Path, cli: Cli, place: Path) -> None:
    (place / "second").mkdir()
    cli("init", str(place / "second"))
    shutil.rmtree(place / "second")
    assert "`mulligan stores` lists them" in words(cli("status").err)


def test_what_the_hint_says_brings_it_back(
    lost: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost.mkdir()
    monkeypatch.chdir(lost)
    assert cli("restore", "@latest", "--yes").code == 0
    assert (lost / "file").read_text() == "one"


def test_projects_elsewhere_are_not_named(
    lost: Path, cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "other").mkdir()
    monkeypatch.chdir(place / "other")
    assert "gone" not in cli("status").err


def test_by_its_store(lost: Path, cli: Cli, place: Path) -> None:
    store = next((place / "state/mulligan/stores").glob("a-project-*"))
    failed = cli("--store", str(store), "restore", "@latest")
    assert failed.code == 80
    assert ways(lost) in words(failed.err)
    assert "`mulligan restore @latest --to DIR`" in words(failed.err)
    copy = place / "copy"
    assert cli("--store", str(store), "restore", "@latest", "--to", str(copy)).code == 0
    assert (copy / "file").read_text() == "one"


def test_in_the_directory_itself(cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "gone").mkdir()
    monkeypatch.chdir(place / "gone")
    (place / "gone").rmdir()
    said = words(cli("status").err)
    assert '`mkdir "$PWD"`, `cd "$PWD"`, and `mulligan restore @latest`' in said


def test_in_the_list_of_stores(lost: Path, cli: Cli) -> None:
    listed = cli("stores")
    assert "not there any more" in listed.out
    assert ways(lost) in words(listed.err)
    lost.mkdir()
    assert "mkdir" not in cli("stores").err
