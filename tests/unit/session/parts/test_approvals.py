"""An effect that needs approval waits durably, and its approval is used once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mulligan import Session, Store
from mulligan.errors import (
    ApprovalPending,
    Conflict,
    EffectDenied,
    EffectInDoubt,
    InvalidEffect,
    StaleLease,
)
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store

INTENT = {"host": "prod", "version": 7, "dry": False}


def asking(store: Store, **options: Any) -> Session:
    """A handle of a program that starts again, under a rule that asks."""
    session = store.session("run")
    session.effects.rule("deploy", approval="ask", **options)
    return session


def deploy(session: Session, intent: Any = None, **options: Any) -> Any:
    """Deploy as an agent does; return what was deployed, None if it was settled before."""
    with session.effect("deploy", intent=intent or INTENT, **options) as effect:
        if effect.settled:
            return None
        effect.result = "ok"
        return effect.intent


def parked(session: Session, **options: Any) -> str:
    with pytest.raises(ApprovalPending):
        deploy(session, **options)
    [effect] = session.approvals.pending()
    return effect.id


def test_it_waits_across_processes_until_it_is_approved(store: Store) -> None:
    id = parked(asking(store))
    assert parked(asking(store)) == id
    approved = store.session("run", actor="cli").approvals.approve(id, note="fine", by="ann")
    assert (approved.status, approved.is_pending) == ("approved", False)
    session = asking(store)
    assert session.approvals.pending() == []
    assert deploy(session) == INTENT
    [effect] = session.effects
    assert effect.status == "done"
    assert effect.question is not None
    assert (effect.question.by, effect.question.note) == ("ann", "fine")
    granted = next(e for e in session.events() if e.kind == "approval.granted")
    assert (granted.actor, granted.payload["by"], granted.payload["note"]) == ("cli", "ann", "fine")


def test_a_checkpoint_is_taken_before_the_act(store: Store) -> None:
    session = asking(store)
    session.approvals.approve(parked(session))
    deploy(session)
    kinds = [event.kind for event in session.events()]
    assert kinds[-3:] == ["checkpoint.created", "effect.intended", "effect.done"]
    [checkpoint] = session.checkpoints()
    assert (checkpoint.kind, checkpoint.note) == ("pre_operation", "before deploy")


def test_an_approval_is_used_once(store: Store) -> None:
    session = asking(store)
    session.approvals.approve(parked(session))
    before = session.checkpoint()
    deploy(session)
    # Another one of the same intent is another question.
    second = parked(session)
    session.approvals.deny(second)
    # Neither a restore of the time when it was approved nor a fork makes it valid again.
    session.restore(before, accept_left_behind=True)
    assert deploy(asking(store)) is None
    fork = session.fork(before, "fork")
    fork.effects.rule("deploy", approval="ask")
    assert deploy(fork) is None
    with pytest.raises(ApprovalPending):
        deploy(fork)


def test_an_open_question_and_an_unused_approval_survive_a_restore(store: Store) -> None:
    session = asking(store)
    start = session.checkpoint()
    id = parked(session)
    session.restore(start)
    assert [effect.id for effect in session.approvals.pending()] == [id]
    session.approvals.approve(id)
    session.restore(start)
    assert deploy(asking(store)) == INTENT


def test_a_fork_does_not_inherit_an_unused_approval(store: Store) -> None:
    session = asking(store)
    session.approvals.approve(parked(session))
    fork = session.fork(session.head, "fork")
    fork.effects.rule("deploy", approval="ask")
    assert fork.effects.list() == []
    with pytest.raises(ApprovalPending):
        deploy(fork)


def test_a_person_denies_it(store: Store) -> None:
    session = asking(store)
    session.approvals.deny(parked(session), note="not on Fridays", by="ann")
    for handle in (session, asking(store)):
        with pytest.raises(EffectDenied, match="denied by ann: not on Fridays"):
            deploy(handle)
    assert [effect.status for effect in session.effects] == ["denied"]


def test_a_deadline_means_denial(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    session = asking(store, timeout=60)
    id = parked(session)
    clock.advance(61)
    # A reader sees it before a writer has written it down.
    assert session.approvals.pending() == []
    assert session.effects.get(id).status == "denied"
    with pytest.raises(Conflict, match="in time"):
        session.approvals.approve(id)
    with pytest.raises(EffectDenied, match="by timeout"):
        deploy(session)
    # Nobody decided, so that the agent may ask again.
    assert parked(session) == id


def test_a_rule_denies_it_as_long_as_it_stands(store: Store) -> None:
    session = store.session("run")
    session.effects.rule("deploy", stakes="high", approval="deny")
    with pytest.raises(EffectDenied, match="by rule"):
        deploy(session, stakes="high")
    assert deploy(session) == INTENT
    assert deploy(store.session("run"), {"host": "other"}, stakes="high") == {"host": "other"}


@pytest.mark.parametrize("answer", [True, False, None])
def test_a_function_of_the_program_answers(store: Store, answer: bool | None) -> None:
    session = asking(store)

    def asked(effect: Any) -> bool | None:
        assert effect.intent == INTENT
        return answer

    session.approvals.answer_with(asked)
    if answer:
        assert deploy(session) == INTENT
        [effect] = session.effects
        assert effect.question is not None
        assert effect.question.by == "asked"
    else:
        with pytest.raises(EffectDenied if answer is False else ApprovalPending):
            deploy(session)


def test_a_call_may_wait_for_the_answer(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    session, person = asking(store), store.session("run")
    polls: list[float] = []

    def sleep(seconds: float) -> None:
        polls.append(seconds)
        clock.advance(seconds)
        if len(polls) == 3:
            person.approvals.approve(person.approvals.pending()[0].id)

    clock.sleep = sleep  # type: ignore[method-assign]
    assert deploy(session, wait=60) == INTENT
    assert len(polls) == 3
    with pytest.raises(ApprovalPending):
        deploy(session, wait=1)
    pending = session.approvals.pending()[0]
    assert session.approvals.wait(pending.id, timeout=1).is_pending


def test_an_edit_changes_the_intent_that_is_acted_on(store: Store) -> None:
    session = asking(store)
    session.approvals.approve(parked(session), edit={"version": 8})
    assert deploy(session) == {"host": "prod", "version": 8, "dry": False}
    assert deploy(asking(store)) is None  # asked with the original intent


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"port": 1}, "no field 'port'"),
        ({"version": "8"}, "'version' is a number"),
        ({"dry": 1}, "'dry' is true or false"),
        ({"host": "other"}, "identify the effect"),
        ([1], "fields"),
    ],
)
def test_an_edit_that_cannot_be_used_is_refused(store: Store, edit: Any, said: str) -> None:
    session = asking(store, identity=["host"])
    id = parked(session)
    with pytest.raises(InvalidEffect, match=said):
        session.approvals.approve(id, edit=edit)
    assert [effect.id for effect in session.approvals.pending()] == [id]


def test_a_second_answer_is_refused(store: Store) -> None:
    session = asking(store)
    id = parked(session)
    session.approvals.approve(id)
    for answer in (session.approvals.approve, session.approvals.deny):
        with pytest.raises(Conflict, match="approved already"):
            answer(id)
    deploy(session)
    with pytest.raises(Conflict, match="is done"):
        session.approvals.approve(id)
    with pytest.raises(Conflict, match="is done"):
        session.effects.settle(id, "done")


def test_a_fenced_agent_cannot_use_an_approval_and_its_successor_can(store: Store) -> None:
    old = store.agent("ops", session="run")
    old.effects.rule("deploy", approval="ask")
    id = parked(old)
    new = store.agent("ops", session="run", steal=True)
    new.effects.rule("deploy", approval="ask")
    store.session("run", actor="cli").approvals.approve(id)
    with pytest.raises(StaleLease):
        deploy(old)
    assert deploy(new) == INTENT


@pytest.mark.parametrize("doubt", [False, True])
def test_a_loop_waits_for_the_answer_and_keeps_its_task(tmp_path: Path, doubt: bool) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    person = store.session("run", actor="cli")
    person.tasks.add("Deploy it", id="deploy")
    session = store.agent("ops", session="run", ttl=10_000)
    session.effects.rule("deploy", approval="auto" if doubt else "ask")
    states: list[Any] = []

    def sleep(seconds: float) -> None:
        clock.advance(seconds)
        states.append((session.agent.get()["state"], session.tasks.get("deploy").status))
        if len(states) == 3:
            [waiting] = person.effects
            if doubt:
                person.effects.settle(waiting.id, "done")
            else:
                person.approvals.approve(waiting.id)

    clock.sleep = sleep  # type: ignore[method-assign]
    cycles = 0
    for cycle in session.loop(checkpoint_interval=10_000, refresh_after=10_000):
        cycles += 1
        with cycle, session.tasks.working() as task:
            assert task is not None
            with session.effect("deploy", INTENT) as effect:
                if doubt and not effect.settled:
                    raise EffectInDoubt("who knows")
        if person.tasks.get("deploy").status == "completed":
            break
    assert states == [("waiting", "in_progress")] * 3
    assert cycles == 2
    assert person.tasks.get("deploy").attempts == 2
