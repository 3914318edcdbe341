"""The state as its users see it."""

from __future__ import annotations

import enum
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

import pytest

import mulligan
from mulligan import MISSING, Session
from mulligan.document.values import MAX_DEPTH, MAX_KEY, format_path, parse_path
from mulligan.errors import Conflict, InvalidPath, PathNotFound, StateError, UnstorableValue


@pytest.fixture
def session() -> Session:
    return mulligan.open("memory:").session("run")


# --- paths -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ()),
        ("a", ("a",)),
        ("a/b/c", ("a", "b", "c")),
        ("a~1b/c~0d", ("a/b", "c~d")),
        ("~01", ("~1",)),
        ("agents/0/name", ("agents", "0", "name")),
    ],
)
def test_text_and_tuples_are_the_same_paths(text: str, path: tuple[str, ...]) -> None:
    assert parse_path(text) == parse_path(path) == parse_path(list(path)) == path
    assert format_path(path) == text


@pytest.mark.parametrize(
    "path",
    [
        "/a",
        "a/",
        "a//b",
        ("a", None),
        ("a", True),
        ("a", 1.5),
        ("a", b"b"),
        "\ud800",
        ("x" * (MAX_KEY + 1),),
        ("a",) * (MAX_DEPTH + 1),
    ],
)
def test_what_is_no_path_is_refused(session: Session, path: Any) -> None:
    for use in (session.state.get, session.state.delete):
        with pytest.raises(InvalidPath):
            use(path)
    with pytest.raises(InvalidPath):
        session.state.set(path, 1)
    assert session.head.seq == 1


@pytest.mark.parametrize(
    "path", [("k" * MAX_KEY,) * 20, ("ä" * MAX_KEY,) * 9, ("deep",) * MAX_DEPTH]
)
def test_the_longest_paths_work(session: Session, path: tuple[str, ...]) -> None:
    session.state.set(path, "there")
    session.state.append((*path[:-1], "list"), 1)
    assert session.state.get(path) == "there"
    assert mulligan_again(session).state.get(path) == "there"
    session.restore(1)
    session.undo()
    session.state.delete(path)
    assert session.state.get(path) is None


def mulligan_again(session: Session) -> Session:
    """Return another handle on the session, which has to replay everything."""
    return Session(session._engine, session._record, "main", session._environment_reader)


def test_missing_dictionaries_are_made_on_the_way(session: Session) -> None:
    session.state.set("a/b/c", 1)
    assert session.state.get("") == {"a": {"b": {"c": 1}}}


def test_list_items_are_addressed_by_index(session: Session) -> None:
    session.state.set("list", ["a", {"name": "b"}, "c"])
    assert session.state.get("list/0") == session.state.get(("list", -3)) == "a"
    assert session.state.get("list/-1") == "c"
    session.state.set("list/1/name", "changed")
    session.state.set(("list", -1), "last")
    assert session.state.get("list") == ["a", {"name": "changed"}, "last"]
    session.state.delete("list/0")
    assert session.state.get("list") == [{"name": "changed"}, "last"]


@pytest.mark.parametrize("path", ["list/3", "list/-4", "list/x", "text/a", "list/0/a", ("map", 0)])
def test_a_path_that_leads_nowhere(session: Session, path: Any) -> None:
    session.state.put("", {"list": ["a", "b", "c"], "text": "t", "map": {}})
    before = session.head.seq
    assert session.state.get(path, "default") == "default"
    with pytest.raises(InvalidPath):
        session.state.set(path, 1)
    with pytest.raises(PathNotFound):
        session.state.delete(path)
    assert session.head.seq == before


def test_an_index_is_kept_as_the_position_it_had(session: Session) -> None:
    session.state.set("list", [1, 2, 3])
    session.state.set("list/-1", "third")
    session.state.append("list", 4)
    assert session.state.at("#3").get("list") == [1, 2, "third"]
    assert session.state.get("list") == [1, 2, "third", 4]


def test_the_root_is_a_dictionary_and_stays_one(session: Session) -> None:
    session.state.set("", {"a": 1})
    assert session.state.get("") == session.state.get() == {"a": 1}
    for attempt in (
        lambda: session.state.set("", 5),
        lambda: session.state.put("", []),
        lambda: session.state.append("", 5),
        lambda: session.state.delete(""),
    ):
        with pytest.raises(InvalidPath, match="root"):
            attempt()
    assert session.state.get("") == {"a": 1}
    session.state.set("", {})
    assert session.state.get("") == {}


