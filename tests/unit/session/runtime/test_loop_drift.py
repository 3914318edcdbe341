"""An agent's own loop notices drift and climbs the ladder; the clock is a fake one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from mulligan import Session, Store
from mulligan.document.fold import event_change
from mulligan.drift.ladder import Response
from mulligan.drift.settings import DriftSettings
from mulligan.errors import AgentIsolated
from mulligan.session.runtime import drift_watch
from mulligan.session.runtime import loop as loops
from mulligan.session.runtime.drift_watch import (
    DriftWatch,
    isolated,
    read_record,
    release,
    respond_all,
)
from mulligan.session.runtime.refresh import roll_back
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store


class Replaced(BaseException):
    """The process would have become another one."""


@pytest.fixture
def store(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Store:
    def execv(path: str, arguments: list[str]) -> None:
        raise Replaced

    monkeypatch.setattr(loops.os, "execv", execv)
    return open_store("memory:", clock=clock)


def call(session: Session, name: str = "search", result: str = "nothing") -> None:
    """Record a call of a tool."""
    session.internal.commit_events(
        lambda _: [
            event_change("tool.returned", call=str(session.head.seq), name=name, result=result)
        ]
    )


def work(
    store: Store, body: Callable[[Session, int], None], cycles: int, checkpoint: bool = False
) -> int:
    """Run an agent's program, as often as it is replaced; return how often that was."""
    replaced = 0
    left = cycles
    while left > 0:
        session = store.agent("coder", session="work")
        try:
            for cycle in session.loop(checkpoint_interval=0 if checkpoint else None):
                with cycle:
                    body(session, cycle.number)
                left -= 1
                if left <= 0:
                    break
            session.close()
            return replaced
        except Replaced:
            replaced += 1
    return replaced


def responses(session: Session) -> list[tuple[str, str]]:
    return [
        (event.payload["signal"], event.payload["rung"])
        for event in session.events()
        if event.kind in ("drift.noted", "drift.responded")
    ]


def looping(clock: FakeClock, seconds: float = 20) -> Callable[[Session, int], None]:
    def body(session: Session, number: int) -> None:
        call(session)
        clock.advance(seconds)

    return body


def test_an_agent_that_loops_is_refreshed_and_finishes(store: Store, clock: FakeClock) -> None:
    def body(session: Session, number: int) -> None:
        clock.advance(20)
        told = session.state.get("conversation", [])
        if told and "another way" in told[0]["content"]:
            call(session, "read", f"page {number}")
        else:
            session.state.append("conversation", {"role": "assistant", "content": f"try {number}"})
            call(session)

    assert work(store, body, 40) == 1
    session = store.session("work")
    assert responses(session) == [
        ("same_result", rung) for rung in ("note", "checkpoint", "refresh")
    ]
    [first, *_] = session.state.get("conversation")
    assert "because 'search' was called 4 times" in first["content"]
    assert session.state.get("agents/coder/handover") == first["content"]
    notes = [c.note for c in session.checkpoints() if c.kind == "recovery"]
    assert len(notes) == 2
    assert all(note and note.startswith("drift, ") for note in notes)


def test_the_context_before_a_refresh_is_in_the_checkpoint(store: Store, clock: FakeClock) -> None:
    def body(session: Session, number: int) -> None:
        session.state.append("conversation", {"role": "assistant", "content": f"try {number}"})
        looping(clock)(session, number)

    work(store, body, 13)
    session = store.session("work")
    before = session.state.at(session.checkpoints()[-1]).get()["conversation"]
    assert [message["content"] for message in before] == [f"try {n}" for n in range(1, 13)]


