"""Resuming in this process: what is kept, what comes back, what is released, what is written."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Session, Store
from mulligan.errors import PathNotFound, RecoveryStopped, StaleLease, StillRunning, UnknownPoint
from mulligan.recovery.detect import gave_up, interruption
from mulligan.recovery.ladder import LadderLimits
from mulligan.recovery.plan import (
    ResumePlan,
    attempts,
    choose,
    good_checkpoints,
    plan_next,
    plan_resume,
    plan_rung,
    tried,
)
from mulligan.recovery.resume import Resumed, open_session, resume, settle, try_out
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store
from tests.unit.recovery.dead import control, dead, team


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(tick=0.001)


@pytest.fixture
def store(clock: FakeClock) -> Store:
    return open_store("memory:", clock=clock)


def bring_back(store: Store, workspace: Path | None = None, **how: Any) -> Resumed:
    session = open_session(store, "run", workspace)
    try:
        return resume(store, session, plan_resume(session, **how))
    finally:
        session.close()


def kinds(session: Session, prefix: str = "recovery.") -> list[str]:
    return [event.kind for event in session.events() if event.kind.startswith(prefix)]


def test_by_default_nothing_is_lost(store: Store) -> None:
    session = team(store, "coder", plan=("one", "two"))
    session.state.set("memory/plan", "keep me")
    before = {k: v for k, v in session.state.get().items() if k != "agents"}
    done = bring_back(store)
    after = {k: v for k, v in session.state.get().items() if k != "agents"}
    assert after == before
    assert done.restored is None
    assert done.plan.next_task == "one"
    assert done.plan.release == ()
    record = session.state.get("agents/coder")
    assert (record["state"], record["process_id"]) == ("waiting", None)
    assert record["current_prompt"] == "do coder"


def test_the_crash_state_is_kept_first_and_every_step_is_written_down(store: Store) -> None:
    session = team(store, "coder", plan=("one",))
    session.checkpoint(label="start")
    session.state.set("memory/x", "of the crash")
    head = session.head.seq
    done = bring_back(store, to="start")
    assert done.checkpoint.kind == "recovery"
    assert session.state.at(done.checkpoint).get("memory/x") == "of the crash"
    assert session.state.get("memory/x") is None
    events = list(session.events(since=head))
    assert [event.kind for event in events][:2] == ["recovery.begun", "checkpoint.created"]
    steps = [event.payload["step"] for event in events if event.kind == "recovery.step"]
    assert steps == ["shared_state", "workspace", "orchestrator", "agents"]
    assert events[-1].kind == "recovery.ended"
    [attempt] = attempts(session)
    assert (attempt.rung, attempt.outcome, attempt.seq) == (
        "asked",
        "prepared",
        session.point("start").seq,
    )


def test_files_come_back_with_the_state(tmp_path: Path) -> None:
    store = mulligan.open(tmp_path / "store")
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.txt").write_text("good\n")
    session = team(store, "coder", plan=("one",))
    store.session("run", workspace=work).checkpoint(label="start")
    (work / "a.txt").write_text("wreck\n")
    (work / "b.txt").write_text("more\n")
    done = bring_back(store, work, to="start")
    assert (work / "a.txt").read_text() == "good\n"
    assert not (work / "b.txt").exists()
    assert done.restored is not None
    assert done.restored.files >= 2
    assert session.files.read(done.checkpoint, "b.txt") == b"more\n"
    store.close()


def test_by_default_files_stay_and_are_kept(tmp_path: Path) -> None:
    store = mulligan.open(tmp_path / "store")
    work = tmp_path / "work"
    work.mkdir()
    team(store, "coder", plan=("one",))
    (work / "a.txt").write_text("not in any checkpoint\n")
    done = bring_back(store, work)
    assert done.checkpoint.workspace is not None
    assert (work / "a.txt").exists()
    store.close()


def test_a_rollback_goes_to_the_good_one(store: Store) -> None:
    session = team(store, "coder")
    for number in range(4):
        session.state.set("memory/n", number)
        session.checkpoint("routine", label=f"c{number}")
    session.checkpoints.mark("c1", "good")
    done = bring_back(store, rollback=True)
    assert session.state.get("memory/n") == 1
    assert done.plan.point is not None
    assert done.plan.point.seq == session.point("c1").seq


def test_without_a_verdict_a_rollback_goes_to_the_latest_that_somebody_took(store: Store) -> None:
    session = team(store, "coder")
    session.state.set("memory/n", 1)
    session.checkpoint("routine", label="c1")
    session.state.set("memory/n", 2)
    session.checkpoint("routine", label="c2")
    session.checkpoints.mark("c2", "bad")
    session.state.set("memory/n", 3)
    session.checkpoint("recovery", note="a crash before")
    session.restore("c2")
    assert [c.label for c in good_checkpoints(session)] == ["c1"]
    bring_back(store, rollback=True)
    assert session.state.get("memory/n") == 1


def test_without_any_checkpoint_there_is_nothing_to_roll_back_to(store: Store) -> None:
    session = team(store, "coder")
    with pytest.raises(UnknownPoint, match="does not have a checkpoint"):
        plan_resume(session, rollback=True)


def test_tasks_of_agents_that_do_not_come_back_are_released(store: Store) -> None:
    session = team(store, "coder", "tester", plan=("one", "two", "three"))
    store.session("run", actor="stranger").tasks.claim()
    session.internal.state.set("agents/tester/state", "done")
    done = bring_back(store)
    assert set(done.plan.release) == {"two", "three"}
    assert [(t.id, t.status, t.owner) for t in session.tasks] == [
        ("one", "in_progress", "coder"),
        ("two", "pending", None),
        ("three", "pending", None),
    ]
    assert store.session("run", actor="coder").tasks.next().id == "one"  # type: ignore[union-attr]


def test_components_are_emptied_after_the_restore(store: Store) -> None:
    session = team(store, "coder", plan=("one",))
    session.state.set("memory", {"a": 1})
    session.state.set("conversation", ["hello"])
    bring_back(store, reset=("memory", "conversation"))
    assert session.state.get("memory") == {}
    assert session.state.get("conversation") == []
    with pytest.raises(PathNotFound, match="no component 'nothing'"):
        plan_resume(session, reset=("nothing",))


def test_what_was_asked_of_the_agents_is_forgotten(store: Store) -> None:
    operation = store.session("run", actor="coder").operation("risky")
    operation.__enter__()
    session = team(store, "coder")
    control(session, "request", {"id": "1", "kind": "pause", "deadline": 1.0})
    control(session, "answers/coder", "1")
    bring_back(store)
    assert session.internal.control("request") is None
    assert session.internal.control("answers") is None
    assert session.internal.control("operations") == {}
    assert session.internal.control("status") == "running"


def test_processes_of_before_cannot_write_any_more(store: Store) -> None:
    old = store.agent("coder", session="run")
    old.agent.update(state="working")
    session = store.session("run")
    control(session, "status", "running")
    dead(session, "supervisor")
    found = interruption(session)
    assert found is not None
    assert found.agents[0].is_alive
    bring_back(store)
    with pytest.raises(StaleLease):
        old.state.set("a", 1)


def test_without_a_supervisor_the_living_are_left_alone(store: Store) -> None:
    alive = store.agent("alive", session="run")
    alive.agent.update(state="working")
    session = store.session("run", actor="lost")
    session.agent.update(state="working", process_id=7)
    dead(session, "lost")
    done = bring_back(store)
    alive.state.set("still", "writing")
    assert session.state.get("agents/alive/state") == "working"
    assert session.state.get("agents/lost/state") == "suspended"
    assert done.plan.workflow is None
    assert interruption(session) is None


def test_two_cannot_resume_at_once(store: Store) -> None:
    team(store, "coder")
    open_session(store, "run")
    with pytest.raises(StillRunning, match="'run' is being run"):
        open_session(store, "run")


def test_a_dry_run_changes_nothing(store: Store) -> None:
    session = team(store, "coder", plan=("one",))
    session.checkpoint()
    head = session.head
    plan = plan_resume(session, rollback=True, reset=("tasks",))
    assert isinstance(plan, ResumePlan)
    assert session.head == head


def test_an_attempt_that_died_itself_is_finished(store: Store, monkeypatch: Any) -> None:
    session = team(store, "coder", plan=("one",))
    session.checkpoint(label="start")
    session.state.set("memory/x", 1)
    handle = open_session(store, "run")
    with monkeypatch.context() as patched:
        patched.setattr(Session, "restore", _killed)
        patched.setattr("mulligan.recovery.resume.settle", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            resume(store, handle, plan_resume(handle, to="start", reset=("tasks",)))
    handle.internal.release()
    assert session.state.get("memory/x") == 1
    done = bring_back(store)
    assert done.plan.continues
    assert session.state.get("memory/x") is None
    assert session.state.get("tasks") == {}
    assert [a.outcome for a in attempts(session)] == ["failed", "prepared"]


def test_an_attempt_that_was_killed_is_finished_unattended_but_only_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = team(store, "coder", plan=("one",))
    session.checkpoint(label="start")
    session.state.set("memory/x", 1)
    rungs = []
    for _ in range(3):
        handle = open_session(store, "run")
        first = plan_resume(handle, to="start", only="coder")
        plan = plan_next(handle) if rungs else first
        rungs.append((plan.rung, plan.only, plan.continues))
        with monkeypatch.context() as patched:
            patched.setattr("mulligan.recovery.resume._restore", _killed)
            patched.setattr("mulligan.recovery.resume.settle", lambda *_: None)
            with pytest.raises(KeyboardInterrupt):
                resume(store, handle, plan)
        handle.internal.release()
    assert rungs == [("asked", "coder", False), ("asked", "coder", True), ("good", None, False)]
    assert session.state.get("memory/x") == 1


def test_an_attempt_after_which_the_work_went_on_is_not_finished_later(
    store: Store, monkeypatch: Any
) -> None:
    session = team(store, "coder", plan=("one",))
    session.checkpoint(label="start")
    handle = open_session(store, "run")
    with monkeypatch.context() as patched:
        patched.setattr(Session, "restore", _killed)
        patched.setattr("mulligan.recovery.resume.settle", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            resume(store, handle, plan_resume(handle, to="start"))
    handle.internal.release()
    session.state.set("memory/x", "hours of work")
    done = bring_back(store)
    assert not done.plan.continues
    assert session.state.get("memory/x") == "hours of work"


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_failure_is_written_down(store: Store, monkeypatch: Any) -> None:
    session = team(store, "coder")
    session.checkpoint(label="start")
    with monkeypatch.context() as patched:
        patched.setattr(Session, "restore", _broken)
        with pytest.raises(OSError, match="no such luck"):
            bring_back(store, to="start")
    [attempt] = attempts(session)
    assert (attempt.outcome, attempt.error) == ("failed", "OSError: no such luck")


def _broken(*_: Any, **__: Any) -> None:
    raise OSError("no such luck")


def test_the_ladder_from_the_bottom_to_the_top(store: Store, clock: FakeClock) -> None:
    session = team(store, "coder", plan=("one", "two"))
    for number in range(3):
        session.state.set("memory/n", number)
        session.checkpoint("routine", label=f"c{number}")
    session.state.set("memory/n", "head")
    went = []
    for _ in range(4):
        clock.advance(1000)
        handle = open_session(store, "run")
        done = resume(store, handle, plan_next(handle))
        settle(handle, done.at, "failed", "the team did not live")
        handle.close()
        went.append((done.plan.rung, session.state.get("memory/n")))
    assert went == [("retry", "head"), ("good", 2), ("older", 1), ("clean", None)]
    assert [task.status for task in session.tasks] == ["pending", "pending"]
    assert session.state.get("orchestrator/workflow/agents/coder") is not None
    assert session.state.get("agents/coder") == {
        "state": "starting",
        "process_id": None,
        "identity": None,
    }
    clock.advance(1000)
    handle = open_session(store, "run")
    with pytest.raises(RecoveryStopped, match="failed 4 times"):
        resume(store, handle, plan_next(handle))
    handle.close()
    assert session.internal.control("status") == "failed"
    assert session.state.get("agents/coder/state") == "suspended"
    assert attempts(session)[-1].rung == "stop"
    end = gave_up(session)
    assert end is not None
    assert end.tried == ["retry", "good", "older", "clean"]
    assert end.why == "its supervisor is gone"


def test_somebody_who_goes_on_after_the_end_begins_at_the_ground(store: Store) -> None:
    session = team(store, "coder", plan=("one",))
    for rung in ("clean", "stop"):
        handle = open_session(store, "run")
        with contextlib.suppress(RecoveryStopped):
            resume(store, handle, plan_rung(handle, rung))
        handle.close()
    assert gave_up(session) is not None
    bring_back(store)
    assert gave_up(session) is None
    assert attempts(session)[-1].rung == "retry"
    control(session, "status", "running")
    dead(session, "supervisor")
    assert choose(session).rung == "clean"  # there is no checkpoint to go back to


def test_what_a_person_writes_is_no_sign_that_the_session_lived(
    store: Store, clock: FakeClock
) -> None:
    session = team(store, "coder", plan=("one", "two"))
    bring_back(store)
    clock.advance(600)
    store.session("run", actor="cli").checkpoint("routine")
    store.session("run", actor="cli").tasks.complete("two")
    assert tried(session)[-1].outcome == "failed"
    store.session("run", actor="coder").agent.update(last_action="at work")
    assert tried(session)[-1].outcome == "ok"


def test_a_restore_that_takes_long_is_no_sign_of_life(store: Store, clock: FakeClock) -> None:
    session = team(store, "coder", plan=("one",))
    handle = open_session(store, "run")
    plan = plan_rung(handle, "retry")
    clock.tick = 30.0
    resume(store, handle, plan)
    clock.tick = 0.0
    handle.close()
    store.session("run", actor="coder").agent.update(last_action="begun")
    assert tried(session)[-1].outcome == "failed"


def test_agents_that_say_nothing_have_lived_when_the_time_is_over(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        session = team(store, "coder")
        at = bring_back(store).at

        def run() -> str:
            end = time.monotonic() + 60
            while attempts(session)[-1].outcome != "ok" and time.monotonic() < end:
                time.sleep(0.01)
            return "failed"

        assert try_out(session, at, run, LadderLimits(settled=0.05)) == "failed"
        assert attempts(session)[-1].outcome == "ok"


def test_one_that_was_replaced_says_nothing_of_the_next_attempt(store: Store) -> None:
    session = team(store, "coder", plan=("one",))
    session.checkpoint("routine")
    first = bring_back(store)

    def run() -> str:
        bring_back(store)  # somebody else: this one was stopped for too long
        raise StaleLease("The lease of 'supervisor' is held by another process.")

    with pytest.raises(StaleLease):
        try_out(session, first.at, run)
    assert [attempt.outcome for attempt in attempts(session)] == ["failed", "prepared"]
    settle(session, first.at, "ok")
    assert attempts(session)[-1].outcome == "prepared"


def test_no_restore_takes_back_how_often_an_agent_was_restarted(store: Store) -> None:
    session = team(store, "coder")
    session.internal.state.set("agents/coder", {"state": "waiting"})
    session.checkpoint(label="before it ran")
    session.internal.state.set("agents/coder", {"state": "working", "process_id": 7, "restarts": 3})
    bring_back(store, to="before it ran")
    record = session.state.get("agents/coder")
    assert (record["restarts"], record["process_id"]) == (3, None)


def test_a_component_that_is_not_there_yet_is_not_emptied(store: Store) -> None:
    session = team(store, "coder")
    plan = plan_resume(session, reset=("memory", "tasks"))
    assert (plan.reset, plan.absent) == ((), ("memory", "tasks"))
    session.tasks.plan(["one"])
    plan = plan_resume(session, reset=("memory", "tasks"))
    assert (plan.reset, plan.absent, plan.next_task) == (("tasks",), ("memory",), None)
    bring_back(store, reset=("memory", "tasks"))
    assert "memory" not in session.state.get()


def test_a_rung_with_nothing_to_go_back_to_is_passed(store: Store, clock: FakeClock) -> None:
    session = team(store, "coder", plan=("one",))
    at = bring_back(store).at
    handle = open_session(store, "run")
    settle(handle, at, "failed")
    assert plan_next(handle).rung == "clean"
    assert session.head.seq == handle.head.seq


def test_a_session_that_got_something_done_was_brought_back(store: Store) -> None:
    team(store, "coder", plan=("one", "two"))
    bring_back(store)
    handle = open_session(store, "run")
    assert plan_next(handle).rung == "clean"  # it did not live, and has no checkpoint
    store.session("run", actor="coder").tasks.complete("one")
    assert plan_next(handle).rung == "retry"


def test_the_team_is_kept_when_the_point_lies_before_it(store: Store) -> None:
    store.session("run").checkpoint(label="empty")
    session = team(store, "coder")
    done = bring_back(store, to="empty")
    assert done.plan.workflow is not None
    assert session.state.get("orchestrator/workflow/agents/coder") is not None
