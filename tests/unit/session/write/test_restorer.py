"""Restore, undo, redo and fork: the past comes back as new events and nothing is ever lost."""

from __future__ import annotations

from typing import Any

import pytest

import mulligan
from mulligan import Point, Session
from mulligan.errors import NothingToUndo, PathNotFound, SessionExists


@pytest.fixture
def session() -> Session:
    return mulligan.open("memory:").session("run")


def test_a_restore_brings_the_whole_state_back(session: Session) -> None:
    session.state.set("", {"a": 1, "list": [1, 2], "gone": {"x": 1}})
    then = session.checkpoint(label="then")
    session.state.set("", {"a": 2, "new": True})
    done = session.restore("then")
    assert session.state.get("") == {"a": 1, "list": [1, 2], "gone": {"x": 1}}
    assert (done.mode, done.only) == ("restore", None)
    assert done.point == Point("run", then.seq, then.id)
    assert done.seq == session.head.seq


def test_what_was_before_a_restore_is_in_its_safety_checkpoint(session: Session) -> None:
    session.state.set("a", 1)
    session.state.set("unsaved", "work")
    done = session.restore(2)
    assert done.safety.kind == "pre_operation"
    assert session.state.at(done.safety).get() == {"a": 1, "unsaved": "work"}
    assert session.checkpoints()[-1] == done.safety


def test_latest_passes_over_safety_checkpoints(session: Session) -> None:
    session.state.set("a", 1)
    first = session.checkpoint()
    second = session.checkpoint()
    session.state.set("a", 2)
    session.restore("@latest")
    session.restore("@latest")
    assert session.point("@latest").checkpoint == second.id
    assert session.point("@latest~1").checkpoint == first.id
    assert session.state.get("a") == 1


def test_history_is_never_rewritten(session: Session) -> None:
    for number in range(5):
        session.state.set("n", number)
    before = list(session.events())
    session.restore(3)
    session.undo()
    session.redo()
    assert list(session.events())[: len(before)] == before
    assert [session.state.at(seq).get()["n"] for seq in range(2, 7)] == [0, 1, 2, 3, 4]


def test_a_selective_restore_leaves_the_rest_alone(session: Session) -> None:
    session.state.set("", {"memory": {"x": 1}, "todo": [1], "team": {"a": 1, "b": 1}})
    then = session.head
    session.state.set("", {"memory": {"x": 2}, "todo": [1, 2], "team": {"a": 2, "b": 2}})
    session.restore(then, only=["memory", "team/a"])
    assert session.state.get("") == {
        "memory": {"x": 1},
        "todo": [1, 2],
        "team": {"a": 1, "b": 2},
    }


def test_a_part_that_was_not_there_goes(session: Session) -> None:
    session.state.set("a", {"x": 1})
    then = session.head
    session.state.set("a/y", 2)
    session.state.set("b", 1)
    session.restore(then, only=["a/y", "b"])
    assert session.state.get("") == {"a": {"x": 1}}


def test_a_part_that_is_gone_comes_back_with_its_parents(session: Session) -> None:
    session.state.set("a/b/c", 1)
    then = session.head
    session.state.delete("a")
    session.restore(then, only=["a/b/c"])
    assert session.state.get("") == {"a": {"b": {"c": 1}}}


def test_overlapping_parts_are_restored_once(session: Session) -> None:
    session.state.set("", {"a": {"x": 1, "y": 1}, "ab": 1})
    then = session.head
    session.state.set("", {"a": {"x": 2}, "ab": 2})
    session.restore(then, only=["a/x", "a", "a/y", ("a",)])
    assert session.state.get("") == {"a": {"x": 1, "y": 1}, "ab": 2}


def test_a_part_that_never_was_is_named_and_nothing_happens(session: Session) -> None:
    session.state.set("a", 1)
    head = session.head
    with pytest.raises(PathNotFound, match="'b/c'"):
        session.restore(2, only=["a", "b/c"])
    assert session.head == head


def test_an_empty_selection_restores_nothing(session: Session) -> None:
    session.state.set("a", 1)
    session.restore(1, only=[])
    assert session.state.get("") == {"a": 1}


def test_undo_and_redo_walk_over_restores_without_limit(session: Session) -> None:
    for number in range(2, 102):
        session.state.set("n", number)
    for number in range(2, 102):
        session.restore(number)
    assert session.state.get("n") == 101
    for number in range(100, 1, -1):
        session.undo()
        assert session.state.get("n") == number
    session.undo()
    assert session.state.get("n") == 101
    with pytest.raises(NothingToUndo, match="undo"):
        session.undo()
    for number in range(2, 102):
        session.redo()
        assert session.state.get("n") == number
    with pytest.raises(NothingToUndo, match="redo"):
        session.redo()


