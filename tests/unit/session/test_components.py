"""Components with an API of their own are written through it alone, and read like all others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import mulligan
from mulligan import Session, State
from mulligan.errors import InvalidPath
from mulligan.session.components import COMPONENTS, component, merge_unit


@pytest.fixture
def session() -> Session:
    session = mulligan.open("memory:").session("run")
    session.tasks.add("Build", id="build")
    return session


WRITES: dict[str, Callable[[State, str], None]] = {
    "set": lambda state, path: state.set(path, {}),
    "put": lambda state, path: state.put(path, {}),
    "append": lambda state, path: state.append(path, 1),
    "extend": lambda state, path: state.extend(path, [1]),
    "delete": lambda state, path: state.delete(path),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("path", ["tasks", "tasks/build", "mailbox/a", "agents/a", "orchestrator"])
def test_the_state_refuses_them_and_names_their_api(
    session: Session, write: str, path: str
) -> None:
    before = session.state.get(), session.head
    with pytest.raises(InvalidPath) as refused:
        WRITES[write](session.state, path)
    api = component(path.split("/")[0]).api
    assert api is not None
    assert api in refused.value.hint
    assert (session.state.get(), session.head) == before


def test_they_are_read_like_all_others(session: Session) -> None:
    assert session.state.get("tasks/build/title") == "Build"
    assert session.state.at(session.head).get("tasks/build/status") == "pending"


@pytest.mark.parametrize("write", ["set", "put"])
def test_a_whole_state_may_hold_them_as_they_are(session: Session, write: str) -> None:
    whole = {**session.state.get(), "memory": {"goal": "ship"}}
    getattr(session.state, write)("", whole)
    assert session.state.get() == whole
    for wrong in ({}, {**whole, "tasks": {}}, {**whole, "agents": {"a": {}}}):
        with pytest.raises(InvalidPath):
            getattr(session.state, write)("", wrong)
    assert session.state.get() == whole


def test_a_batch_with_a_refused_write_writes_nothing(session: Session) -> None:
    head = session.head

    def both() -> None:
        with session.batch():
            session.state.set("memory/goal", "ship")
            session.state.set("agents/coder/state", "working")

    with pytest.raises(InvalidPath):
        both()
    assert session.head == head


def test_records_of_tasks_and_mailboxes_merge_as_a_whole() -> None:
    assert merge_unit(("tasks", "build", "status")) == ("tasks", "build")
    assert merge_unit(("mailbox", "coder", "inbox", "m1")) == ("mailbox", "coder")
    assert merge_unit(("agents", "coder", "state")) == ("agents", "coder", "state")
    assert merge_unit(("memory", "a", "b")) == ("memory", "a", "b")
    assert merge_unit(()) == ()


def test_the_table_says_what_each_component_holds() -> None:
    assert {name for name, known in COMPONENTS.items() if known.api} == {
        "agents",
        "effects",
        "mailbox",
        "orchestrator",
        "outside",
        "steps",
        "tasks",
        "tools",
    }
    assert all(known.holds for known in COMPONENTS.values())
    assert component("of the application").clean_start == "removed"
