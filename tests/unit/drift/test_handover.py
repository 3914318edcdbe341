"""The hand-over of an agent that starts again: short, and with what it needs to go on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mulligan.drift.handover import MAX_CHARACTERS, handover
from mulligan.drift.ladder import REFRESH, ROLLBACK, Response

STATE: dict[str, Any] = {
    "context": {
        "goals": ["ship the release"],
        "constraints": {"budget": "5 dollars"},
        "decisions": [{"what": "use SQLite", "why": "no server"}],
    },
    "tasks": {
        "b": {"title": "fix the bug", "status": "in_progress", "order": 2, "owner": "coder"},
        "a": {"title": "reproduce it", "status": "completed", "order": 1},
        "c": {"title": "test it", "status": "pending", "order": 3},
    },
    "outside": {"e1": {"name": "mail.send", "intent": "to the customer"}},
}


def response(rung: str = REFRESH) -> Response:
    return Response(datetime(2026, 1, 1, tzinfo=UTC), rung, "stall", "nothing got further", 9, 2)


def test_it_has_everything_in_order() -> None:
    assert handover(STATE, "coder", response(), ["pytest failed 3 times"]) == (
        "Your context was cleaned up, because nothing got further. "
        "Do not do the same again; try another way.\n\n"
        "Goals:\n- ship the release\n\n"
        "Constraints:\n- budget: 5 dollars\n\n"
        "Decisions:\n- use SQLite – no server\n\n"
        "Finished:\n- reproduce it\n\n"
        "Open:\n- fix the bug\n- test it\n\n"
        "Tried without success:\n- pytest failed 3 times\n\n"
        "Next:\n- fix the bug\n\n"
        "Already done outside, and not undone:\n- mail.send: to the customer"
    )


def test_a_rollback_is_said() -> None:
    told = handover({}, "coder", response(ROLLBACK), [])
    assert told.startswith("You were taken back to the last good checkpoint, because")


def test_it_stays_short() -> None:
    tasks = {str(n): {"title": "x" * 5000, "status": "pending", "order": n} for n in range(500)}
    told = handover({"tasks": tasks}, "coder", response(), ["y" * 5000] * 50)
    assert len(told) < 40 * MAX_CHARACTERS
    assert "- and 488 more" in told


@pytest.mark.parametrize("odd", [None, 3, "text", [], [None], {"a": None}, {"tasks": 3}])
def test_odd_states_are_no_error(odd: Any) -> None:
    for part in ("context", "tasks", "agents", "outside"):
        told = handover({part: odd}, "coder", response(), [])
        assert told == handover({}, "coder", response(), [])
