"""Tasks: a plan that survives, claimed by one agent at a time."""

from __future__ import annotations

import pytest

import mulligan
from mulligan import Session, Store
from mulligan.errors import Conflict, InvalidName, InvalidTask, UnknownTask
from mulligan.session.parts.tasks import health, quarantined, slug


@pytest.fixture
def store() -> Store:
    return mulligan.open("memory:")


@pytest.fixture
def coder(store: Store) -> Session:
    return store.session("work", actor="coder")


@pytest.fixture
def tester(store: Store, coder: Session) -> Session:
    return store.session("work", actor="tester")


def statuses(session: Session) -> dict[str, str]:
    return {task.id: task.status for task in session.tasks}


def test_a_plan_is_added_once_however_often_it_is_added(coder: Session):
    for _ in range(3):
        coder.tasks.plan(["Read the code", {"title": "Write it", "after": ["read-the-code"]}])
    assert statuses(coder) == {"read-the-code": "pending", "write-it": "pending"}
    assert [e.kind for e in coder.events()].count("task.added") == 1


def test_tasks_are_listed_under_their_parents_in_the_order_of_the_plan(coder: Session):
    coder.tasks.plan(["b", "a", {"title": "b1", "parent": "b"}, {"title": "a1", "parent": "a"}])
    assert [task.id for task in coder.tasks] == ["b", "b1", "a", "a1"]


def test_claim_gives_the_first_that_is_ready(coder: Session, tester: Session):
    coder.tasks.plan([{"title": "second", "after": ["first"]}, "first", "third"])
    assert coder.tasks.next() == coder.tasks.get("first")
    claimed = coder.tasks.claim()
    assert claimed is not None
    assert (claimed.id, claimed.owner, claimed.attempts) == ("first", "coder", 1)
    other = tester.tasks.claim()
    assert other is not None
    assert other.id == "third"
    assert store_is_empty_for(tester) == "third"  # it has begun that one
    coder.tasks.complete("first", {"lines": 3})
    assert coder.tasks.get("first").result == {"lines": 3}
    following = coder.tasks.claim()
    assert following is not None
    assert following.id == "second"


def store_is_empty_for(session: Session) -> str | None:
    found = session.tasks.next()
    return None if found is None else found.id


def test_what_was_begun_comes_back_to_its_agent_after_a_crash(store: Store, coder: Session):
    coder.tasks.plan(["one", "two"])
    coder.tasks.claim()
    again = store.session("work", actor="coder").tasks.claim()
    assert again is not None
    assert (again.id, again.attempts) == ("one", 2)


def test_a_parent_is_worked_on_through_its_children_and_done_with_the_last(coder: Session):
    coder.tasks.plan(
        [
            "all",
            {"title": "left", "parent": "all"},
            {"title": "right", "parent": "all"},
            {"title": "right 1", "parent": "right"},
            {"title": "then", "after": ["all"]},
        ]
    )
    seen = []
    while (task := coder.tasks.claim()) is not None:
        seen.append(task.id)
        coder.tasks.complete(task.id)
    assert seen == ["left", "right-1", "then"]
    assert set(statuses(coder).values()) == {"completed"}


def test_a_child_waits_for_what_its_parent_waits_for(coder: Session):
    coder.tasks.plan(["x", {"title": "p", "after": ["x"]}, {"title": "c", "parent": "p"}])
    with pytest.raises(Conflict, match="wait for x"):
        coder.tasks.claim("c")


def test_what_is_skipped_does_not_hold_up_and_what_failed_does(coder: Session):
    coder.tasks.plan(["a", "b", {"title": "c", "after": ["a"]}, {"title": "d", "after": ["b"]}])
    coder.tasks.skip("a", "not needed")
    coder.tasks.fail("b", "no network")
    assert coder.tasks.get("b").error == "no network"
    claimed = coder.tasks.claim()
    assert claimed is not None
    assert claimed.id == "c"
    coder.tasks.complete("c")
    assert coder.tasks.claim() is None
    coder.tasks.retry("b")
    retried = coder.tasks.claim()
    assert retried is not None
    assert (retried.id, retried.attempts, retried.error) == ("b", 1, None)


