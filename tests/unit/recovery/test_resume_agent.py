"""Bringing back one agent: its own parts, no lost mail, and a list of what others used."""

from __future__ import annotations

from typing import Any

import pytest

import mulligan
from mulligan import Point, Session, Store
from mulligan.errors import PathNotFound, UnknownPoint
from mulligan.recovery.plan import plan_resume
from mulligan.recovery.resume import open_session, resume
from mulligan.recovery.resume_agent import consumed, own_mailbox
from tests.unit.recovery.dead import control, dead

PLAN = [
    "parse",
    "lex",
    {"title": "render", "after": ["parse"]},
    {"title": "test", "after": ["lex"]},
    "docs",
]


@pytest.fixture
def store() -> Store:
    return mulligan.open("memory:")


@pytest.fixture
def session(store: Store) -> Session:
    """Two agents; the checkpoint ``start`` lies in the middle of their work."""
    session = store.session("run")
    session.internal.state.set(
        "orchestrator", {"workflow": {"agents": {"coder": {}, "tester": {}}}}
    )
    session.tasks.plan(PLAN)
    coder, tester = store.session("run", actor="coder"), store.session("run", actor="tester")
    for agent in (coder, tester):
        agent.agent.update(state="working", prompt="at the start")
    coder.mailbox.send("tester", "before", id="before")
    tester.mailbox.send("coder", "old", id="old")
    coder.tasks.claim("parse")
    session.checkpoint(label="start")

    coder.agent.update(prompt="later")
    coder.mailbox.receive()
    coder.tasks.complete("parse")
    coder.mailbox.send("tester", "parsed", id="parsed")
    coder.mailbox.send("tester", "unread", id="unread", priority="low")
    coder.tasks.claim("lex")
    tester.mailbox.send("coder", "new", id="new")
    tester.mailbox.receive()
    tester.mailbox.receive()
    tester.tasks.claim("render")
    coder.tasks.claim("docs")
    control(session, "status", "running")
    for name in ("coder", "tester", "supervisor"):
        dead(session, name)
    return session


def bring_back(store: Store, session: Session) -> None:
    handle = open_session(store, "run")
    resume(store, handle, plan_resume(handle, to="start", only="coder"))
    handle.close()


@pytest.mark.parametrize("only", [None, ["mailbox"], ["mailbox/coder"]])
def test_mail_that_a_restore_took_back_stays_away(
    store: Store, session: Session, only: list[str] | None
) -> None:
    tester = store.agent("tester", session="run", steal=True)
    tester.mailbox.send("coder", "taken back", id="taken back")
    session.restore("start", only)
    tester.mailbox.send("coder", "newer", id="newer")
    bring_back(store, session)
    waiting = [message.id for message in store.session("run", actor="coder").mailbox.waiting()]
    assert waiting == ["old", "newer"]


def test_mail_that_came_again_with_an_undo_is_there(store: Store, session: Session) -> None:
    session.restore("start")
    session.undo()
    bring_back(store, session)
    waiting = [message.id for message in store.session("run", actor="coder").mailbox.waiting()]
    assert waiting == ["old", "new"]


def test_what_others_used_is_listed(session: Session) -> None:
    found = plan_resume(session, to="start", only="coder").consumed
    assert [(one.what, one.id, one.by, one.how) for one in found] == [
        ("mail", "parsed", "tester", "received"),
        ("task", "parse", "tester", "claimed render"),
    ]
    assert consumed(session, "tester", session.point("start")) == []


def test_tasks_that_it_added_and_others_took_are_listed(store: Store) -> None:
    planner, worker = store.session("run", actor="planner"), store.session("run", actor="worker")
    planner.agent.update(state="planning")
    point = planner.head
    planner.tasks.plan(["taken", "free", "own"])
    planner.tasks.claim("own")
    worker.tasks.claim("taken")
    found = consumed(planner, "planner", point)
    assert [(one.what, one.id, one.by, one.how) for one in found] == [
        ("task", "taken", "worker", "claimed")
    ]


