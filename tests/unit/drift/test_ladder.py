"""The ladder of responses: its order, its cooldown, its limits, and the way back to the ground."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mulligan.drift.detector import Alarm
from mulligan.drift.ladder import (
    CHECKPOINT,
    ISOLATE,
    NOTE,
    REFRESH,
    ROLLBACK,
    Response,
    climbed,
    respond,
    with_response,
)
from mulligan.drift.settings import LadderSettings

START = datetime(2026, 1, 1, tzinfo=UTC)
ORDER = [NOTE, CHECKPOINT, REFRESH, REFRESH, REFRESH, ROLLBACK, ROLLBACK, ROLLBACK, ISOLATE]


def alarm(seq: int = 10, *, acts: bool = True) -> Alarm:
    return Alarm("same_result", acts, 0.5, "it loops", (seq - 2, seq), seq)


def climb(
    seconds: float, count: int, settings: LadderSettings, *, without: tuple[str, ...] = ()
) -> list[Response]:
    """Return the responses to alarms that come every so many seconds."""
    earlier: list[Response] = []
    made = []
    for n in range(count):
        now = START + timedelta(seconds=n * seconds)
        earlier = climbed(earlier, now, settings, progressed=False)
        made.append(respond(earlier, alarm(10 * n + 10), now, settings, without))
        earlier = with_response(earlier, made[-1])
    return made


def test_the_rungs_come_in_their_order_and_end() -> None:
    made = climb(61, 12, LadderSettings())
    assert [one.rung for one in made] == [*ORDER, NOTE, NOTE, NOTE]
    assert [one.attempt for one in made] == [1, 1, 1, 2, 3, 1, 2, 3, 1, 0, 0, 0]


def test_during_the_cooldown_alarms_are_only_noted() -> None:
    made = climb(20, 8, LadderSettings())
    assert [one.rung for one in made] == [
        NOTE,
        CHECKPOINT,
        REFRESH,
        NOTE,
        NOTE,
        REFRESH,
        NOTE,
        NOTE,
    ]
    assert [one.wait for one in made] == [0, 0, 0, 40, 20, 0, 40, 20]


@pytest.mark.parametrize("rung", [NOTE, CHECKPOINT, REFRESH, ROLLBACK])
def test_a_rung_can_be_left_out(rung: str) -> None:
    made = climb(61, 9, LadderSettings(**{rung: 0}))
    expected = [one for one in ORDER if one != rung]
    assert [one.rung for one in made if one.attempt] == expected


def test_a_rung_that_cannot_be_taken_is_passed() -> None:
    made = climb(61, 6, LadderSettings(), without=(ROLLBACK,))
    assert [one.rung for one in made] == [*ORDER[:5], ISOLATE]


def test_attempts_are_counted_as_the_settings_say() -> None:
    made = climb(61, 5, LadderSettings(note=0, checkpoint=0, refresh=2, rollback=1))
    assert [one.rung for one in made if one.attempt] == [REFRESH, REFRESH, ROLLBACK, ISOLATE]


def test_a_warning_climbs_nowhere() -> None:
    made = respond([], alarm(acts=False), START, LadderSettings())
    assert (made.rung, made.attempt) == (NOTE, 0)
    assert with_response([], made) == []


def test_an_agent_that_settled_starts_at_the_ground() -> None:
    settings = LadderSettings()
    last = climb(61, 3, settings)
    soon, late = last[-1].at + timedelta(seconds=899), last[-1].at + timedelta(seconds=901)
    assert climbed(last, soon, settings, progressed=False) == last
    assert climbed(last, late, settings, progressed=False) == []


def test_a_completed_task_leads_back_to_the_ground() -> None:
    last = climb(61, 3, LadderSettings())
    assert climbed(last, last[-1].at, LadderSettings(), progressed=True) == []


def test_a_clock_that_was_put_back_does_not_lengthen_the_cooldown() -> None:
    last = climb(61, 3, LadderSettings())
    made = respond(last, alarm(), START - timedelta(days=1), LadderSettings())
    assert (made.rung, made.wait) == (NOTE, 60)


def test_a_response_knows_where_the_evidence_starts() -> None:
    assert respond([], alarm(10), START, LadderSettings()).since == 8
