"""The views have the documented fields without a command line around them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import mulligan
from mulligan import Digest, PendingRestore, Session, Store
from mulligan.errors import Conflict, NothingToUndo
from mulligan.model import RestoreOrigin
from mulligan.recovery.bisect import Bisected, Trial
from mulligan.recovery.detect import InDoubt, Interruption, LostAgent, OpenOperation
from mulligan.recovery.plan import ResumePlan
from mulligan.recovery.resume_agent import Consumed
from mulligan.recovery.watch import Notice
from mulligan.repair.store import Repaired
from mulligan.supervisor.requests import Answer
from mulligan.supervisor.run import RunOutcome
from mulligan.supervisor.workflow import AgentSpec, Workflow
from mulligan.timeline.losses import Loss
from mulligan.upkeep.heal import DamagedCheckpoint
from mulligan.views.bisect import bisect_view
from mulligan.views.checkpoints import checkpoint_view, labels_view, team_checkpoint_view
from mulligan.views.diffs import diff_view
from mulligan.views.encoding import jsonable, to_json
from mulligan.views.events import event_view, select_events
from mulligan.views.failures import failure_of, failure_view
from mulligan.views.file_diffs import FileContents
from mulligan.views.log import log_page, log_view
from mulligan.views.mail import acknowledged_view, mail_view, sent_view
from mulligan.views.recovery import notice_view, resume_view
from mulligan.views.repair import loss_view, repair_view
from mulligan.views.restores import (
    abandoned_view,
    copy_view,
    preview_restore,
    preview_undo,
    preview_view,
    restored_view,
    unapplied_view,
)
from mulligan.views.sessions import fork_view, session_view, status_view
from mulligan.views.state import written_view
from mulligan.views.stores import made_store_view, moved_store_view, size_on_disk
from mulligan.views.tasks import task_counts, tasks_view
from mulligan.views.teams import pause_view, run_view
from mulligan.views.verify import report_view
from tests.contract import documented, section

ANSWER = Answer("p1", answered=("coder",), late=("slow",), checkpoint="0" * 32, status="paused")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.txt").write_text("one\n")
    return tmp_path / "project"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with mulligan.open(tmp_path / "store") as store:
        yield store


@pytest.fixture
def session(store: Store, project: Path) -> Iterator[Session]:
    """A session with two checkpoints, a task and a message, whose files have changed since."""
    session = store.session("run", actor="coder", workspace=project)
    session.state.set("memory/goal", "first")
    session.checkpoint("manual", label="one")
    session.state.set("memory/goal", "second")
    (project / "a.txt").write_text("two\n")
    session.checkpoint("manual", label="two")
    session.tasks.add("Write it", id="write")
    session.mailbox.send("planner", "Done", requires_ack=True)
    yield session
    session.close()


def test_checkpoints_and_labels(session: Session) -> None:
    taken = session.checkpoints.at("one")
    assert set(checkpoint_view(taken, "good")) == documented("A checkpoint")
    team = team_checkpoint_view(taken, ANSWER)
    assert (team["answered"], team["late"]) == (["coder"], ["slow"])
    assert set(team) == documented("A checkpoint") | documented("checkpoint")
    view = labels_view(session)
    assert set(view) == documented("label")
    assert [label["label"] for label in view["labels"]] == ["two", "one"]


def test_the_log_goes_page_by_page(session: Session) -> None:
    session.restore("one")
    page = log_page(session, 1)
    assert page.more
    view = log_view(session, page)
    assert set(view) == documented("log")
    (entry,) = view["entries"]
    assert (entry["type"], entry["mode"], entry["only"]) == ("restore", "restore", None)
    assert [e["type"] for e in log_view(session, log_page(session))["entries"]] == [
        "restore",
        "checkpoint",
        "checkpoint",
        "checkpoint",
    ]
    assert not log_page(session).more


def test_a_restore_of_parts_is_named_by_them_in_the_log(session: Session) -> None:
    session.restore("one", ["memory", "workspace/a.txt"])
    (entry,) = log_view(session, log_page(session, 1))["entries"]
    assert entry["only"] == ["memory", "workspace/a.txt"]


def test_previews_and_what_came_of_them(session: Session, project: Path) -> None:
    preview = preview_restore(session, "one", None, project)
    view = unapplied_view(preview)
    assert set(view) == documented("restore")
    assert [change["path"] for change in view["files"]] == ["a.txt"]
    assert (view["applied"], view["directory"]) == (False, str(project))

    done = restored_view(session.restore("one"), project, preview_view(preview))
    assert set(done) == documented("restore")
    assert (done["applied"], done["restored_files"]) == (True, 1)

    for mode in ("undo", "redo"):
        seen = unapplied_view(preview_undo(session, mode, project), mode)
        assert (set(seen), seen["mode"]) == (documented(mode), mode)
        taken_back = session.undo() if mode == "undo" else session.redo()
        view = restored_view(taken_back, project)
        assert (set(view), view["mode"], view["changes"]) == (documented(mode), mode, None)


def test_a_copy(session: Session, tmp_path: Path) -> None:
    plan, to = session.internal.plan_copy("one"), tmp_path / "copy"
    dry = copy_view(plan, None, to, None)
    assert set(dry) == documented("restore")
    assert (dry["applied"], dry["mode"], dry["restored_files"]) == (False, "copy", 0)
    done = copy_view(plan, ["workspace"], to, session.files.copy("one", to))
    assert (done["applied"], done["restored_files"]) == (True, len(plan.files))
    assert (done["only"], done["changes"], done["pending"]) == (["workspace"], [], None)


def test_a_pending_restore_that_is_abandoned(session: Session, project: Path) -> None:
    tree = Digest(bytes(32))
    origin = RestoreOrigin(tree, 3)
    pending = PendingRestore("undo", session.point("one"), str(project), origin, tree, tree)
    view = abandoned_view(pending, {"mode": "undo"})
    assert set(view) == documented("restore")
    assert (view["applied"], view["mode"], view["pending"]) == (False, "undo", {"mode": "undo"})
    assert (view["directory"], view["files"]) == (str(project), None)


def test_a_diff_with_patches(session: Session, project: Path) -> None:
    found = session.diff("one", "two")
    contents = FileContents(session, found.before, found.after, project)
    view = diff_view(found, patch=lambda change: contents.patch(change).text)
    assert set(view) == documented("diff")
    (file,) = view["files"]
    assert set(file) == documented("A file change") | {"patch"}
    assert file["patch"].endswith("@@ -1 +1 @@\n-one\n+two\n")
    (changed,) = view["state"]
    assert set(changed) == documented("A difference")
    assert "patch" not in diff_view(found)["files"][0]


def test_why_a_file_has_no_diff(session: Session, project: Path) -> None:
    (project / "large").write_bytes(b"x" * (1 << 20) + b"y")
    (project / "binary").write_bytes(b"\0")
    (project / "gone").write_text("soon\n")
    found = session.diff("two")
    (project / "gone").unlink()
    contents = FileContents(session, found.before, None, project)
    patches = {change.path: contents.patch(change) for change in found.files}
    assert {path: patch.why_not for path, patch in patches.items()} == {
        "binary": "binary",
        "gone": "unreadable",
        "large": "too_large",
    }
    assert {patch.text for patch in patches.values()} == {None}


def test_how_a_session_stands(store: Store, session: Session) -> None:
    view = status_view(store, [session], "run")
    assert set(view) == documented("status")
    assert view["current_session"] == "run"
    (seen,) = view["sessions"]
    assert all(f"`{field}`" in section("status") for field in seen)
    assert (seen["status"], seen["health"], seen["pending"]) == (None, "healthy", None)
    assert seen["checkpoint"]["label"] == "two"


def test_a_session_without_anything_in_it(store: Store) -> None:
    view = session_view(store.session("empty"))
    assert (view["checkpoint"], view["tasks"], view["agents"]) == (None, {}, [])


def test_a_fork(store: Store, session: Session, tmp_path: Path) -> None:
    view = fork_view(session.fork("one", "bold"), tmp_path)
    assert set(view) == documented("fork")
    assert view["parent"] == {"session": "run", "seq": session.point("one").seq}
    assert view["directory"] == str(tmp_path)


def test_tasks_are_counted_without_those_that_have_parts(session: Session) -> None:
    session.tasks.add("Test it", id="test", parent="write")
    session.tasks.complete("test")
    assert task_counts(session) == {
        "pending": 0,
        "in_progress": 0,
        "completed": 1,
        "failed": 0,
        "skipped": 0,
    }
    view = tasks_view(session)
    assert set(view) == documented("tasks list")
    assert [set(task) for task in view["tasks"]] == [documented("A task")] * 2


def test_mail(session: Session) -> None:
    view = mail_view(session)
    assert set(view) == documented("mail list")
    (message,) = view["messages"]
    assert set(message) == documented("A message")
    assert set(sent_view("m1", "planner")) == documented("mail send")
    assert set(acknowledged_view("m1")) == documented("mail ack")


def test_events_and_writes_to_the_state(session: Session) -> None:
    event = next(session.events())
    view = event_view(event)
    assert set(view) == documented("events")
    assert view["hash"] == event.hash.hex()
    assert set(written_view(session, "memory")) == documented("state set")


def test_the_newest_events_of_a_kind(session: Session) -> None:
    def kinds(**choice: object) -> list[str]:
        found = select_events(session, None, session.head, **choice)  # type: ignore[arg-type]
        return [event.kind for event in found]

    everything = [event.kind for event in session.events()]
    assert kinds() == everything
    assert kinds(count=2) == everything[-2:]
    assert kinds(kinds=["state"]) == ["state.set", "state.set"]
    assert kinds(kinds=["state", "mail.sent"], count=2) == ["state.set", "mail.sent"]
    assert kinds(kinds=["stat"]) == []
    after = select_events(session, "two", session.head, count=50)
    assert next(event.seq for event in after) == session.point("two").seq + 1


def test_stores(store: Store, tmp_path: Path) -> None:
    made = made_store_view(tmp_path / "store", tmp_path, ["main"], created=True)
    assert set(made) == documented("init")
    moved = moved_store_view(tmp_path / "old", tmp_path / "new")
    assert (set(moved), moved["moved"]) == (documented("move-store"), True)
    assert not moved_store_view(tmp_path, tmp_path)["moved"]
    assert set(report_view(store.verify())) == documented("verify")


def test_a_repair(store: Store) -> None:
    loss = Loss(files=["a"], file_count=1)
    damaged = DamagedCheckpoint("main", 3, "00" * 16, None, loss)
    found = Repaired((), (), (), (damaged,), {}, (), store.verify())
    view = repair_view(found, None, dry_run=False)
    assert set(view) == documented("verify --repair")
    assert set(loss_view(loss)) == documented("A loss")
    assert set(loss_view(loss)) < set(view["damaged"][0])
    assert repair_view(None, 5, dry_run=False) == {"discarded_bytes": 5}


def test_a_status_names_the_directories(store: Store, session: Session, tmp_path: Path) -> None:
    bold = session.fork("one", "bold", tmp_path / "bold")
    inside = status_view(store, [session, bold])
    assert inside["directory"] == str(tmp_path / "store")
    assert [seen["directory"] for seen in inside["sessions"]] == [
        str(tmp_path / "store"),
        str(tmp_path / "bold"),
    ]


def test_the_size_of_a_store_whose_files_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stays").write_bytes(b"x" * 4096)
    expected = size_on_disk(tmp_path)
    real = os.walk
    monkeypatch.setattr(os, "walk", lambda top: [(r, d, [*f, "vanished"]) for r, d, f in real(top)])
    assert size_on_disk(tmp_path) == expected > 0


def test_a_search_that_could_not_judge_one_checkpoint(session: Session) -> None:
    good, bad = session.checkpoints.at("one"), session.checkpoints.at("two")
    trial = Trial(bad, "skip", 125, 0.1)
    view = bisect_view(session, Bisected(good, (good, bad), (trial,)))
    assert set(view) == documented("bisect")
    assert view["first_bad"] is None
    assert all(f"`{field}`" in section("bisect") for field in view["runs"][0])
    assert [change["path"] for change in view["files"]] == ["a.txt"]


def outcome(status: str, reason: str, *agents: str) -> RunOutcome:
    workflow = Workflow(agents={name: AgentSpec(command=("true",)) for name in agents})
    return RunOutcome("run", workflow, status, reason)


def test_a_run_and_a_pause(session: Session) -> None:
    view = run_view(session, outcome("paused", "SIGTERM", "coder", "never-started"))
    assert set(view) == documented("run")
    coder, other = view["agents"]
    assert all(f"`{field}`" in section("run") for field in coder)
    assert set(other.values()) == {"never-started", None}
    paused = pause_view(session, ANSWER)
    assert set(paused) == documented("pause")
    assert (paused["late"], paused["checkpoint_id"]) == (["slow"], "0" * 32)


def test_a_plan_of_recovery_with_everything_in_it(session: Session) -> None:
    found = Interruption(
        session="run",
        why="its supervisor is gone",
        is_supervised=False,
        agents=(
            LostAgent("coder", "working", "do it", ("write",), 7),
            LostAgent("alive", "working", is_alive=True),
            LostAgent("rested", "done"),
        ),
        last_event=datetime(2026, 1, 1, tzinfo=UTC),
        seconds=1.0,
        checkpoint=None,
        in_doubt=(InDoubt("c1", "pay", "coder", 4),),
        operations=(OpenOperation("0" * 32, "migrate", "coder"),),
        restore=session.point("one"),
    )
    used = Consumed("mail", "m1", "planner", "received", 9)
    plan = ResumePlan("run", "asked", found, session.point("one"), only="coder", consumed=(used,))
    view = resume_view(plan)
    assert set(view) == documented("resume")
    assert (view["applied"], view["start"]) == (False, ["coder"])
    assert set(view["consumed"][0]) == {"what", "id", "by", "how", "seq"}
    seen = view["interruption"]
    assert all(f"`{field}`" in section("resume") for field in seen)
    for part in ("agents", "in_doubt", "operations"):
        assert all(f"`{field}`" in section("resume") for field in seen[part][0])


def test_nothing_to_resume_and_a_run_that_followed(session: Session) -> None:
    assert set(resume_view()) == documented("resume")
    run = run_view(session, outcome("done", "done"))
    view = resume_view(ResumePlan("run", "retry"), None, run)
    assert (view["session"], view["rung"], view["status"]) == ("run", "retry", "done")


def test_a_notice_of_the_watch() -> None:
    view = notice_view(Notice("run", "stopped", "it died", "stop", tried=["retry"]))
    assert all(f"`{field}`" in section("resume") for field in view)
    assert view["tried"] == ["retry"]


def test_a_failure() -> None:
    view = failure_view(failure_of(Conflict("Another value is there.", hint="Read it again.")))
    assert set(view) == documented("Errors")
    assert (view["error"], view["exit_code"], view["retryable"]) == ("Conflict", 43, True)
    assert failure_view(failure_of(NothingToUndo("None.")))["retryable"] is False


def test_what_json_does_not_have() -> None:
    value = {
        "bytes": b"hi",
        "time": datetime(2026, 1, 2, tzinfo=UTC),
        "numbers": (float("nan"), float("inf"), 1.5),
    }
    assert jsonable(value) == {
        "bytes": {"$bytes": "aGk="},
        "time": "2026-01-02T00:00:00+00:00",
        "numbers": [{"$float": "nan"}, {"$float": "inf"}, 1.5],
    }
    assert to_json("é", None) == '"é"'
    assert to_json("é", None, ascii_only=True) == '"\\u00e9"'


def test_every_view_of_a_session_is_json(store: Store, session: Session, project: Path) -> None:
    views = [
        status_view(store, [session]),
        log_view(session, log_page(session)),
        unapplied_view(preview_restore(session, "one", None, project)),
        tasks_view(session),
        mail_view(session),
        *(event_view(event) for event in session.events()),
    ]
    for view in views:
        assert set(json.loads(to_json(view))) == set(view)
