"""The ladder of recovery, rung by rung."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mulligan.attempts import remembered
from mulligan.recovery.ladder import RUNGS, Attempt, NextRung, judged, next_rung

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def failures(*seconds: float) -> list[Attempt]:
    return [Attempt(at(s), rung, "failed") for s, rung in zip(seconds, RUNGS, strict=False)]


def test_the_first_attempt_loses_nothing_and_waits_for_nothing() -> None:
    assert next_rung([], START) == NextRung("retry", 0.0, 0)


def test_the_rungs_with_their_cooldown() -> None:
    assert next_rung(failures(0), at(10)) == NextRung("good", 50.0, 1)
    assert next_rung(failures(0, 60), at(200)) == NextRung("older", 0.0, 2)


def test_three_attempts_fill_the_window() -> None:
    assert next_rung(failures(0, 60, 120), at(180)) == NextRung("clean", 720.0, 3)
    assert next_rung(failures(0, 60, 120), at(900)) == NextRung("clean", 0.0, 3)


def test_after_the_last_rung_it_stops() -> None:
    assert next_rung(failures(0, 60, 120, 900), at(901)) == NextRung("stop", 0.0, 4)


def test_a_success_leads_back_to_the_ground() -> None:
    worked = Attempt(at(100), "good", "ok")
    assert next_rung([*failures(0, 50), worked], at(101)) == NextRung("retry", 0.0, 0)
    assert next_rung([*failures(0, 50), worked, *failures(500)], at(600)) == NextRung(
        "good", 0.0, 1
    )


def test_what_was_interrupted_itself_has_failed() -> None:
    begun = [Attempt(at(0), "good", "begun", seq=7)]
    assert judged(begun, 1000)[-1].outcome == "failed"


def test_a_session_that_went_on_for_a_while_was_brought_back() -> None:
    prepared = [Attempt(at(0), "retry", "prepared")]
    assert judged(prepared, 59)[-1].outcome == "failed"
    assert judged(prepared, 60)[-1].outcome == "ok"
    assert judged(prepared, 1, progressed=True)[-1].outcome == "ok"
    assert judged([], 0) == []


def test_what_a_person_tries_again_and_again_is_one_rung() -> None:
    again = [Attempt(at(1000 * n), "retry", "failed") for n in range(7)]
    assert next_rung(again, at(10_000)).rung == "good"
    asked = [Attempt(at(0), "asked", "failed", seq=12)]
    assert next_rung(asked, at(10_000)).rung == "good"


def test_a_rung_that_was_passed_is_not_tried_later() -> None:
    assert next_rung([Attempt(at(0), "clean", "failed")], at(10_000)).rung == "stop"


def test_what_a_person_starts_after_the_stop_begins_at_the_ground() -> None:
    stopped = [*failures(0, 60, 120, 900), Attempt(at(1000), "stop", "failed")]
    assert next_rung(stopped, at(1001)) == NextRung("retry", 0.0, 0)
    assert next_rung([*stopped, *failures(2000)], at(2000)) == NextRung("good", 60.0, 1)


def test_only_the_latest_attempts_are_remembered() -> None:
    attempts: list[Attempt] = []
    for second in range(50):
        attempts = remembered(attempts, Attempt(at(second), "retry", "ok"))
    assert len(attempts) == 20
    assert attempts[-1].at == at(49)
