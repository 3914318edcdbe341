"""Retention: what is kept, what is removed, and the reasons."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from mulligan.upkeep.retention.policy import DAY, HOUR, WEEK, Policy, Rules
from mulligan.upkeep.retention.rulings import (
    UNDO,
    Candidate,
    RetentionPlan,
    Ruling,
    plan_retention,
    times_by_seq,
)

NOW = datetime(2026, 11, 18, 12, 30, tzinfo=UTC)  # a Wednesday
NOTHING = Rules()
BARE = Policy(
    routine=NOTHING,
    pre_operation=NOTHING,
    recovery=NOTHING,
    manual=NOTHING,
    keep_good=0,
    keep_failed=0,
    undo_window=0,
)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def candidate(seq: int, age: float = 0, kind: str = "routine", **more: Any) -> Candidate:
    fields = {"session": "main", "agent": "coder", "id": f"c{seq}", **more}
    return Candidate(seq=seq, time=ago(age), kind=kind, **fields)


def newest() -> Candidate:
    """Return one that is kept in any case, so that the others are judged by their rules."""
    return candidate(10**6, kind="manual", pinned=True)


def ruling(policy: Policy, judged: Candidate, **more: Any) -> Ruling:
    """Return what happens to one checkpoint that is not the newest of its session."""
    return plan_retention(policy, [judged, newest()], NOW, **more).rulings[0]


def kept(plan: RetentionPlan) -> list[int]:
    return [ruling.seq for ruling in plan.keep if ruling.seq != 10**6]


def plan(policy: Policy, *candidates: Candidate) -> RetentionPlan:
    return plan_retention(policy, [*candidates, newest()], NOW)


def test_routine_checkpoints_are_thinned() -> None:
    every_10_minutes = [candidate(n, (3000 - n) * 600) for n in range(3001)]
    rulings = plan(Policy(), *every_10_minutes).keep
    by_rule = {
        rule: [3000 - ruling.seq for ruling in rulings if ruling.rule == f"routine.{rule}"]
        for rule in ("keep_last", "keep_hourly", "keep_daily")
    }
    # It is 12:30, so the newest of an hour is the one of :50, 40 minutes ago, and so on.
    assert by_rule["keep_last"] == [2, 1, 0]
    assert by_rule["keep_hourly"] == [4 + 6 * n for n in reversed(range(23))]
    assert by_rule["keep_daily"] == [76 + 144 * n for n in reversed(range(1, 6))]


def test_every_reason_is_a_sentence() -> None:
    assert ruling(Policy(), candidate(1, pinned=True)).reason == "It is pinned."
    labelled = ruling(Policy(), candidate(1, label="v1"))
    assert (labelled.rule, labelled.reason) == ("label", "The label 'v1' names it.")
    manual = ruling(Policy(), candidate(1, 999 * DAY, "manual"))
    assert manual.rule == "manual.keep_all"
    assert manual.reason == "All manual checkpoints are kept."
    last = ruling(Policy(), candidate(1))
    assert last.reason == "One of the last 3 routine checkpoints of 'coder'."
    recovery = ruling(Policy(), candidate(1, 5 * DAY, "recovery"))
    assert recovery.reason == "A recovery checkpoint of 'coder' of the last 7d."
    removed = ruling(Policy(), candidate(1, 8 * DAY, "recovery"))
    assert (removed.keep, removed.rule) == (False, "recovery")
    assert removed.reason == "No rule for recovery checkpoints keeps it (recovery: keep_within 7d)."
    general = ruling(Policy(general=Rules(keep_within=DAY)), candidate(1, 8 * DAY, "recovery"))
    assert general.reason.endswith("(recovery: keep_within 7d; all kinds: keep_within 1d).")
    assert ruling(BARE, candidate(1)).reason == "The policy keeps no routine checkpoints."


@pytest.mark.parametrize(
    ("rules", "age", "words"),
    [
        (Rules(keep_hourly=1), 0, "in the hour 2026-11-18 12:00 UTC."),
        (Rules(keep_daily=1), 0, "in the day 2026-11-18 UTC."),
        (Rules(keep_weekly=1), 0, "in the week 2026-W47 UTC."),
        (Rules(keep_monthly=1), 20 * DAY, "in the month 2026-10 UTC."),
    ],
)
def test_a_period_is_named(rules: Rules, age: float, words: str) -> None:
    [made] = [r for r in plan(Policy(routine=rules), candidate(1, age)).rulings if r.seq == 1]
    assert made.reason == f"The newest routine checkpoint of 'coder' {words}"


@pytest.mark.parametrize(
    ("rules", "ages", "expected"),
    [
        # 12:30 and 12:00 are one hour, 11:59 is another one.
        (Rules(keep_hourly=2), [7300, 1860, 1800, 0], [2, 4]),
        (Rules(keep_daily=2), [13 * HOUR, 12.5 * HOUR + 1, 12.5 * HOUR, 0], [2, 4]),
        # Monday 00:00 is 60.5 hours ago.
        (Rules(keep_weekly=2), [5 * DAY, 60.5 * HOUR + 1, 60.5 * HOUR, 0], [2, 4]),
        (Rules(keep_monthly=2), [19 * DAY, 18 * DAY, 17 * DAY, 0], [2, 4]),
        # Only hours that have a checkpoint count.
        (Rules(keep_hourly=3), [90 * DAY, 40 * DAY, 2 * DAY, 0], [2, 3, 4]),
    ],
)
def test_the_newest_of_a_period_in_utc_is_kept(
    rules: Rules, ages: list[float], expected: list[int]
) -> None:
    made = [candidate(n, age) for n, age in enumerate(ages, 1)]
    policy = Policy(routine=rules)
    assert kept(plan(policy, *made)) == expected
    elsewhere = timezone(timedelta(hours=5, minutes=45))
    moved = [
        Candidate(
            session="main",
            agent="coder",
            id=c.id,
            seq=c.seq,
            kind=c.kind,
            time=c.time.astimezone(elsewhere),
        )
        for c in made
    ]
    assert plan(policy, *moved) == plan(policy, *made)


def test_an_operation_keeps_its_checkpoint_until_it_succeeded() -> None:
    policy = Policy(pre_operation=NOTHING)
    old = {"age": 20 * DAY, "kind": "pre_operation"}
    assert ruling(policy, candidate(1, operation="open", **old)).rule == "operation"
    assert ruling(policy, candidate(1, operation="open", **old)).exempt
    assert ruling(policy, candidate(1, operation="failed", **old)).rule == "keep_failed"
    assert not ruling(policy, candidate(1, operation="succeeded", **old)).keep
    assert not ruling(policy, candidate(1, 31 * DAY, "pre_operation", operation="failed")).keep


def test_once_its_operation_succeeded_it_is_like_a_routine_one() -> None:
    done = [candidate(n, 0, "pre_operation", operation="succeeded") for n in range(5)]
    under_way = [candidate(n, 0, "pre_operation", operation="open") for n in range(5, 10)]
    assert kept(plan(Policy(), *done, *under_way)) == [2, 3, 4, *range(5, 10)]


def test_a_safety_checkpoint_stays_while_undo_can_reach_it() -> None:
    def safety(age: float, *needed: str) -> Ruling:
        made = candidate(1, age, "pre_operation", is_safety=True, needed_by=needed)
        return ruling(Policy(), made)

    assert (safety(6 * DAY, UNDO).rule, safety(6 * DAY, UNDO).exempt) == ("undo_window", True)
    assert safety(6 * DAY, UNDO).reason == "Undo can go back to it within 7d."
    assert not safety(8 * DAY, UNDO).keep
    assert (safety(DAY).rule, safety(DAY).exempt) == ("window", False)
    assert safety(DAY).reason == "A safety checkpoint of the last 1d."
    assert not safety(2 * DAY).keep
    assert safety(2 * DAY).reason == "Undo does not reach this safety checkpoint within 7d."
    assert safety(8 * DAY, UNDO, "a pending restore").rule == "needed"


def test_the_rules_of_its_kind_do_not_keep_a_safety_checkpoint() -> None:
    safety = candidate(1, 8 * DAY, "pre_operation", is_safety=True, needed_by=(UNDO,))
    assert not ruling(Policy(pre_operation=Rules(keep_all=True)), safety).keep
    assert not ruling(Policy(pre_operation=Rules(keep_last=9)), safety).keep
    assert ruling(Policy(general=Rules(keep_last=9)), safety).keep


def test_safety_checkpoints_do_not_take_the_place_of_others() -> None:
    before = candidate(1, DAY, "pre_operation")
    safeties = [
        candidate(n, HOUR, "pre_operation", is_safety=True, needed_by=(UNDO,)) for n in range(2, 9)
    ]
    assert 1 in kept(plan(Policy(pre_operation=Rules(keep_last=1)), before, *safeties))


def test_what_something_needs_is_kept_and_the_reason_says_so() -> None:
    needed = candidate(1, 99 * DAY, needed_by=("fork 'x' starts here", UNDO, "an effect"))
    made = ruling(BARE, needed)
    assert (made.keep, made.rule, made.exempt) == (True, "needed", True)
    assert made.reason == "Needed: fork 'x' starts here; an effect."


def test_the_last_good_ones_are_kept_whatever_their_kind() -> None:
    kinds = ["routine", "recovery", "own", "pre_operation", "recovery"]
    made = [candidate(n, 99 * DAY, kind, verdict="good") for n, kind in enumerate(kinds)]
    bad = [candidate(n, 99 * DAY, verdict="bad") for n in range(5, 9)]
    policy = Policy(routine=NOTHING, pre_operation=NOTHING)
    assert kept(plan(policy, *made, *bad)) == [2, 3, 4]
    assert {r.rule for r in plan(policy, *made, *bad).keep} == {"keep_good", "pinned"}


def test_own_kinds_are_like_routine_unless_they_are_named() -> None:
    own = [candidate(n, 99 * DAY, "own") for n in range(5)]
    assert kept(plan(Policy(), *own)) == [2, 3, 4]
    assert kept(plan(Policy(kinds={"own": Rules(keep_last=1)}), *own)) == [4]
    assert plan(Policy(), *own).rulings[4].rule == "routine.keep_last"
    assert plan(Policy(kinds={"own": Rules(keep_last=1)}), *own).rulings[4].rule == (
        "kinds.own.keep_last"
    )


def test_general_rules_count_all_kinds_together() -> None:
    made = [candidate(n, 9 * DAY, "recovery" if n % 2 else "routine") for n in range(6)]
    policy = Policy(general=Rules(keep_last=2), routine=NOTHING)
    assert kept(plan(policy, *made)) == [5]  # the pinned one is a checkpoint of this agent as well
    assert plan(policy, *made).rulings[5].rule == "keep_last"
    assert len(plan(Policy(general=Rules(keep_all=True)), *made).remove) == 0


def test_an_agent_never_touches_one_whose_name_begins_like_its_own() -> None:
    names = ["a-1", "a-10", "a-1 ", "A-1", "a"]
    made = [candidate(n, agent=names[n % 5]) for n in range(50)]
    policy = Policy(routine=Rules(keep_last=2))
    assert kept(plan(policy, *made)) == list(range(40, 50))
    assert kept(plan(policy, *(c for c in made if c.agent == "a-1"))) == [40, 45]


def test_sessions_are_on_their_own() -> None:
    made = [candidate(n, session=session) for session in ("a", "b") for n in range(4)]
    plan = plan_retention(Policy(routine=Rules(keep_last=1)), made, NOW)
    assert [(r.session, r.seq) for r in plan.keep] == [("a", 3), ("b", 3)]


def test_a_policy_that_keeps_nothing_keeps_the_newest_of_each_session() -> None:
    made = [candidate(n, session=session) for session in ("a", "b") for n in range(3)]
    plan = plan_retention(BARE, made, NOW)
    assert [(r.session, r.seq, r.rule) for r in plan.keep] == [
        ("a", 2, "newest"),
        ("b", 2, "newest"),
    ]
    assert plan.keep[0].reason == "The newest checkpoint of session 'a' is always kept."


def test_cleared_kinds_keep_only_what_is_exempt() -> None:
    made = [
        candidate(1, 0, "recovery"),
        candidate(2, 0, "recovery", label="x"),
        candidate(3, 0, "recovery", verdict="good"),
        candidate(4, 0, "recovery", needed_by=("a fork",)),
        candidate(5, 0, "recovery"),
        candidate(6, 0, "routine"),
    ]
    policy = Policy(general=Rules(keep_last=10))
    plan = plan_retention(policy, made, NOW, cleared=["recovery"])
    assert kept(plan) == [2, 3, 4, 6]
    assert plan.rulings[0].rule == "cleared"
    assert plan.rulings[0].reason == "All recovery checkpoints are to be cleared."
    assert kept(plan_retention(policy, made[:1], NOW, cleared=["recovery"])) == [1]


def test_nothing_to_plan() -> None:
    assert plan_retention(Policy(quota=1), [], NOW) == RetentionPlan(rulings=())


# The clock.


def test_a_wrong_clock_never_makes_a_checkpoint_older_than_an_earlier_one() -> None:
    now = NOW.timestamp()

    def ages(*given: float) -> list[float]:
        made = [candidate(n, age) for n, age in enumerate(given)]
        return [now - time for time in times_by_seq(made, now)]

    assert ages(50, 40, 30) == [50, 40, 30]
    assert ages(50, 90, 30) == [50, 50, 30]  # went back
    assert ages(50, -90, 30) == [50, 30, 30]  # was ahead
    assert ages(50, -90, -80) == [50, 0, 0]  # is behind now, or was ahead until the end
    assert ages(50, -90, 70) == [50, 50, 50]
    assert ages(-1, -1) == [0, 0]


@pytest.mark.parametrize(
    "ages",
    [
        [-3650 * DAY, 40, 30, 20],  # a clock that was ten years ahead once
        [50, 40, -3650 * DAY, 20],
        [50, 40, 3650 * DAY, 20],  # and one that was ten years behind
        [50, 3650 * DAY, 3650 * DAY, 3650 * DAY],
        [-9, -9, -9, -9],  # now is behind
    ],
)
def test_a_clock_that_jumped_removes_nothing_that_is_young(ages: list[float]) -> None:
    made = [candidate(n, age, "recovery") for n, age in enumerate(ages)]
    assert kept(plan(Policy(), *made)) == [0, 1, 2, 3]


def test_one_time_in_the_future_does_not_keep_what_follows_for_ever() -> None:
    ages = [30 * DAY, -3650 * DAY, 20 * DAY, 10 * DAY, DAY]
    made = [candidate(n, age, "recovery") for n, age in enumerate(ages)]
    assert kept(plan(Policy(), *made)) == [4]


def test_an_hour_that_the_clock_went_through_twice_counts_twice() -> None:
    ages = [4 * HOUR, 3 * HOUR, 4 * HOUR, 3 * HOUR]  # put back by two hours after the second
    made = [candidate(n, age) for n, age in enumerate(ages)]
    assert kept(plan(Policy(routine=Rules(keep_hourly=24)), *made)) == [0, 1, 2, 3]


def test_times_that_are_nonsense_leave_the_order_of_seqs() -> None:
    made = [candidate(n, (n * 7919 % 97) * DAY) for n in range(40)]
    assert kept(plan(Policy(routine=Rules(keep_daily=5)), *made)) == [35, 36, 37, 38, 39]


# The quota.


def test_the_oldest_go_until_the_store_is_within_its_quota() -> None:
    made = [candidate(n, (9 - n) * HOUR, "recovery", bytes_freed=10) for n in range(10)]
    plan = plan_retention(Policy(quota=45), made, NOW)
    assert (kept(plan), plan.over_quota) == ([6, 7, 8, 9], 0)
    assert plan.rulings[0].rule == "quota"
    assert plan.rulings[0].reason.startswith("The store exceeds its quota of 45 bytes")


def test_what_other_rules_remove_counts_for_the_quota() -> None:
    made = [candidate(n, (9 - n) * 5 * DAY, "recovery", bytes_freed=10) for n in range(10)]
    plan = plan_retention(Policy(quota=25), made, NOW)
    assert (kept(plan), plan.over_quota) == ([8, 9], 0)
    assert {r.rule for r in plan.remove} == {"recovery"}


def test_a_store_that_uses_more_than_its_checkpoints_is_measured_as_a_whole() -> None:
    made = [candidate(n, (9 - n) * HOUR, "recovery", bytes_freed=10) for n in range(10)]
    plan = plan_retention(Policy(quota=1000), made, NOW, used=1035)
    assert kept(plan) == [4, 5, 6, 7, 8, 9]
    assert len(plan_retention(Policy(quota=1000), made, NOW, used=1000).remove) == 0


def test_what_is_exempt_stays_and_the_plan_says_that_the_quota_is_exceeded() -> None:
    more: list[dict[str, Any]] = [
        {"pinned": True},
        {"label": "x"},
        {"needed_by": ("a fork",)},
        {"needed_by": (UNDO,)},
        {"operation": "open"},
        {"verdict": "good"},
        {"kind": "manual"},
        {},
        {"kind": "recovery"},
        {},
    ]
    made = [candidate(n, HOUR, bytes_freed=10, **fields) for n, fields in enumerate(more)]
    plan = plan_retention(Policy(quota=25), made, NOW)
    assert kept(plan) == [0, 1, 2, 3, 4, 5, 6, 9]  # and the newest
    assert plan.over_quota == 55
    assert [r.seq for r in plan.keep if not r.exempt] == []


def test_over_sessions_the_oldest_go_first() -> None:
    made = [
        candidate(n, (2 * (4 - n) + shift) * HOUR, "recovery", session=name, bytes_freed=1)
        for name, shift in (("a", 0), ("b", 1))
        for n in range(5)
    ]
    plan = plan_retention(Policy(quota=6), made, NOW)
    assert [(r.session, r.seq) for r in plan.remove] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_within_a_session_the_quota_follows_the_order_of_seqs() -> None:
    ages = [HOUR, -9 * DAY, 6 * DAY, 2, 1]
    made = [candidate(n, age, "recovery", bytes_freed=1) for n, age in enumerate(ages)]
    for quota in range(1, 6):
        assert kept(plan_retention(Policy(quota=quota), made, NOW)) == list(range(5 - quota, 5))


def test_bytes_that_are_not_known_are_not_counted_as_freed() -> None:
    made = [candidate(n, HOUR, "recovery") for n in range(3)]
    plan = plan_retention(Policy(quota=10), made, NOW, used=30)
    assert (kept(plan), plan.over_quota) == ([2], 20)


def test_the_undo_window_is_a_setting() -> None:
    safety = candidate(1, 2 * WEEK, "pre_operation", is_safety=True, needed_by=(UNDO,))
    assert ruling(Policy(undo_window=3 * WEEK), safety).keep
    assert not ruling(Policy(undo_window=0), safety).keep
