"""Undo and redo take back exactly what was done, whatever parts a restore named."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

import mulligan
from mulligan.errors import StateError

KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
STATES = st.dictionaries(KEYS, VALUES, max_size=3)
PATHS = st.lists(KEYS | st.sampled_from(["0", "1", "2", "-1"]), min_size=1, max_size=3).map(tuple)
ONLY = st.none() | st.lists(PATHS, min_size=1, max_size=3)


def restored(*states: Any, only: Any) -> mulligan.Session:
    """Return a session that had the states and was brought back to the first, or parts of it."""
    session = mulligan.open("memory:").session("run")
    for state in states:
        session.state.set("", state)
    try:
        session.restore(2, only)
    except StateError:
        assume(False)
    return session


@given(STATES, STATES, ONLY)
def test_a_restore_is_taken_back_exactly(then: Any, now: Any, only: Any) -> None:
    session = restored(then, now, only=only)
    after = session.state.get("")
    for _ in range(2):
        session.undo()
        assert session.state.get("") == now
        session.redo()
        assert session.state.get("") == after


@given(STATES, STATES, STATES, ONLY)
def test_an_undo_is_never_stuck_and_is_taken_back_exactly(
    then: Any, now: Any, later: Any, only: Any
) -> None:
    session = restored(then, now, only=only)
    session.state.set("", later)
    session.undo()
    undone = session.state.get("")
    if only is None:
        assert undone == now
    for _ in range(2):
        session.redo()
        assert session.state.get("") == later
        session.undo()
        assert session.state.get("") == undone


@given(STATES, st.lists(st.tuples(STATES, ONLY), min_size=1, max_size=4))
def test_walking_all_the_way_back_and_forth(first: Any, steps: list[tuple[Any, Any]]) -> None:
    session = mulligan.open("memory:").session("run")
    session.state.set("", first)
    done = 0
    for state, only in steps:
        session.state.set("", state)
        try:
            session.restore(2, only)
            done += 1
        except StateError:
            continue
    after = session.state.get("")
    for _ in range(done):
        session.undo()
    for _ in range(done):
        session.redo()
    assert session.state.get("") == after
