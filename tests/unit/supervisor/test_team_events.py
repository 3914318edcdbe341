"""What the supervisor learns from the events of its team, without the whole document."""

from __future__ import annotations

import pytest

import mulligan
from mulligan import Session
from mulligan.document.fold import event_change
from mulligan.supervisor.team_events import TeamEvents


@pytest.fixture
def session() -> Session:
    return mulligan.open("memory:").session("run")


@pytest.fixture
def events(session: Session) -> TeamEvents:
    """Events of a session that was looked at once."""
    found = TeamEvents(session)
    assert list(found.look(None)) == []
    return found


def looked(events: TeamEvents, since: int | None = None) -> tuple[bool, bool]:
    """Look, and return whether there may be a request, and whether agents may be reverted."""
    list(events.look(since))
    return events.may_ask, events.may_revert


def test_before_the_first_look_anything_may_have_happened(session: Session) -> None:
    events = TeamEvents(session)
    assert looked(events) == (True, True)
    assert looked(events) == (False, False)
    assert looked(TeamEvents(session), since=1) == (True, True)


def test_the_work_of_agents_changes_nothing_that_the_supervisor_relies_on(
    session: Session, events: TeamEvents
) -> None:
    session.state.append("log", "more")
    session.state.put("memory", {"plan": [1]})
    session.checkpoint()
    assert looked(events) == (False, False)


def test_a_request_is_noticed_once(session: Session, events: TeamEvents) -> None:
    request = event_change("orchestrator.asked", control=[[["request"], {"id": "1"}]])
    session.internal.commit_events(lambda _: [request])
    session.state.set("step", 1)
    assert looked(events) == (True, False)
    assert looked(events, since=1) == (False, False)


def test_a_restore_and_a_change_of_the_agents_are_noticed(
    session: Session, events: TeamEvents
) -> None:
    point = session.checkpoint()
    session.state.set("step", 1)
    looked(events)
    session.restore(point)
    assert looked(events)[1]
    change = ("state.set", {"path": ["agents", "a", "process_id"], "value": 1})
    session.internal.commit_events(lambda _: [change])
    assert looked(events) == (False, True)


def test_events_are_given_from_where_they_are_wanted_on(
    session: Session, events: TeamEvents
) -> None:
    first = session.head.seq
    for number in range(3):
        session.state.set("step", number)
    assert [event.seq for event in events.look(None)] == [first + 1, first + 2, first + 3]
    assert [event.seq for event in events.look(first + 1)] == [first + 2, first + 3]
    session.state.set("step", 4)
    assert [event.seq for event in events.look(first + 4)] == [first + 4]


def test_a_look_that_was_broken_off_may_have_missed_anything(
    session: Session, events: TeamEvents
) -> None:
    session.state.set("step", 1)
    session.state.set("step", 2)
    next(events.look(None))
    assert (events.may_ask, events.may_revert) == (True, True)
    assert len(list(events.look(None))) == 2