# --- values ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "object"),
        ({1, 2}, "set"),
        ((1, 2), "tuple"),
        (1j, "complex"),
        ({"a": {"b": [1, object()]}}, "place/a/b/1"),
        ({5: "a"}, "keys must be strings"),
        ({"a": {None: 1}}, "place/a"),
        ({"k" * (MAX_KEY + 1): 1}, f"key of {MAX_KEY + 1}"),
        ("\ud800", "not valid Unicode"),
        ({"\udfff": 1}, "not valid Unicode"),
        (lambda: None, "function"),
        (datetime, "type"),
        (10**5_000, "too many digits"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() else "",
)
def test_what_cannot_be_stored_is_refused_with_its_path(
    session: Session, value: Any, what: str
) -> None:
    session.state.set("list", [])
    for attempt in (
        lambda: session.state.set("place", value),
        lambda: session.state.put("place", value),
        lambda: session.state.append("list", value),
    ):
        with pytest.raises(UnstorableValue) as caught:
            attempt()
    assert what.replace("place", "list") in str(caught.value) or "list" in str(caught.value)
    with pytest.raises(UnstorableValue, match=what):
        session.state.set("place", value)
    assert session.head.seq == 2


def test_nesting_has_a_limit_and_cycles_meet_it(session: Session) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UnstorableValue, match="nests deeper than 100"):
        session.state.set("a", endless)
    deep: Any = 0
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    session.state.set("a", deep)
    assert session.state.get("a") == deep
    assert mulligan_again(session).state.get("a") == deep


class Colour(enum.StrEnum):
    RED = "red"


class Count(int):
    pass


def test_subclasses_of_plain_types_become_plain(session: Session) -> None:
    session.state.set("", OrderedDict(a=Colour.RED, b=Count(5), c=bytearray(b"x")))
    found = session.state.get("")
    assert found == {"a": "red", "b": 5, "c": b"x"}
    assert [type(found[key]) for key in "abc"] == [str, int, bytes]


def test_types_that_look_alike_stay_apart(session: Session) -> None:
    values = [True, 1, 1.0, "1", b"1", None, False, 0, 0.0, ""]
    session.state.set("values", values)
    assert [type(value) for value in session.state.get("values")] == [type(v) for v in values]
    session.state.set("x", 1)
    before = session.head.seq
    session.state.put("x", True)
    assert session.head.seq == before + 1
    assert session.state.get("x") is True


def test_times_keep_their_offset(session: Session) -> None:
    moments = [datetime(2026, 1, 1, 12, 0, 0, 123), datetime(2026, 1, 1, tzinfo=UTC)]
    session.state.set("times", moments)
    assert session.state.get("times") == moments


def test_neither_side_can_change_the_stored_value(session: Session) -> None:
    mine = {"list": [1]}
    session.state.set("a", mine)
    mine["list"].append(2)
    theirs = session.state.get("a")
    theirs["list"].append(3)
    assert session.state.get("a") == {"list": [1]}


# --- changes ---------------------------------------------------------------------------------


def kinds(session: Session, since: int) -> list[str]:
    return [event.kind for event in session.events(since=since)]


def test_appending_makes_a_missing_list_and_refuses_others(session: Session) -> None:
    session.state.append("a/list", 1)
    session.state.extend("a/list", (number for number in (2, 3)))
    session.state.extend("a/list", [])
    assert session.state.get("a/list") == [1, 2, 3]
    session.state.set("text", "t")
    for path in ("text", "a", "a/list/0"):
        with pytest.raises(InvalidPath, match="not a list"):
            session.state.append(path, 1)


def test_deleting_what_is_not_there_says_so(session: Session) -> None:
    with pytest.raises(PathNotFound, match="'a/b'"):
        session.state.delete("a/b")


def test_put_writes_only_what_changed(session: Session) -> None:
    whole: dict[str, Any] = {"a": {"x": 1, "y": 2}, "list": list(range(100)), "gone": True}
    session.state.put("", whole)
    before = session.head.seq
    session.state.put("", whole)
    assert session.head.seq == before
    whole["a"]["x"] = 5
    whole["list"].append("new")
    del whole["gone"]
    session.state.put("", whole)
    written = list(session.events(since=before))
    assert [(event.kind, tuple(event.payload["path"])) for event in written] == [
        ("state.set", ("a", "x")),
        ("state.delete", ("gone",)),
        ("state.append", ("list",)),
    ]
    assert written[2].payload["values"] == ["new"]
    assert session.state.get("") == whole


