"""Making stores and finding them."""

from __future__ import annotations

from pathlib import Path

import pytest

import mulligan
from tests.stores import store_of


def test_init_makes_a_store_with_a_session(cli, place: Path):
    made = cli("init", "--json")
    assert made.code == 0
    assert made.json == {
        "store": str(store_of(place)),
        "directory": str(place),
        "created": True,
        "sessions": ["main"],
    }
    assert cli("status", "-q").out == "main\n"


def test_init_again_changes_nothing_and_says_so(store):
    store("state", "set", "a", "1")
    again = store("init")
    assert again.code == 0
    assert "already" in again.out
    assert store("init", "--json").json["created"] is False
    assert store("state", "get", "a").json == 1


def test_init_makes_the_directory_it_is_given(cli, place: Path):
    made = cli("init", "deeper")
    assert made.code == 0
    assert f"There was no directory {place / 'deeper'}; it was made." in made.err
    assert (store_of(place / "deeper") / "FORMAT").is_file()


def test_init_with_a_session_makes_that_one(cli):
    assert cli("init", "-s", "agent").code == 0
    assert cli("status", "-q").out == "agent\n"


def test_init_refuses_a_directory_of_something_else(cli, place: Path):
    (place / ".mulligan").mkdir()
    (place / ".mulligan/photo.jpg").touch()
    refused = cli("init")
    assert refused.code == 11
    assert "Hint:" in refused.err


@pytest.mark.parametrize(
    "command",
    [
        ["checkpoint"],
        ["log"],
        ["show"],
        ["events"],
        ["status"],
        ["diff", "@latest"],
        ["restore", "@latest"],
        ["undo"],
        ["redo"],
        ["fork", "@latest"],
        ["verify"],
        ["state", "get"],
        ["state", "set", "a", "1"],
    ],
)
def test_only_init_makes_a_store(cli, place: Path, command: list[str]):
    failed = cli(*command)
    assert failed.code == 10
    assert failed.out == ""
    assert "mulligan init" in failed.err
    assert not (place / ".mulligan").exists()


def test_the_store_is_found_from_below(store, place: Path, monkeypatch):
    (place / "a/b").mkdir(parents=True)
    monkeypatch.chdir(place / "a/b")
    assert store("status", "--json").json["store"] == str(store_of(place))


def test_the_option_wins_over_the_environment_and_that_over_the_directory(
    cli, place: Path, monkeypatch
):
    for name in ("here", "there", "elsewhere"):
        cli("init", name)
    monkeypatch.chdir(place / "here")
    monkeypatch.setenv("MULLIGAN_STORE", str(place / "there"))
    assert cli("status", "--json").json["store"] == str(store_of(place / "there"))
    chosen = cli("--store", str(place / "elsewhere"), "status", "--json")
    assert chosen.json["store"] == str(store_of(place / "elsewhere"))
    after = cli("status", "--json", "--store", str(place / "elsewhere"))
    assert after.json["store"] == str(store_of(place / "elsewhere"))


def test_a_store_that_a_program_made_inside_can_be_moved_to_safety(cli, place: Path):
    mulligan.open(".").close()
    (place / "file").write_text("one")
    told = cli("init")
    assert told.code == 0
    said = " ".join(told.err.split())
    assert "inside the project, where `git clean -ffdx` deletes it" in said
    assert "`mulligan move-store --outside`" in said
    assert cli("move-store", "--outside").code == 0
    assert cli("init").err == ""


def test_a_store_inside_that_was_asked_for_is_a_choice(cli, place: Path):
    assert cli("init", "--inside").err == ""
    assert cli("init").err == ""
