"""Operations: a checkpoint before, a way back after a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import InvalidTask


@pytest.fixture
def session(tmp_path: Path) -> Session:
    store = mulligan.open(tmp_path / "store")
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.txt").write_text("before")
    session = store.session("s", workspace=work)
    session.state.set("memory/x", "before")
    return session


def wreck(session: Session, work: Path) -> None:
    session.state.set("memory/x", "after")
    session.state.set("context/new", 1)
    (work / "a.txt").write_text("after")
    (work / "b.txt").write_text("new")
    raise RuntimeError("half way")


def test_success_keeps_everything_and_leaves_no_operation(session: Session, tmp_path: Path):
    with session.operation("migrate") as operation:
        session.state.set("memory/x", "after")
        assert session.internal.control(("operations", operation.checkpoint.id)) == {
            "agent": "main",
            "name": "migrate",
        }
    assert session.state.get("memory/x") == "after"
    assert session.internal.control("operations") == {}
    assert [(c.kind, c.note) for c in session.checkpoints()] == [("pre_operation", "migrate")]


@pytest.mark.parametrize(
    ("rollback", "state", "file"),
    [
        ("both", "before", "before"),
        ("state", "before", "after"),
        ("workspace", "after", "before"),
        ("none", "after", "after"),
    ],
)
def test_failure_rolls_back_what_was_chosen(
    session: Session, tmp_path: Path, rollback: str, state: str, file: str
):
    work = tmp_path / "work"
    with pytest.raises(RuntimeError), session.operation("migrate", rollback=rollback) as operation:
        wreck(session, work)
    assert session.state.get("memory/x") == state
    assert session.state.get("context") == (None if state == "before" else {"new": 1})
    assert (work / "a.txt").read_text() == file
    assert (work / "b.txt").exists() == (file == "after")
    assert (operation.restored is None) == (rollback == "none")
    assert session.internal.control("operations") == {}
    kept = [c for c in session.checkpoints() if c.kind == "recovery"]
    assert [c.note for c in kept] == ["migrate failed: RuntimeError: half way"]
    assert session.state.at(kept[0]).get("memory/x") == "after"


def test_as_a_decorator_every_call_is_an_operation(session: Session):
    @session.operation("step")
    def step(number: int) -> int:
        session.state.set("memory/n", number)
        if number == 2:
            raise ValueError(number)
        return number

    assert step(1) == 1
    with pytest.raises(ValueError, match="2"):
        step(2)
    assert session.state.get("memory/n") == 1
    notes = [c.note for c in session.checkpoints() if c.kind == "pre_operation" and not c.safety]
    assert notes == ["step", "step"]


def test_what_agents_say_of_themselves_is_not_taken_back(session: Session):
    @session.operation("x", rollback="state")
    def body() -> None:
        session.agent.update(state="working")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        body()
    assert session.agent.get()["state"] == "working"


def test_a_restore_takes_no_operation_back(session: Session):
    before = session.checkpoint()
    with session.operation("x") as operation:
        session.restore(before)
        assert session.internal.control("operations") == {
            operation.checkpoint.id: {"agent": "main", "name": "x"}
        }


def test_a_fork_inherits_no_operation(session: Session):
    with session.operation("x"):
        assert session.fork("@latest").internal.control("operations") is None


def test_an_unknown_rollback_is_refused(session: Session):
    with pytest.raises(InvalidTask):
        session.operation("x", rollback="all")


def test_what_others_did_meanwhile_is_not_taken_back(session: Session, tmp_path: Path):
    other = mulligan.open(tmp_path / "store").session("s", actor="other")
    other.tasks.plan(["mine", "theirs", "next"])
    session.tasks.claim("mine")

    @session.operation("x", rollback="state")
    def body() -> None:
        session.state.set("memory/x", "after")
        session.tasks.complete("mine")
        other.tasks.claim("theirs")
        other.tasks.complete("theirs")
        other.tasks.claim("next")
        other.state.set("memory/y", "theirs")
        other.mailbox.send("main", "hello")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        body()
    statuses = {task.id: task.status for task in session.tasks}
    assert statuses == {"mine": "in_progress", "theirs": "completed", "next": "in_progress"}
    assert session.state.get("memory") == {"x": "before", "y": "theirs"}
    assert [m.subject for m in session.mailbox.waiting()] == ["hello"]


def test_a_list_that_others_wrote_to_stays(session: Session, tmp_path: Path):
    other = mulligan.open(tmp_path / "store").session("s", actor="other")

    @session.operation("x", rollback="state")
    def body() -> None:
        session.state.set("memory/x", "after")
        session.state.append("conversation", "mine")
        other.state.append("conversation", "theirs")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        body()
    assert session.state.get("conversation") == ["mine", "theirs"]
    assert session.state.get("memory/x") == "before"


@pytest.mark.parametrize(("at_work", "file"), [(True, "after"), (False, "before")])
def test_files_stay_while_other_agents_are_at_work(
    session: Session, tmp_path: Path, at_work: bool, file: str
):
    store = mulligan.open(tmp_path / "store")
    other = store.agent("other", session="s")
    other.agent.update(state="working")
    if not at_work:
        other.close()
    with pytest.raises(RuntimeError), session.operation("x"):
        wreck(session, tmp_path / "work")
    assert session.state.get("memory/x") == "before"
    assert (tmp_path / "work" / "a.txt").read_text() == file
    [failed] = [e for e in session.events() if e.kind == "operation.failed"]
    assert failed.payload["rollback"] == ("state" if at_work else "both")
    store.close()


def test_leaving_on_purpose_takes_nothing_back(session: Session):
    @session.operation("x")
    def body() -> None:
        session.state.set("memory/x", "after")
        raise SystemExit(75)

    with pytest.raises(SystemExit):
        body()
    assert session.state.get("memory/x") == "after"
    assert session.internal.control("operations") == {}