def test_put_of_a_growing_conversation_stores_each_message_once(session: Session) -> None:
    talk: list[str] = []
    for number in range(50):
        talk.append(f"message {number}")
        session.state.put("conversation", talk)
    assert kinds(session, 2) == ["state.append"] * 49
    assert session.state.get("conversation") == talk


def test_compare_and_set(session: Session) -> None:
    session.state.set("n", 1, expected=MISSING)
    session.state.set("n", 2, expected=1)
    before = session.head.seq
    for expected in (1, MISSING, True, 2.0, None):
        with pytest.raises(Conflict, match="there is 2, but"):
            session.state.set("n", 3, expected=expected)
        with pytest.raises(Conflict):
            session.state.put("n", 3, expected=expected)
        with pytest.raises(Conflict):
            session.state.delete("n", expected=expected)
    assert session.head.seq == before
    session.state.delete("n", expected=2)
    with pytest.raises(Conflict, match="is nothing"):
        session.state.set("n", 1, expected=2)


def test_compare_and_set_of_large_values(session: Session) -> None:
    large = {f"key {n}": "x" * 100 for n in range(200)}
    session.state.set("large", large)
    again = mulligan_again(session)
    with pytest.raises(Conflict):
        again.state.set("large", 1, expected={**large, "key 7": "y"})
    again.state.set("large", 1, expected=large)
    assert session.state.get("large") == 1


# --- batches ---------------------------------------------------------------------------------


def test_a_batch_is_one_transaction(session: Session) -> None:
    other = mulligan_again(session)
    with session.batch():
        session.state.set("a", 1)
        session.state.append("list", session.state.get("a"))
        session.state.append("list", 2)
        assert session.state.get("") == {"a": 1, "list": [1, 2]}
        assert other.state.get("") == {}
        assert other.head.seq == 1
    assert other.state.get("") == {"a": 1, "list": [1, 2]}
    assert kinds(other, 1) == ["state.set", "state.append", "state.append"]
    assert len({event.time for event in other.events(since=1)}) == 1


def test_a_batch_that_fails_leaves_nothing(session: Session) -> None:
    session.state.set("a", 1)
    with pytest.raises(ZeroDivisionError):
        divide_in_batch(session)
    assert session.state.get("") == {"a": 1}
    assert session.head.seq == 2
    session.state.set("a", 3)
    assert session.state.get("") == {"a": 3}


def divide_in_batch(session: Session) -> None:
    with session.batch():
        session.state.set("a", 2)
        session.state.set("b", 1 / 0)


def test_an_error_that_is_caught_inside_does_not_end_the_batch(session: Session) -> None:
    with session.batch():
        session.state.set("a", 1)
        with pytest.raises(PathNotFound):
            session.state.delete("missing")
        session.state.set("b", 2)
    assert session.state.get("") == {"a": 1, "b": 2}


def test_an_empty_batch_writes_nothing(session: Session) -> None:
    with session.batch():
        pass
    assert session.head.seq == 1


def test_what_a_batch_cannot_hold_is_refused(session: Session) -> None:
    with session.batch():
        session.state.set("a", 1)
        for attempt in (
            session.checkpoint,
            lambda: session.restore(1),
            session.undo,
        ):
            with pytest.raises(StateError, match="batch"):
                attempt()
    assert session.state.get("") == {"a": 1}


def test_a_batch_is_decided_on_what_others_wrote_meanwhile(session: Session) -> None:
    other = mulligan_again(session)
    with session.batch():
        session.state.append("list", "mine")
        other.state.append("list", "theirs")
    assert session.state.get("list") == ["theirs", "mine"]


def test_a_comparison_in_a_batch_counts_at_its_end(session: Session) -> None:
    other = mulligan_again(session)
    session.state.set("n", 1)
    with pytest.raises(Conflict):
        increment_while(session, other)
    assert session.state.get("") == {"n": 10}


def increment_while(session: Session, other: Session) -> None:
    with session.batch():
        session.state.set("seen", True)
        session.state.set("n", 2, expected=1)
        other.state.set("n", 10)


def test_a_keyframe_bounds_the_replay(session: Session) -> None:
    for number in range(1_300):
        session.state.set(("count", f"key {number % 90}"), number)
    with session._engine.read() as view:
        near = [view.keyframe(1, seq) for seq in (511, 600, 1_200)]
    assert near[0] is None
    assert all(found and found[0] > 500 for found in near[1:])
    assert near[2] is not None
    assert near[2][0] > 1_000
    for seq in (1, 2, 511, 512, 513, 514, 1_025, 1_301):
        expected = {f"key {n % 90}": n for n in range(seq - 1)}
        assert session.state.at(seq).get().get("count", {}) == expected
