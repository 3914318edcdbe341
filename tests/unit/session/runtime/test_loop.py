"""The agent's loop: safe points, routine and recovery checkpoints, requests, refresh."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.document.fold import event_change
from mulligan.errors import InvalidTask, StaleLease
from mulligan.redact import HIDDEN
from mulligan.session.runtime import loop as loops
from mulligan.session.runtime.heartbeat import AgentStep, HeartbeatWriter, read_step
from mulligan.session.write.leases import this_process
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store


@pytest.fixture
def session(clock: FakeClock) -> Session:
    return open_store("memory:", clock=clock).agent("coder", session="work")


def kinds(session: Session) -> list[tuple[str, str | None]]:
    return [(checkpoint.kind, checkpoint.note) for checkpoint in session.checkpoints()]


def test_routine_checkpoints_are_taken_when_they_are_due(session: Session, clock: FakeClock):
    for cycle in session.loop(checkpoint_interval=10):
        with cycle:
            clock.advance(4)
            if cycle.number == 7:
                break
    assert kinds(session) == [("routine", None)] * 2
    last = session.agent.get()["last_cycle"]
    assert (last["number"], last["seconds"], last["error"]) == (7, 4.0, None)


def test_the_default_is_half_an_hour(session: Session, clock: FakeClock):
    for cycle in session.loop():
        with cycle:
            clock.advance(601)
            if cycle.number == 4:
                break
    assert kinds(session) == [("routine", None)]


def test_an_exception_leaves_a_recovery_checkpoint_and_goes_on(session: Session):
    def body() -> None:
        for cycle in session.loop():
            with cycle:
                session.state.set("memory/seen", cycle.number)
                _ = 1 // (2 - cycle.number)

    with pytest.raises(ZeroDivisionError):
        body()
    assert kinds(session) == [
        ("recovery", "cycle 2 failed: ZeroDivisionError: integer division or modulo by zero")
    ]
    assert session.state.at("@latest").get("memory/seen") == 2


def test_a_body_without_with_is_kept_as_well(session: Session):
    def body() -> None:
        for _ in session.loop():
            session.state.set("memory/seen", 1)
            raise KeyError("x")

    with pytest.raises(KeyError):
        body()
    assert kinds(session) == [("recovery", "cycle 1 failed: the loop was left")]


def test_cycles_go_on_counting_in_a_new_process(session: Session):
    for _ in range(2):
        for cycle in session.loop():
            with cycle:
                pass
            if cycle.number % 3 == 0:
                break
    assert session.agent.get()["last_cycle"]["number"] == 6


def ask(session: Session, kind: str, id: str = "r1") -> None:
    request = {"id": id, "kind": kind, "deadline": 1.0}
    session.internal.commit_events(
        lambda _: [event_change("orchestrator.asked", control=[[["request"], request]])]
    )


def test_a_pause_is_answered_at_the_next_safe_point(session: Session):
    done = 0
    for cycle in session.loop():
        with cycle:
            done += 1
            if done == 3:
                ask(session, "pause")
    assert done == 3
    assert session.internal.control("answers/coder") == "r1"
    assert session.agent.get()["state"] == "suspended"


def test_a_team_checkpoint_is_answered_once_with_the_private_state(session: Session):
    ask(session, "checkpoint")
    given = iter(range(100))
    for cycle in session.loop(collect=lambda: {"step": next(given)}):
        with cycle:
            if cycle.number == 3:
                break
    assert session.agent.get()["private"] == {"step": 0}
    assert [e.kind for e in session.events()].count("agent.answered") == 1


def test_after_two_hours_a_supervised_process_asks_to_be_started_again(
    session: Session, clock: FakeClock
):
    session.internal.is_supervised = True
    supervisor = Session(
        session._engine, session._record, "supervisor", session._environment_reader
    )
    supervisor.internal.take(100_000)
    cycles = 0

    def body() -> None:
        nonlocal cycles
        for cycle in session.loop(checkpoint_interval=1e9):
            with cycle:
                cycles += 1
                clock.advance(1800)

    with pytest.raises(SystemExit) as ended:
        body()
    assert (ended.value.code, cycles) == (75, 4)
    assert kinds(session) == [("recovery", "refresh after 2 hours")]


def test_an_agent_whose_supervisor_is_gone_ends_after_a_while(session: Session, clock: FakeClock):
    session.internal.is_supervised = True
    cycles = 0
    for cycle in session.loop():
        with cycle:
            cycles += 1
            clock.advance(10)
    assert cycles == 3
    assert kinds(session) == [("recovery", "the supervisor is gone")]
    assert session.agent.get()["state"] == "suspended"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (2, "2 seconds"),
        (1, "1 second"),
        (90, "1.5 minutes"),
        (7200, "2 hours"),
        (0.5, "0.5 seconds"),
    ],
)
def test_without_a_supervisor_the_process_is_replaced(
    session: Session,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    said: str,
):
    class Replaced(BaseException):
        pass

    def execv(path: str, arguments: list[str]) -> None:
        assert (path, arguments[0]) == (sys.executable, sys.executable)
        raise Replaced

    monkeypatch.setattr(loops.os, "execv", execv)

    def body() -> None:
        for cycle in session.loop(refresh_after=seconds):
            with cycle:
                clock.advance(seconds + 1)

    with pytest.raises(Replaced):
        body()
    assert session.checkpoints()[-1].note == f"refresh after {said}"
    assert session.agent.lease is None  # so that the new process can take it


def test_without_a_supervisor_the_process_is_written_down(
    session: Session, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "orig_argv", ["python", "agent.py", "--api-key", "hush"])
    for died, state in enumerate(("working", "done", "working")):
        for cycle in session.loop(checkpoint_interval=1):
            with cycle:
                clock.advance(2)
                if cycle.number % 2 == 0:
                    break
        known = session.agent.get()
        assert known["process_id"] == os.getpid()
        assert known["identity"] == this_process()
        assert known["command"] == ["python", "agent.py", "--api-key", HIDDEN]
        assert known["directory"] == os.getcwd()
        assert known["environment"] == session.internal.variables
        assert known["restarts"] == died % 2  # as often as it was not done when it began again
        assert known["resources"]["max_rss_bytes"] > 1_000_000
        session.agent.update(state=state)


def test_the_states_of_an_agent(session: Session):
    session.agent.update(state="planning", prompt="Do it", working_on="plan", model="m1")
    seq = session.head.seq
    session.agent.update(state="planning", prompt="Do it")
    assert session.head.seq == seq  # nothing new, no event
    known = session.agent.get()
    assert (known["state"], known["current_prompt"], known["model"]) == ("planning", "Do it", "m1")
    with pytest.raises(InvalidTask):
        session.agent.update(state="asleep")


def test_a_heart_beats_and_says_what_it_expects(tmp_path: Path):
    file, also = tmp_path / "beat", []
    heart = HeartbeatWriter(file, lambda: also.append(1), interval=0.01)
    assert read_step(file) == (0, AgentStep())
    heart.start()
    first, _ = read_step(file)
    heart.expect(12.5, "calling the model")
    beats = {first}
    while len(beats) < 4:
        at, step = read_step(file)
        beats.add(at)
    heart.stop()
    assert step == AgentStep(12.5, "calling the model", number=1)
    assert also


@pytest.mark.parametrize("data", [b"not json", b"[]", b'{"doing":"\xff\xfe"}', b'{"deadline":"x"}'])
def test_a_heartbeat_with_anything_in_it_is_a_sign_of_life_alone(tmp_path: Path, data: bytes):
    (tmp_path / "beat").write_bytes(data)
    at, step = read_step(tmp_path / "beat")
    assert (at > 0, step) == (True, AgentStep())


def test_a_step_has_its_own_deadline(session: Session, tmp_path: Path):
    with session.agent.step("nobody looks", deadline=1):
        pass
    session.agent.heart = HeartbeatWriter(tmp_path / "beat", lambda: None)
    with session.agent.step("model", deadline=60):
        assert read_step(tmp_path / "beat")[1] == AgentStep(60, "model", number=1)
    assert read_step(tmp_path / "beat")[1] == AgentStep(number=2)


def test_an_epoch_is_adopted_and_joined_only_while_it_is_valid(tmp_path: Path):
    store = mulligan.open(tmp_path)
    epoch = store.agent("coder", session="work").agent.lease.epoch  # type: ignore[union-attr]
    child = store.session("work", actor="coder")
    child.internal.adopt(epoch, 30)
    guest = store.session("work", actor="coder")
    guest.internal.join(epoch)
    guest.state.set("x", 1)
    guest.close()
    child.state.set("x", 2)  # a guest's leaving ends nothing
    successor = store.agent("coder", session="work", steal=True)
    for old in (child, guest):
        with pytest.raises(StaleLease):
            old.internal.adopt(epoch, 30)
    with pytest.raises(StaleLease):
        child.state.set("x", 3)
    with pytest.raises(StaleLease):
        store.session("work", actor="coder").internal.join(epoch)
    assert successor.state.get("x") == 2


def test_a_heart_beats_while_the_handle_is_busy(tmp_path: Path):
    session = mulligan.open(tmp_path).agent("coder", session="work")
    heart = HeartbeatWriter(
        tmp_path / "beat", lambda: session.internal.renew(wait=False), interval=0.01
    )
    heart.start()
    until = time.monotonic() + 60
    beats: set[int] = set()
    with session.batch():
        while len(beats) < 5 and time.monotonic() < until:
            beats.add(read_step(tmp_path / "beat")[0])
    heart.stop()
    assert len(beats) == 5


def test_a_handle_that_gave_its_lease_up_writes_no_more(tmp_path: Path):
    store = mulligan.open(tmp_path)
    session = store.agent("coder", session="work")
    session.close()
    with pytest.raises(StaleLease, match="gave the lease"):
        session.state.set("x", 1)
    session.internal.take(30)
    session.state.set("x", 1)
