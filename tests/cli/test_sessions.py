"""Which session a command works on."""

from __future__ import annotations


def test_main_is_meant_when_none_is_named(store):
    store("state", "set", "a", "1", "-s", "other", "--create")
    store("state", "set", "a", "2")
    assert store("state", "get", "a").json == 2


def test_the_only_session_is_meant_when_there_is_no_main(cli):
    cli("init", "-s", "agent")
    assert cli("state", "set", "a", "1").code == 0
    assert cli("state", "get", "a", "-s", "agent").json == 1


def test_several_without_main_are_listed(cli):
    cli("init", "-s", "one")
    for name in ("one", "two"):
        cli("checkpoint", "-s", name, "--create")
    failed = cli("log")
    assert failed.code == 20
    assert "\n  one\n  two\n" in failed.err
    assert "-s NAME" in failed.err


def test_a_mistyped_name_makes_no_session(store):
    for command in (["log"], ["state", "set", "a", "1"], ["checkpoint"], ["state", "delete", "a"]):
        failed = store(*command, "-s", "mian")
        assert failed.code == 20
        assert "main" in failed.err
    assert store("status", "-q").out == "main\n"


def test_writing_commands_offer_to_create(store):
    assert "--create" in store("-s", "new", "state", "append", "a", "1").err
    assert store("-s", "new", "state", "append", "a", "1", "--create").code == 0
    assert store("-s", "new", "state", "get", "a").json == [1]


def test_the_environment_names_a_session_and_the_option_another(store, monkeypatch):
    for name in ("one", "two"):
        store("state", "set", "name", name, "-s", name, "--create")
    monkeypatch.setenv("MULLIGAN_SESSION", "one")
    assert store("state", "get", "name").json == "one"
    assert store("-s", "two", "state", "get", "name").json == "two"
    assert store("state", "get", "name", "--session", "two").json == "two"


def test_status_knows_only_sessions_that_are(store):
    assert store("status", "-s", "nobody").code == 20
    only = store("status", "--json", "-s", "main").json["sessions"]
    assert [session["name"] for session in only] == ["main"]


def test_while_main_is_empty_the_only_session_in_use_is_meant(store):
    store("state", "set", "a", "1", "-s", "nightly", "--create")
    store("checkpoint", "-s", "nightly", "--label", "green")
    shown = store("log")
    assert "green" in shown.out
    assert shown.err == "Using session nightly, the only one in use; -s NAME chooses another.\n"
    assert store("log", "--json").json["session"] == "nightly"
    assert store("log", "-q").err == ""
    assert store("state", "get", "a").json == 1
    store("state", "set", "a", "2", "-s", "main")
    assert store("state", "get", "a").json == 2
    assert store("log").err.startswith("Session 'main' has no checkpoint yet.")
    assert "Other sessions: nightly;" in store("log").err


def test_an_empty_main_is_meant_when_several_others_are_in_use(store):
    for name in ("one", "two"):
        store("checkpoint", "-s", name, "--create")
    empty = store("log")
    assert empty.code == 0
    assert "Other sessions: one, two; `mulligan log -s NAME` shows one." in empty.err


def test_to_create_is_to_create_main(store):
    store("checkpoint", "-s", "nightly", "--create")
    assert store("checkpoint", "--create", "--json").json["session"] == "main"


def test_status_shows_the_current_session_and_its_directory(
    store, place, tmp_path_factory, monkeypatch
):
    store("checkpoint", "-s", "nightly", "--create")
    assert f"current session: nightly, files in {place} " in store("status").words
    shown = store("status").out
    assert "\n* nightly " in shown
    assert "\n  main " in shown
    fork = tmp_path_factory.mktemp("forks") / "fork"
    assert store("fork", "nightly:@latest", "--to", str(fork)).code == 0
    assert str(fork) in store("status").out
    monkeypatch.chdir(fork)
    inside = store("status").out
    assert f"files in {fork} " in " ".join(inside.split())
    assert store("log", "--json").json["session"] in inside.split("current session: ")[1]
    assert "current session" not in store("status", "--json").out
