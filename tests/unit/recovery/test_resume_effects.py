"""Resuming with effects: what stays in the world is shown, accepted, and told to the agent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mulligan import Session, Store
from mulligan.errors import EffectInDoubt, LeftBehind
from mulligan.recovery import ladder
from mulligan.recovery.plan import attempts, plan_resume
from mulligan.recovery.resume import open_session, resume
from mulligan.supervisor.run import ResumeChoice
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store
from tests.unit.recovery.dead import team


@pytest.fixture
def store() -> Store:
    return open_store("memory:", clock=FakeClock(tick=0.001))


@pytest.fixture
def session(store: Store) -> Session:
    """A team that died after an agent of it had sent a mail."""
    session = team(store, "coder", "tester", plan=("one", "two"))
    session.checkpoint(label="start")
    send(store.session("run", actor="coder"), "one")
    return session


def send(session: Session, key: str) -> None:
    with session.effect("mail.send", {"to": key}, key=key):
        pass


def bring_back(store: Store, accept: bool = False, **how: Any) -> None:
    session = open_session(store, "run")
    try:
        plan = plan_resume(session, **how)
        resume(store, session, msgspec.structs.replace(plan, accepts=accept))
    finally:
        session.close()


def test_by_default_nothing_is_left_behind(store: Store, session: Session) -> None:
    bring_back(store)
    assert [effect.status for effect in session.effects] == ["done"]


def test_going_back_behind_an_effect_has_to_be_accepted(store: Store, session: Session) -> None:
    before = session.head
    with pytest.raises(LeftBehind, match=r"mail\.send"):
        bring_back(store, to="start")
    assert (session.head, attempts(session)) == (before, [])
    bring_back(store, to="start", accept=True)
    assert [effect.status for effect in session.effects] == ["left_behind"]
    [told] = session.state.get("outside").values()
    assert (told["agent"], told["intent"]) == ("coder", {"to": "one"})


def test_an_agent_that_goes_back_alone_leaves_only_its_own_behind(
    store: Store, session: Session
) -> None:
    send(store.session("run", actor="tester"), "two")
    plan = plan_resume(session, to="start", only="coder")
    assert plan.effects is not None
    assert [effect.agent for effect in plan.effects.left_behind] == ["coder"]
    with pytest.raises(LeftBehind):
        bring_back(store, to="start", only="coder")
    bring_back(store, to="start", only="coder", accept=True)
    assert {e.agent: e.status for e in session.effects} == {
        "coder": "left_behind",
        "tester": "done",
    }


def test_a_clean_start_tells_of_everything(store: Store, session: Session) -> None:
    bring_back(store, rung=ladder.CLEAN)
    assert [effect.status for effect in session.effects] == ["left_behind"]
    assert len(session.state.get("outside")) == 1


def test_the_ladder_accepts_what_it_leaves_behind(session: Session) -> None:
    assert ResumeChoice(rung=ladder.GOOD).plan(session, None).accepts
    assert not ResumeChoice(to="start").plan(session, None).accepts
    assert ResumeChoice(to="start", accept_left_behind=True).plan(session, None).accepts


def test_an_effect_in_doubt_survives_recovery_and_quarantine(
    store: Store, session: Session
) -> None:
    with (
        pytest.raises(EffectInDoubt),
        store.session("run", actor="tester").effect("pay", key="1"),
    ):
        raise EffectInDoubt("who knows")
    session.internal.state.set("tasks/one/status", "failed")
    session.internal.state.set("tasks/one/error", "quarantined: it killed its agent")
    bring_back(store)
    [doubt] = session.effects.list(in_doubt=True)
    assert (doubt.name, doubt.agent) == ("pay", "tester")