def test_the_whole_ladder_in_order(store: Store, clock: FakeClock) -> None:
    session = store.agent("coder", session="work")
    session.state.set("memory/plan", "good")
    session.checkpoint("routine")
    session.state.set("memory/plan", "better")
    session.checkpoint("routine")
    session.state.set("memory/plan", "worse")
    session.close()
    assert work(store, looping(clock), 200) == 5
    session = store.session("work")
    assert [rung for _, rung in responses(session)] == [
        *("note", "checkpoint", "refresh", "refresh", "refresh", "rollback", "rollback"),
        "isolate",
    ]
    assert session.state.get("memory/plan") == "good"  # the second rollback went further back
    assert (
        isolated(session)["coder"].why
        == "'search' was called 4 times and returned the same every time"
    )
    assert session.state.get("agents/coder/state") == "suspended"


def test_an_isolated_agent_needs_a_person(store: Store, clock: FakeClock) -> None:
    work(store, looping(clock), 200)
    agent = store.agent("coder", session="work")
    with pytest.raises(AgentIsolated, match="'coder' is isolated: 'search' was called 4 times"):
        next(agent.loop())
    agent.close()
    person = store.session("work")
    assert release(person, "coder", "looked into it")
    assert not release(person, "coder", "again")
    assert work(store, lambda session, number: None, 3) == 0


def test_during_the_cooldown_nothing_is_done_twice(store: Store, clock: FakeClock) -> None:
    assert work(store, looping(clock, seconds=1), 60) == 1
    found = [rung for _, rung in responses(store.session("work"))]
    assert found[:3] == ["note", "checkpoint", "refresh"]
    assert set(found[3:]) <= {"note"}
    assert len(found) <= 5  # noted, but not at every turn


def test_a_completed_task_leads_back_to_the_ground(store: Store, clock: FakeClock) -> None:
    def body(session: Session, number: int) -> None:
        if number == 13:
            session.tasks.add("a", id="a")
            session.tasks.claim()
            session.tasks.complete("a")
        looping(clock)(session, number)

    work(store, body, 18)
    assert [rung for _, rung in responses(store.session("work"))] == [
        *("note", "checkpoint", "refresh"),
        "note",
    ]


def test_drift_can_be_turned_off(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = drift_watch.DriftSettings(enabled=False)
    monkeypatch.setattr("mulligan.session.runtime.loop_drift.settings_of", lambda session: off)
    assert work(store, looping(clock), 40) == 0
    assert responses(store.session("work")) == []


def watch(session: Session) -> DriftWatch:
    return DriftWatch(session, "coder", drift_watch.DriftSettings())


def test_a_new_process_goes_on_where_the_old_one_was(store: Store) -> None:
    """Nothing is written at a kill: what was seen before is read again."""
    session = store.agent("coder", session="work")
    for expected in ([], [], [], ["note"], [], [], [], ["checkpoint"]):
        call(session)
        assert [one.rung for one in watch(session).look()] == expected
    used = [
        seq
        for event in session.events()
        if event.kind.startswith("drift.")
        for seq in event.payload.get("evidence", ())
    ]
    assert len(used) == len(set(used)) == 8


def test_a_restore_resets(store: Store) -> None:
    session = store.agent("coder", session="work")
    before = session.checkpoint()
    for _ in range(3):
        call(session)
    session.restore(before)
    call(session)
    assert watch(session).look() == []


def test_the_state_is_saved_now_and_then(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift_watch, "SAVE_EVENTS", 5)
    session = store.agent("coder", session="work")
    for n in range(12):
        call(session, result=str(n))
        watch(session).look()
    assert read_record(session, "coder").seq >= 10
    saved = [event for event in session.events() if event.kind == "drift.saved"]
    assert 1 <= len(saved) <= 3


def test_events_that_were_skipped_are_saved_less_often(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift_watch, "MAX_SKIPPED", 20)
    session = store.agent("coder", session="work")
    watched = watch(session)
    for seq in range(1, 20):
        watched.skip_to(seq)
        watched.respond()
    assert read_record(session, "coder").seq == 0
    watched.skip_to(20)
    watched.respond()
    assert read_record(session, "coder").seq == 20


def test_the_watches_of_a_team_are_saved_in_one_transaction(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift_watch, "MAX_SKIPPED", 20)
    session = store.agent("coder", session="work")
    watches = [DriftWatch(session, name, DriftSettings()) for name in ("coder", "tester", "new")]
    for watched in watches[:2]:
        watched.skip_to(20)
    commits: list[int] = []
    commit = session.internal.commit_events
    monkeypatch.setattr(
        session.internal, "commit_events", lambda made: (commits.append(1), commit(made))
    )
    assert respond_all(session, watches) == [[], [], []]
    assert respond_all(session, watches) == [[], [], []]
    assert len(commits) == 1
    assert [read_record(session, watched._agent).seq for watched in watches] == [20, 20, 0]


@pytest.mark.parametrize("bad", [7, "x", {"seq": "x"}, {"seq": 1, "detector": b"junk"}])
def test_a_record_that_cannot_be_read_starts_over(store: Store, bad: Any) -> None:
    session = store.agent("coder", session="work")
    control = [[["drift", "coder"], bad]]
    session.internal.commit_events(lambda _: [event_change("drift.saved", control=control)])
    call(session)
    assert watch(session).look() == []


def test_a_session_of_many_events_is_not_read_from_its_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift_watch, "MAX_CATCH_UP", 3)
    session = store.agent("coder", session="work")
    for _ in range(10):
        call(session)
    assert watch(session).look() == []


