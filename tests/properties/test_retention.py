"""Retention for any policy, any checkpoints and any clock."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mulligan.config.tables import TableReader
from mulligan.errors import InvalidConfig
from mulligan.upkeep.retention.policy import DAY, HOUR, Policy, Rules, parse_policy
from mulligan.upkeep.retention.rulings import UNDO, Candidate, RetentionPlan, Ruling, plan_retention

NOW = datetime(2026, 11, 18, 12, 30, tzinfo=UTC)
AGENTS = ["a-1", "a-10", "b"]
KINDS = ["routine", "pre_operation", "recovery", "manual", "own", "nightly", "prompt", "tools"]
SPANS = st.sampled_from([0.0, HOUR, 3 * HOUR, DAY, 5 * DAY, 40 * DAY])
LIMITS = {
    "keep_last": st.integers(0, 4),
    "keep_within": SPANS,
    "keep_hourly": st.integers(0, 4),
    "keep_daily": st.integers(0, 4),
    "keep_weekly": st.integers(0, 3),
    "keep_monthly": st.integers(0, 3),
}
RULES = st.just(Rules(keep_all=True)) | st.builds(Rules, **LIMITS)
POLICIES = st.builds(
    Policy,
    general=st.builds(Rules, **LIMITS),
    routine=RULES,
    pre_operation=RULES,
    recovery=RULES,
    manual=RULES,
    kinds=st.dictionaries(st.sampled_from(["nightly", "tools"]), RULES),
    keep_good=st.integers(0, 3),
    keep_failed=SPANS,
    undo_window=SPANS,
    quota=st.none(),
)

AGES = st.one_of(
    st.floats(0, 3 * HOUR), st.floats(0, 10 * DAY), st.floats(0, 100 * DAY), st.floats(-DAY, 0)
)
"""In seconds, before now and after it."""

NEEDED = st.lists(st.sampled_from([UNDO, "fork 'x' starts here"]), max_size=2).map(tuple)
FACTS = st.fixed_dictionaries(
    {
        "agent": st.sampled_from(AGENTS),
        "kind": st.sampled_from(KINDS),
        "bytes_freed": st.none() | st.integers(0, 50),
    },
    optional={
        "label": st.sampled_from([None, None, None, "v1"]),
        "pinned": st.sampled_from([False, False, False, True]),
        "verdict": st.sampled_from([None, "good", "bad"]),
        "is_safety": st.booleans(),
        "operation": st.sampled_from([None, "open", "succeeded", "failed"]),
        "needed_by": NEEDED,
    },
)


@st.composite
def histories(draw: st.DrawFn, *, any_clock: bool = True) -> list[Candidate]:
    """Return the checkpoints of one or two sessions, under a clock that may jump."""
    made = []
    for session in ("s", "t")[: draw(st.integers(1, 2))]:
        facts = draw(st.lists(FACTS, max_size=14))
        ages = draw(st.lists(AGES, min_size=len(facts), max_size=len(facts)))
        if not any_clock or draw(st.booleans()):
            ages = sorted((max(age, 0) for age in ages), reverse=True)
        made += [
            Candidate(
                session=session,
                id=f"{session}{seq}",
                seq=seq,
                time=NOW - timedelta(seconds=age),
                **fact,
            )
            for seq, (fact, age) in enumerate(zip(facts, ages, strict=True))
        ]
    return made


HISTORIES = histories()


def names(rulings: tuple[Ruling, ...]) -> set[tuple[str, int]]:
    return {(ruling.session, ruling.seq) for ruling in rulings}


def remaining(history: list[Candidate], plan: RetentionPlan) -> list[Candidate]:
    kept = names(plan.keep)
    return [candidate for candidate in history if (candidate.session, candidate.seq) in kept]


@given(POLICIES, HISTORIES, st.none() | st.integers(1, 500))
def test_every_checkpoint_has_one_ruling_with_a_reason(
    policy: Policy, history: list[Candidate], quota: int | None
) -> None:
    plan = plan_retention(msgspec.structs.replace(policy, quota=quota), history, NOW)
    assert len(plan.rulings) == len(history) == len(plan.keep) + len(plan.remove)
    assert names(plan.rulings) == {(c.session, c.seq) for c in history}
    for ruling in plan.rulings:
        assert ruling.rule
        assert ruling.reason.endswith(".")
        assert ruling.reason[0].isupper()
        assert "0s" not in ruling.reason or not ruling.keep


@given(POLICIES, HISTORIES, st.none() | st.integers(1, 500))
def test_what_is_kept_for_its_own_sake_is_never_removed(
    policy: Policy, history: list[Candidate], quota: int | None
) -> None:
    policy = msgspec.structs.replace(policy, quota=quota)
    removed = names(plan_retention(policy, history, NOW, cleared=KINDS).remove)
    for candidate in history:
        needed = set(candidate.needed_by) - {UNDO}
        if candidate.pinned or candidate.label or needed or candidate.operation == "open":
            assert (candidate.session, candidate.seq) not in removed
    for session in {candidate.session for candidate in history}:
        newest = max(c.seq for c in history if c.session == session)
        assert (session, newest) not in removed


@given(POLICIES, HISTORIES)
def test_what_a_rule_keeps_is_never_removed(policy: Policy, history: list[Candidate]) -> None:
    """Each rule by itself, worked out in the plainest way, against the plan of all of them."""
    removed = names(plan_retention(policy, history, NOW).remove)
    for candidate in history:
        if plainly_kept(policy, history, candidate):
            assert (candidate.session, candidate.seq) not in removed


def plainly_kept(policy: Policy, history: list[Candidate], candidate: Candidate) -> bool:
    age = (NOW - candidate.time).total_seconds()
    later = [
        other
        for other in history
        if (other.session, other.agent) == (candidate.session, candidate.agent)
        and other.seq > candidate.seq
    ]
    alike = [
        other
        for other in later
        if other.kind == candidate.kind and not other.is_safety and other.operation != "open"
    ]
    rules = policy.rules_of(candidate.kind)[1]
    good = sum(other.verdict == "good" for other in later)
    return (
        plainly_limited(policy.general, age, len(later))
        or (not candidate.is_safety and plainly_limited(rules, age, len(alike)))
        or (candidate.verdict == "good" and good < policy.keep_good)
        or (UNDO in candidate.needed_by and plainly_within(age, policy.undo_window))
        or (candidate.operation == "failed" and plainly_within(age, policy.keep_failed))
    )


def plainly_limited(rules: Rules, age: float, later: int) -> bool:
    return rules.keep_all or later < rules.keep_last or plainly_within(age, rules.keep_within)


def plainly_within(age: float, limit: float) -> bool:
    """A time in the future says nothing: the checkpoint is as old as the next one."""
    return limit > 0 and 0 <= age <= limit


@given(POLICIES, histories(any_clock=False))
def test_each_of_the_last_days_keeps_its_newest(policy: Policy, history: list[Candidate]) -> None:
    removed = names(plan_retention(policy, history, NOW).remove)
    for agent in AGENTS:
        for session in ("s", "t"):
            mine = [c for c in history if (c.session, c.agent) == (session, agent)]
            newest = {candidate.time.date(): candidate for candidate in mine}
            days = sorted(newest, reverse=True)[: policy.general.keep_daily]
            for day in days:
                assert (session, newest[day].seq) not in removed


@given(POLICIES, HISTORIES, st.data())
def test_a_more_generous_policy_keeps_a_superset(
    policy: Policy, history: list[Candidate], data: st.DataObject
) -> None:
    generous = parsed(more_generous(policy.to_table(), data))
    kept = names(plan_retention(policy, history, NOW).keep)
    assert kept <= names(plan_retention(generous, history, NOW).keep)


def parsed(table: dict[str, Any]) -> Policy:
    return parse_policy(table, TableReader("", "generous", InvalidConfig))


def more_generous(table: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """Return a table with some of its limits raised."""
    made: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            made[key] = more_generous(value, data)
        elif isinstance(value, bool) or table.get("keep_all"):
            made[key] = value
        else:
            made[key] = value + data.draw(st.sampled_from([0, 0, 1, 100_000]))
    return made


@given(POLICIES, HISTORIES, st.integers(1, 500), st.integers(0, 500))
def test_a_larger_quota_keeps_a_superset(
    policy: Policy, history: list[Candidate], quota: int, more: int
) -> None:
    small, large = (msgspec.structs.replace(policy, quota=q) for q in (quota, quota + more))
    kept = plan_retention(small, history, NOW)
    assert names(kept.keep) <= names(plan_retention(large, history, NOW).keep)
    assert names(kept.keep) <= names(plan_retention(policy, history, NOW).keep)


@given(POLICIES, HISTORIES, st.integers(1, 500))
def test_the_quota_holds_or_only_exempt_ones_are_left(
    policy: Policy, history: list[Candidate], quota: int
) -> None:
    plan = plan_retention(msgspec.structs.replace(policy, quota=quota), history, NOW)
    left = sum(ruling.bytes_freed or 0 for ruling in plan.keep)
    assert plan.over_quota == max(0, left - quota)
    assert not plan.over_quota or all(ruling.exempt for ruling in plan.keep)


@given(POLICIES, HISTORIES, st.sampled_from(AGENTS))
def test_agents_do_not_influence_each_other(
    policy: Policy, history: list[Candidate], agent: str
) -> None:
    """Except that the newest checkpoint of a session stays, whoever took it."""
    mine = {c.id for c in history if c.agent == agent}
    together = {r.id: r for r in plan_retention(policy, history, NOW).rulings if r.id in mine}
    alone = plan_retention(policy, [c for c in history if c.id in mine], NOW).rulings
    newest = {c.session: c.id for c in sorted(history, key=lambda c: c.seq)}
    mine_newest = {r.session: r.id for r in alone}
    for ruling in alone:
        if ruling.id not in (newest[ruling.session], mine_newest[ruling.session]):
            assert together[ruling.id] == ruling


@given(POLICIES, HISTORIES, st.none() | st.integers(1, 500), st.integers())
def test_the_order_of_the_input_does_not_matter(
    policy: Policy, history: list[Candidate], quota: int | None, seed: int
) -> None:
    policy = msgspec.structs.replace(policy, quota=quota)
    shuffled = random.Random(seed).sample(history, len(history))
    assert plan_retention(policy, shuffled, NOW) == plan_retention(policy, history, NOW)


@given(POLICIES, HISTORIES)
def test_planning_again_removes_nothing_more(policy: Policy, history: list[Candidate]) -> None:
    left = remaining(history, plan_retention(policy, history, NOW))
    assert plan_retention(policy, left, NOW).remove == ()


@given(POLICIES, histories(any_clock=False), st.integers(1, 500))
def test_planning_again_under_a_quota_removes_nothing_more(
    policy: Policy, history: list[Candidate], quota: int
) -> None:
    policy = msgspec.structs.replace(policy, quota=quota)
    left = remaining(history, plan_retention(policy, history, NOW))
    assert plan_retention(policy, left, NOW).remove == ()


@given(POLICIES, HISTORIES)
def test_a_limit_in_time_never_keeps_an_earlier_one_and_removes_a_later_one(
    policy: Policy, history: list[Candidate]
) -> None:
    """Whatever the clock did: of one kind of one agent, a span keeps the end of the sequence."""
    within = Policy(
        routine=Rules(keep_within=policy.general.keep_within or DAY), keep_good=0, undo_window=0
    )
    plain = [
        Candidate(session=c.session, agent=c.agent, id=c.id, seq=c.seq, time=c.time, kind="routine")
        for c in history
    ]
    rulings = plan_retention(within, plain, NOW).rulings
    agent_of = {c.id: (c.session, c.agent) for c in plain}
    for group in set(agent_of.values()):
        kept = [r.keep for r in rulings if agent_of[r.id] == group and r.rule != "newest"]
        assert kept == sorted(kept)


@given(POLICIES, HISTORIES)
def test_a_wrong_time_never_removes_what_its_right_time_would_keep(
    policy: Policy, history: list[Candidate]
) -> None:
    """Times in the future count as now or earlier, which a span keeps no less than ``now``."""
    spans = Policy(recovery=Rules(keep_within=policy.general.keep_within or DAY))
    recovery = [msgspec.structs.replace(c, kind="recovery") for c in history]
    removed = names(plan_retention(spans, recovery, NOW).remove)
    for candidate in recovery:
        age = (NOW - candidate.time).total_seconds()
        if 0 <= age <= spans.recovery.keep_within and not candidate.is_safety:
            assert (candidate.session, candidate.seq) not in removed


@given(POLICIES)
def test_the_table_of_a_policy_is_read_back(policy: Policy) -> None:
    assert parsed(policy.to_table()) == policy
