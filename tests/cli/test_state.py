"""state get, set, append, delete."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import mulligan


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("5", 5),
        ("-5", -5),
        ("-0.5", -0.5),
        ("true", True),
        ("null", None),
        ('"quoted"', "quoted"),
        ("word", "word"),
        ("two words", "two words"),
        ("01", "01"),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("", ""),
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ("12345678901234567890123", 12345678901234567890123),
    ],
)
def test_values_are_json_or_words(store, given: str, stored: object):
    args = ["--", given] if given == "-Infinity" else [given]
    assert store("state", "set", "x", *args).code == 0
    assert store("state", "get", "x").json == stored


@pytest.mark.parametrize("broken", ['{"a": 1', "[1, 2", '"open', "  {"])
def test_what_starts_like_json_and_is_none_is_refused(store, broken: str):
    failed = store("state", "set", "x", broken)
    assert failed.code == 2
    assert "--text" in failed.err
    assert store("state", "get", "x").code == 42
    assert store("state", "set", "x", broken, "--text").code == 0
    assert store("state", "get", "x").json == broken


def test_a_mistyped_option_is_not_a_value(store):
    assert store("state", "set", "x", "--txet").code == 2


def test_a_dash_reads_standard_input(store):
    store("state", "set", "x", "-", stdin='{"a": 1}\n')
    assert store("state", "get", "x/a").json == 1
    store("state", "set", "x", "-", stdin="some words\n")
    assert store("state", "get", "x").json == "some words"
    store("state", "set", "x", "-", "--text", stdin="5\n")
    assert store("state", "get", "x").json == "5\n"
    store("state", "append", "list", "-", stdin="[1]")
    assert store("state", "get", "list").json == [[1]]


def test_raw_prints_a_string_without_quotes(store):
    store("state", "set", "x", 'say "hi"')
    assert store("state", "get", "x").out == '"say \\"hi\\""\n'
    assert store("state", "get", "x", "--raw").out == 'say "hi"\n'
    store("state", "set", "x", "[1]")
    assert store("state", "get", "x", "--raw").json == [1]


def test_what_json_does_not_have_is_shown(store, place):
    with mulligan.open(place) as opened:
        state = opened.session("main").state
        state.set("bytes", b"hi")
        state.set("time", datetime(2026, 11, 15, tzinfo=UTC))
        state.set("nan", float("nan"))
    assert store("state", "get").json == {
        "bytes": {"$bytes": "aGk="},
        "nan": {"$float": "nan"},
        "time": "2026-11-15T00:00:00+00:00",
    }
    assert store("state", "get", "bytes", "--raw").out == "hi\n"
    assert store("state", "get", "time", "--raw").out == "2026-11-15T00:00:00+00:00\n"


def test_get_of_nothing_is_an_error_and_of_null_is_not(store):
    store("state", "set", "x", "null")
    assert store("state", "get", "x").out == "null\n"
    failed = store("state", "get", "x/y")
    assert (failed.code, failed.out) == (42, "")
    assert "'x/y'" in failed.err


def test_get_at_a_point(store):
    store("state", "set", "x", "1")
    store("checkpoint", "--label", "one")
    store("state", "set", "x", "2")
    assert store("state", "get", "x", "--at", "one").json == 1
    assert store("state", "get", "--at", "#2").json == {"x": 1}
    assert store("state", "get", "x", "--at", "#1").code == 42
    assert store("state", "get", "x", "--at", "nowhere").code == 30


def test_compare_and_set(store):
    store("state", "set", "x", "1")
    assert store("state", "set", "x", "2", "--expect", "1").code == 0
    lost = store("state", "set", "x", "3", "--expect", "1", "--json")
    assert lost.code == 43
    assert lost.error["retryable"] is True
    assert store("state", "set", "x", "3", "--expect-missing").code == 43
    assert store("state", "set", "y", "3", "--expect-missing").code == 0
    assert store("state", "delete", "y", "--expect", "4").code == 43
    assert store("state", "delete", "y", "--expect", "3").code == 0
    assert store("state", "set", "x", "3", "--expect", "1", "--expect-missing").code == 2
    assert store("state", "get").json == {"x": 2}


def test_append_and_delete(store):
    for word in ("a", "b", "c"):
        assert store("state", "append", "list", word).out == ""
    assert store("state", "delete", "list/1").code == 0
    assert store("state", "get", "list").json == ["a", "c"]
    assert store("state", "get", "list/-1").json == "c"
    assert store("state", "delete", "list/7").code == 42
    assert store("state", "set", "list/7", "x").code == 41


def test_writes_say_nothing_unless_asked_for_json(store):
    assert store("state", "set", "a/b", "1").out == ""
    for command in (["set", "a/b", "1"], ["append", "l", "1"], ["delete", "a/b"]):
        assert store("state", *command, "--json").json["session"] == "main"


def test_state_alone_shows_its_commands(cli):
    shown = cli("state")
    assert shown.code == 0
    assert [line.split()[0] for line in shown.out.splitlines()[-4:]] == [
        "get",
        "set",
        "append",
        "delete",
    ]


def test_components_with_their_own_commands_are_refused(store):
    store("tasks", "add", "build")
    for change in (("set", "tasks/build/status", "done"), ("delete", "tasks/build")):
        refused = store("state", *change)
        assert (refused.code, "mulligan tasks" in refused.err) == (41, True)
    assert store("state", "get", "tasks/build/status", "--raw").out.strip() == "pending"