def test_a_rollback_beside_others_takes_back_only_the_agents_own_tasks(store: Store) -> None:
    coder, tester = store.agent("coder", session="work"), store.agent("tester", session="work")
    for agent in (coder, tester):
        agent.agent.update(state="working")
        agent.tasks.add(f"work of {agent.actor}", id=agent.actor)
        agent.tasks.claim(agent.actor)
    coder.state.set("memory/plan", "good")
    point = coder.checkpoint("routine")
    coder.state.set("memory/plan", "worse")
    coder.tasks.update("coder", progress=0.5)
    tester.tasks.update("tester", progress=0.5)
    response = Response(coder.created, "rollback", "stall", "it stalls", 9, 8, 1, to=point.seq)
    roll_back(coder, "coder", response)
    progress = {task.id: task.progress for task in coder.tasks}
    assert progress == {"coder": None, "tester": 0.5}
    assert coder.state.get("memory/plan") == "worse"
    tester.close()
    roll_back(coder, "coder", response)
    assert coder.state.get("memory/plan") == "good"


class Killed(BaseException):
    """The process would be gone."""


class Killer:
    """Ends the process at the n-th failpoint."""

    def __init__(self) -> None:
        self.left = 0

    def __call__(self, point: object) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


@pytest.mark.parametrize("seed", range(12))
def test_a_kill_at_any_moment_repeats_no_response(
    seed: int, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed many times while the whole ladder is climbed: each rung and all evidence once."""
    random, killer = Random(seed), Killer()

    def execv(path: str, arguments: list[str]) -> None:
        raise Replaced

    monkeypatch.setattr(loops.os, "execv", execv)
    store = open_store("memory:", clock=clock, failpoint=killer)
    store.session("work").state.set("memory/plan", "good")
    store.session("work").checkpoint("routine")
    kills = 0
    while not isolated(store.session("work")):
        killer.left = random.randint(1, 40)
        try:
            agent = store.agent("coder", session="work", steal=True)
            for cycle in agent.loop():
                with cycle:
                    looping(clock)(agent, cycle.number)
        except (Killed, Replaced) as ended:
            kills += isinstance(ended, Killed)
        killer.left = 0
    session = store.session("work")
    taken = [
        event.payload
        for event in session.events()
        if event.kind in ("drift.noted", "drift.responded") and event.payload.get("attempt")
    ]
    assert [fact["rung"] for fact in taken] == [
        *("note", "checkpoint", "refresh", "refresh", "refresh", "rollback"),
        "isolate",
    ]
    used = [seq for fact in taken for seq in fact["evidence"]]
    assert len(used) == len(set(used))
    assert kills > 3, "too little was tried"
    assert store.verify().ok