def test_what_waited_for_more_than_the_task_itself_is_listed(store: Store) -> None:
    coder, tester = store.session("run", actor="coder"), store.session("run", actor="tester")
    tester.tasks.plan(["parser", {"title": "lex", "parent": "parser"}, "docs"])
    tester.tasks.plan([{"title": "test", "after": ["parser", "docs"]}])
    coder.agent.update(state="working")
    point = coder.head
    coder.tasks.complete("lex")  # and the parser with it
    coder.tasks.skip("docs")
    tester.tasks.claim("test")
    found = consumed(coder, "coder", point)
    assert [(one.id, one.how) for one in found] == [
        ("docs", "claimed test"),
        ("parser", "claimed test"),
    ]


def test_only_its_own_parts_come_back(store: Store, session: Session) -> None:
    bring_back(store, session)
    tasks = {task.id: (task.status, task.owner) for task in session.tasks}
    assert tasks["parse"] == ("in_progress", "coder")
    assert tasks["lex"] == ("pending", None)
    assert tasks["docs"] == ("pending", None)
    assert tasks["render"] == ("in_progress", "tester")
    assert session.state.get("agents/coder/current_prompt") == "at the start"
    assert session.state.get("agents/coder/state") == "waiting"


def test_its_mailbox_goes_back_and_loses_nothing(store: Store, session: Session) -> None:
    assert [m.id for m in session.mailbox.waiting("coder")] == ["new"]
    assert session.mailbox.processed("coder") == 1
    bring_back(store, session)
    assert [m.id for m in session.mailbox.waiting("coder")] == ["old", "new"]
    assert session.mailbox.processed("coder") == 0
    coder = store.agent("coder", session="run")
    assert [coder.mailbox.receive().id for _ in range(2)] == ["old", "new"]  # type: ignore[union-attr]
    assert coder.mailbox.receive() is None


def test_the_mail_of_the_others_stays_as_it_is(store: Store, session: Session) -> None:
    before = session.state.get("mailbox/tester")
    bring_back(store, session)
    assert session.state.get("mailbox/tester") == before
    assert [m.id for m in session.mailbox.waiting("tester")] == ["unread"]


def test_a_task_that_was_added_since_stays_in_the_list(store: Store, session: Session) -> None:
    late = store.session("run", actor="late")
    late.tasks.add("fuzz")
    session.internal.state.set("tasks/fuzz/status", "in_progress")
    session.internal.state.set("tasks/fuzz/owner", "coder")
    bring_back(store, session)
    assert session.tasks.get("fuzz").owner == "coder"  # it goes on with it


def test_wrong_names_and_points(store: Store, session: Session) -> None:
    with pytest.raises(PathNotFound, match=r"no agent 'nobody'.*there are: coder, tester"):
        plan_resume(session, to="start", only="nobody")
    with pytest.raises(UnknownPoint, match="The point to restore 'coder' from"):
        plan_resume(session, only="coder")
    other = session.fork("start", "other")
    other.checkpoint(label="there")
    with pytest.raises(UnknownPoint, match="not on the timeline"):
        plan_resume(session, to=Point("other", other.head.seq), only="coder")


def test_what_happens_between_plan_and_restore_is_not_lost(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = open_session(store, "run")
    plan = plan_resume(handle, to="start", only="coder")
    late = store.session("run", actor="late")
    late.mailbox.send("coder", "late", id="late")

    def worked_out(*given: Any) -> Any:
        found = own_mailbox(*given)
        late.mailbox.send("coder", "latest", id="latest")
        return found

    monkeypatch.setattr("mulligan.recovery.resume.own_mailbox", worked_out)
    resume(store, handle, plan)
    handle.close()
    waiting = [m.id for m in session.mailbox.waiting("coder")]
    assert waiting == ["old", "new", "late", "latest"]


def test_a_task_that_somebody_else_took_meanwhile_is_theirs(store: Store, session: Session) -> None:
    session.internal.state.set("tasks/docs/status", "in_progress")
    session.internal.state.set("tasks/docs/owner", "gone")
    handle = open_session(store, "run")
    plan = plan_resume(handle)
    assert plan.owners == {"docs": "gone"}
    session.internal.state.set("tasks/docs/owner", "late")
    resume(store, handle, plan)
    handle.close()
    assert session.tasks.get("docs").owner == "late"