def test_nobody_ends_what_another_works_on_or_what_is_done(coder: Session, tester: Session):
    coder.tasks.add("a")
    coder.tasks.claim()
    for act in (tester.tasks.complete, tester.tasks.skip, tester.tasks.claim):
        with pytest.raises(Conflict):
            act("a")
    with pytest.raises(Conflict):
        tester.tasks.update("a", progress=0.5)
    coder.tasks.complete("a")
    with pytest.raises(Conflict, match="completed already"):
        coder.tasks.complete("a")
    assert [e.kind for e in coder.events()].count("task.completed") == 1


def test_a_released_task_is_anybodys(coder: Session, tester: Session):
    coder.tasks.add("a")
    coder.tasks.claim()
    tester.tasks.release("a", "its agent is gone")
    claimed = tester.tasks.claim()
    assert claimed is not None
    assert (claimed.owner, claimed.note) == ("tester", "its agent is gone")
    with pytest.raises(Conflict):
        tester.tasks.retry("a")


def test_the_record_of_an_agent_says_what_it_works_on_and_what_it_did(coder: Session):
    coder.agent.update(state="starting")
    coder.tasks.plan(["parse", "lex", "docs"])
    coder.tasks.claim()
    record = coder.agent.get()
    assert (record["state"], record["working_on"]) == ("working", "parse")
    coder.tasks.complete("parse")
    record = coder.agent.get()
    assert (record["working_on"], record["last_action"]) == (None, "completed parse")
    coder.tasks.claim()
    coder.agent.update(state="planning", working_on="the whole grammar")
    coder.tasks.fail("lex", "no time")
    record = coder.agent.get()
    assert (record["working_on"], record["last_action"]) == ("the whole grammar", "failed lex")
    coder.tasks.claim()
    assert coder.agent.get()["state"] == "planning"  # its own word counts


def test_who_has_no_record_gets_none_by_a_task(coder: Session):
    coder.tasks.plan(["parse"])
    coder.tasks.complete(coder.tasks.claim().id)  # type: ignore[union-attr]
    assert coder.agent.get() == {}
    coder.internal.state.set(("agents", coder.actor), "something else")
    coder.tasks.add("lex")
    coder.tasks.claim()
    assert coder.state.get(("agents", coder.actor)) == "something else"


def test_progress_and_note(coder: Session):
    coder.tasks.add("a", data={"file": "x.py"})
    coder.tasks.claim()
    coder.tasks.update("a", progress=0.25, note="reading")
    task = coder.tasks.get("a")
    assert (task.progress, task.note, task.data) == (0.25, "reading", {"file": "x.py"})
    with pytest.raises(InvalidTask):
        coder.tasks.update("a", progress=2)


def test_working_completes_or_fails(coder: Session):
    coder.tasks.plan(["a", "b"])
    with coder.tasks.working() as task:
        assert task is not None
    with pytest.raises(RuntimeError), coder.tasks.working():
        raise RuntimeError("no")
    assert statuses(coder) == {"a": "completed", "b": "failed"}
    assert coder.tasks.get("b").error == "RuntimeError: no"
    with coder.tasks.working() as task:
        assert task is None


@pytest.mark.parametrize(
    ("item", "error"),
    [
        ({"title": ""}, InvalidTask),
        ({"title": "a", "colour": 1}, InvalidTask),
        ({"title": "a", "after": ["nowhere"]}, InvalidTask),
        ({"title": "a", "after": ["a"]}, InvalidTask),
        ({"title": "a", "parent": "a"}, InvalidTask),
        ({"title": "a", "parent": "nowhere"}, InvalidTask),
        ({"title": "a", "after": [f"x{i}" for i in range(65)]}, InvalidTask),
        ({"title": "a", "id": "@a"}, InvalidName),
    ],
)
def test_what_cannot_be_a_task_is_refused_as_a_whole(
    coder: Session, item: dict[str, object], error: type[Exception]
):
    with pytest.raises(error):
        coder.tasks.plan(["fine", item])
    assert len(coder.tasks) == 0