def test_a_new_restore_forgets_what_could_be_redone(session: Session) -> None:
    session.state.set("n", 1)
    session.restore(1)
    session.undo()
    session.restore(1)
    with pytest.raises(NothingToUndo):
        session.redo()
    session.undo()
    assert session.state.get("n") == 1


def test_undo_of_a_selective_restore_leaves_later_work_elsewhere_alone(session: Session) -> None:
    session.state.set("", {"a": 1, "b": 1})
    then = session.head
    session.state.set("a", 2)
    session.restore(then, only=["a"])
    session.state.set("b", 2)
    done = session.undo()
    assert session.state.get("") == {"a": 2, "b": 2}
    assert (done.mode, done.only) == ("undo", (("a",),))


def test_work_done_after_a_restore_is_kept_when_it_is_undone(session: Session) -> None:
    session.state.set("a", 1)
    session.restore(1)
    session.state.set("later", "work")
    done = session.undo()
    assert session.state.get("") == {"a": 1}
    assert session.state.at(done.safety).get() == {"later": "work"}


# What happened since must not leave an undo stuck: there would be no way on.


def after_selective_restore(then: Any, now: Any, path: str) -> Session:
    session = mulligan.open("memory:").session("run")
    session.state.set("", then)
    point = session.head
    session.state.set("", now)
    session.restore(point, only=[path])
    return session


def test_undo_when_the_part_is_gone_from_both() -> None:
    session = after_selective_restore({"a": 1}, {}, "a")
    session.state.delete("a")
    session.undo()
    assert session.state.get("") == {}


def test_undo_when_something_else_is_in_the_way() -> None:
    session = after_selective_restore({"a": {"b": 1}}, {"a": {"b": 2}}, "a/b")
    session.state.set("a", 5)
    session.undo()
    assert session.state.get("a") == {"b": 2}


def test_undo_of_a_restored_list_item() -> None:
    session = after_selective_restore({"l": [1, 2, 3]}, {"l": [1, 2, 3, 4]}, "l/3")
    assert session.state.get("l") == [1, 2, 3]
    session.undo()
    assert session.state.get("l") == [1, 2, 3, 4]


def test_list_items_that_were_not_there_go_together(session: Session) -> None:
    session.state.set("l", [1, 2])
    then = session.head
    session.state.extend("l", [3, 4])
    session.restore(then, only=["l/2", "l/3"])
    assert session.state.get("l") == [1, 2]


# --- forks -----------------------------------------------------------------------------------


def test_a_fork_has_the_state_of_its_point_and_goes_its_own_way(session: Session) -> None:
    session.state.set("n", 1)
    session.state.set("n", 2)
    fork = session.fork(2, "branch")
    assert fork.state.get("") == {"n": 1}
    assert fork.parent == Point("run", 2)
    fork.state.set("n", "fork")
    session.state.set("n", 3)
    assert (session.state.get("n"), fork.state.get("n")) == (3, "fork")
    assert session.parent is None


def test_a_fork_of_a_fork_of_a_fork(session: Session) -> None:
    session.state.set("path", ["root"])
    branch = session
    for number in range(5):
        branch = branch.fork(branch.head, f"branch {number}")
        branch.state.append("path", number)
    assert branch.state.get("path") == ["root", 0, 1, 2, 3, 4]
    assert [event.seq for event in branch.events()] == list(range(1, 13))
    assert branch.state.at(2).get() == {"path": ["root"]}


def test_a_fork_cannot_undo_what_its_parent_restored(session: Session) -> None:
    session.state.set("n", 1)
    session.restore(1)
    fork = session.fork(session.head)
    with pytest.raises(NothingToUndo):
        fork.undo()
    session.undo()
    assert session.state.get("n") == 1


def test_a_state_can_be_restored_from_another_session(session: Session) -> None:
    session.state.set("n", 1)
    fork = session.fork(1, "branch")
    fork.state.set("n", "fork")
    session.restore("branch:#3")
    assert session.state.get("n") == "fork"
    session.undo()
    assert session.state.get("n") == 1


def test_a_fork_needs_a_free_name(session: Session) -> None:
    with pytest.raises(SessionExists):
        session.fork(1, "run")
    assert session.fork(1).name == "run-fork-1"
    assert session.fork(1).name == "run-fork-2"
    assert session.fork(1).fork(1).name == "run-fork-3-fork-1"
