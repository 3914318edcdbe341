"""Differences of two points: structural, smallest, and the conversation apart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import mulligan
from mulligan import Session


@pytest.fixture
def session() -> Session:
    return mulligan.open("memory:").session("run")


def differences(session: Session, one: Any, other: Any) -> dict[str, tuple[str, Any, Any]]:
    session.state.set("", one)
    before = session.head
    session.state.set("", other)
    found = session.diff(before)
    return {d.place: (d.change, d.before, d.after) for d in found.state + found.conversation}


def test_added_removed_and_changed(session: Session) -> None:
    found = differences(
        session,
        {"same": 1, "gone": 2, "new value": 3, "deep": {"x": {"y": 1, "z": 1}}},
        {"same": 1, "new value": 4, "more": 5, "deep": {"x": {"y": 1, "z": 2}}},
    )
    assert found == {
        "gone": ("removed", 2, None),
        "new value": ("changed", 3, 4),
        "more": ("added", None, 5),
        "deep/x/z": ("changed", 1, 2),
    }


def test_none_is_a_value(session: Session) -> None:
    assert differences(session, {"a": None}, {"b": None}) == {
        "a": ("removed", None, None),
        "b": ("added", None, None),
    }


def test_types_that_look_alike_differ(session: Session) -> None:
    found = differences(session, {"a": 1, "b": 0, "c": [1]}, {"a": True, "b": False, "c": [1.0]})
    assert set(found) == {"a", "b", "c/0"}


def test_a_value_that_became_another_kind(session: Session) -> None:
    assert differences(session, {"a": {"x": 1}}, {"a": [1]}) == {
        "a": ("changed", {"x": 1}, [1]),
    }


def test_lists_by_position(session: Session) -> None:
    found = differences(session, {"l": [1, {"a": 1}, 3]}, {"l": [1, {"a": 2}, 3, 4]})
    assert found == {"l/1/a": ("changed", 1, 2), "l/3": ("added", None, 4)}


def test_long_lists_and_wide_dicts(session: Session) -> None:
    one = {"l": [f"item {n}" for n in range(5_000)], "d": {f"k{n}": n for n in range(500)}}
    other = {"l": [*one["l"], "new"], "d": {**one["d"], "k7": "changed", "k900": 1}}  # type: ignore[dict-item]
    assert differences(session, one, other) == {
        "l/5000": ("added", None, "new"),
        "d/k7": ("changed", 7, "changed"),
        "d/k900": ("added", None, 1),
    }


def test_the_conversation_stands_apart(session: Session) -> None:
    session.state.append("conversation", {"role": "user", "content": "hello"})
    before = session.head
    session.state.append("conversation", {"role": "assistant", "content": "hi"})
    session.state.set("conversations", 1)
    found = session.diff(before)
    assert [d.place for d in found.conversation] == ["conversation/1"]
    assert [d.place for d in found.state] == ["conversations"]
    assert found.conversation[0].after == {"role": "assistant", "content": "hi"}


def test_nothing_differs_when_a_change_was_taken_back(session: Session) -> None:
    session.state.set("a", {"x": ["y" * 10_000]})
    before = session.head
    session.state.set("a", 5)
    session.restore(before)
    found = session.diff(before)
    assert not found
    assert session.internal.state_digest(before) == session.internal.state_digest(session.head)


def test_points_of_different_sessions(session: Session) -> None:
    session.state.set("n", 1)
    fork = session.fork(session.head, "branch")
    fork.state.set("n", 2)
    found = session.diff("#2", "branch:#4")
    assert (found.before.session, found.after.session) == ("run", "branch")
    assert [(d.place, d.before, d.after) for d in found.state] == [("n", 1, 2)]


def test_a_key_with_a_slash_is_shown_so_that_it_can_be_read_back(session: Session) -> None:
    found = differences(session, {"a/b": {"~": 1}}, {"a/b": {"~": 2}})
    assert set(found) == {"a~1b/~0"}
    assert session.state.get("a~1b/~0") == 2


def test_it_can_be_written_as_json(session: Session) -> None:
    session.state.set("a", 1)
    found = msgspec.json.decode(msgspec.json.encode(session.diff(1)))
    assert found["state"][0]["path"] == ["a"]