def test_two_tasks_that_wait_for_each_other_are_refused(coder: Session):
    with pytest.raises(InvalidTask, match="itself"):
        coder.tasks.plan([{"title": "a", "after": ["b"]}, {"title": "b", "after": ["a"]}])


def test_an_unknown_task_names_some_that_are_known(coder: Session):
    with pytest.raises(UnknownTask, match=r"no task 'b', nor any other\."):
        coder.tasks.get("b")
    coder.tasks.add("a")
    with pytest.raises(UnknownTask, match="some that are: a"):
        coder.tasks.get("b")


def test_what_a_user_put_there_is_no_task_and_no_harm(coder: Session):
    coder.internal.state.set("tasks", [1, 2])
    assert list(coder.tasks) == []
    coder.internal.state.set("tasks", {"mine": {"title": "x"}})
    coder.tasks.add("a")
    assert statuses(coder) == {"a": "pending"}
    coder.internal.state.delete("tasks/a")
    coder.tasks.plan(["a", {"title": "b", "after": ["a"]}, {"title": "c", "parent": "a"}])
    coder.internal.state.delete("tasks/a")
    claimed = coder.tasks.claim()
    assert claimed is not None
    assert claimed.id == "b"


def test_tasks_come_back_with_a_restore(coder: Session):
    coder.tasks.plan(["a", "b"])
    before = coder.checkpoint()
    coder.tasks.claim()
    coder.tasks.complete("a")
    coder.restore(before, only=["tasks"])
    assert statuses(coder) == {"a": "pending", "b": "pending"}
    coder.undo()
    assert statuses(coder) == {"a": "completed", "b": "pending"}


def test_many_tasks_and_long_results(coder: Session):
    coder.tasks.plan([f"t{i}" for i in range(300)])
    first = coder.tasks.claim()
    assert first is not None
    coder.tasks.complete(first.id, "x" * 10_000)
    assert coder.tasks.get("t0").result == "x" * 10_000
    following = coder.tasks.next()
    assert following is not None
    assert following.id == "t1"


@pytest.mark.parametrize(
    ("title", "id"),
    [
        ("Write the Parser!", "write-the-parser"),
        ("é ü", "é-ü"),
        ("???", "task"),
        ("a" * 99, "a" * 60),
    ],
)
def test_an_id_is_made_of_the_words_of_a_title(title: str, id: str):
    assert slug(title) == id


@pytest.mark.parametrize(
    ("completed", "failed", "expected"),
    [
        (0, 0, "healthy"),
        (4, 1, "healthy"),
        (3, 1, "degraded"),
        (1, 1, "degraded"),
        (1, 2, "unhealthy"),
    ],
)
def test_health_follows_the_share_of_failed_tasks(
    coder: Session, completed: int, failed: int, expected: str
):
    coder.tasks.plan([f"t{i}" for i in range(completed + failed + 1)])
    for number in range(completed + failed):
        task = coder.tasks.claim()
        assert task is not None
        if number < completed:
            coder.tasks.complete(task.id)
        else:
            coder.tasks.fail(task.id, "no")
    assert health(coder.tasks) == expected


def test_a_quarantined_task_is_not_healthy_until_it_is_retried(coder: Session) -> None:
    coder.tasks.plan([f"task {n}" for n in range(10)])
    for task in list(coder.tasks)[1:]:
        coder.tasks.claim(task.id)
        coder.tasks.complete(task.id)
    coder.tasks.claim("task-0")
    coder.tasks.fail("task-0", "quarantined: 3 processes of coder ended")
    assert quarantined(coder.tasks) == ["task-0"]
    assert health(coder.tasks) == "degraded"
    coder.tasks.retry("task-0")
    assert quarantined(coder.tasks) == []
    assert health(coder.tasks) == "healthy"
