"""Pruning: what goes, what stays and why, and what happens beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from mulligan import Session, Store
from mulligan.errors import CheckpointPruned
from mulligan.failpoints import Failpoint
from mulligan.model import Checkpoint
from mulligan.store import engine_of
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store
from mulligan.upkeep.retention.policy import DAY, HOUR, Policy, Rules, with_options
from mulligan.upkeep.retention.prune import PRUNED, Pruned, Pruner

NOTHING = Policy(
    routine=Rules(),
    pre_operation=Rules(),
    recovery=Rules(),
    manual=Rules(),
    keep_good=0,
    keep_failed=0,
    undo_window=0,
)
"""A policy that keeps nothing by itself."""


@pytest.fixture
def timed(tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    """A store whose clock moves only when it is told to."""
    with open_store(tmp_path / "store", clock=clock) as opened:
        yield opened


def prune(store: Store, policy: Policy = NOTHING, **options: object) -> Pruned:
    return Pruner(engine_of(store), policy).run(**options)  # type: ignore[arg-type]


def reasons(store: Store, policy: Policy = NOTHING) -> dict[int, str]:
    """Return what is kept of all checkpoints, by seq, and the rule."""
    plan = Pruner(engine_of(store), policy).plan()
    return {ruling.seq: ruling.rule for ruling in plan.plan.keep}


def left(session: Session) -> list[int]:
    return [taken.seq for taken in session.checkpoints()]


def steps(session: Session, work: Path, count: int, kind: str = "routine") -> list[Checkpoint]:
    found = []
    for number in range(count):
        (work / "file").write_bytes(bytes([number % 251]) * 20_000)
        session.state.set("step", number)
        found.append(session.checkpoint(kind))
    return found


def test_the_last_ones_stay_and_restore_byte_for_byte(
    store: Store, session: Session, work: Path
) -> None:
    taken = steps(session, work, 8)
    done = prune(store, Policy())
    assert done.removed == 5
    assert left(session) == [one.seq for one in taken[5:]]
    for number in (5, 6, 7):
        session.restore(taken[number])
        assert (work / "file").read_bytes() == bytes([number]) * 20_000
        assert session.state.get("step") == number
    assert store.verify().problems == ()


def test_prompts_stay_for_a_month_and_the_last_ones_longer(
    timed: Store, clock: FakeClock, work: Path
) -> None:
    """`mulligan rewind` goes back to any of them."""
    session = timed.session("claude-1", workspace=work)
    prompts = [taken.seq for taken in steps(session, work, 25, kind="prompt")]
    clock.advance(29 * DAY)
    prune(timed, Policy())
    assert left(session) == prompts
    clock.advance(2 * DAY)
    prune(timed, Policy())
    assert left(session) == prompts[-20:]


def test_what_tools_changed_stays_for_a_day_and_is_thinned_then(
    timed: Store, clock: FakeClock, work: Path
) -> None:
    session = timed.session("claude-1", workspace=work)
    old = [taken.seq for taken in steps(session, work, 25, kind="tools")]
    clock.advance(2 * DAY - HOUR)
    young = steps(session, work, 25, kind="tools")
    clock.advance(HOUR)
    prune(timed, Policy())
    assert left(session) == [old[-1], *(taken.seq for taken in young)]
    assert session.files.read(young[3], "file") == b"\3" * 20_000


def test_rules_for_checkpoints_after_tools_replace_the_default(
    timed: Store, clock: FakeClock, work: Path
) -> None:
    session = timed.session("claude-1", workspace=work)
    taken = [one.seq for one in steps(session, work, 6, kind="tools")]
    prune(timed, Policy(kinds={"tools": Rules(keep_last=4)}))
    assert left(session) == taken[2:]


def test_a_plan_changes_nothing(store: Store, session: Session, work: Path) -> None:
    taken = steps(session, work, 5)
    head = session.head
    plan = Pruner(engine_of(store), NOTHING).plan(count_bytes=True)
    assert len(plan.plan.remove) == 4
    assert (left(session), session.head) == ([one.seq for one in taken], head)


def test_a_policy_that_keeps_nothing_keeps_the_newest(
    store: Store, session: Session, work: Path
) -> None:
    taken = steps(session, work, 4)
    prune(store)
    assert left(session) == [taken[-1].seq]
    session.restore("@latest")


def test_pruning_twice_is_pruning_once(store: Store, session: Session, work: Path) -> None:
    steps(session, work, 6)
    assert prune(store, Policy()).removed == 3
    head = session.head
    again = prune(store, Policy())
    assert (again.removed, session.head) == (0, head)


def test_an_event_says_what_went_and_by_which_rules(
    store: Store, session: Session, work: Path
) -> None:
    taken = steps(session, work, 5)
    session.checkpoint("recovery")
    session.checkpoint("routine")
    prune(store, Policy(), cleared=("recovery",))
    (event,) = [event for event in session.events() if event.kind == PRUNED]
    payload = engine_of(store).plain(event.payload)
    assert event.actor == "upkeep"
    assert payload["removed"] == 4
    assert payload["rules"] == {"cleared": 1, "routine": 3}
    assert payload["first"] == taken[0].seq


def test_a_session_that_loses_nothing_gets_no_event(
    store: Store, session: Session, work: Path
) -> None:
    steps(session, work, 6)
    other = store.session("other")
    other.checkpoint()
    head = other.head
    prune(store, Policy())
    assert other.head == head


def test_agents_with_similar_names_do_not_touch_each_other(store: Store) -> None:
    for _ in range(4):
        for name in ("a-1", "a-10"):
            store.session("team", actor=name).checkpoint("routine")
    prune(store, Policy())
    kept = [one.actor for one in store.session("team").checkpoints()]
    assert sorted(kept) == ["a-1"] * 3 + ["a-10"] * 3


def test_pinned_and_labelled_ones_stay(store: Store, session: Session, work: Path) -> None:
    first, second, third, *_ = steps(session, work, 5)
    session.checkpoints.pin(first, "the start")
    session.checkpoint("routine", label="here")
    session.checkpoint("routine")
    session.checkpoints.mark(third, "good")
    kept = reasons(store, with_options(NOTHING, {}, {"keep_good": 1}))
    assert kept[first.seq] == "pinned"
    assert kept[third.seq] == "keep_good"
    assert "label" in kept.values()
    assert second.seq not in kept
    session.checkpoints.unpin(first)
    assert first.seq not in reasons(store)


def test_a_label_that_moved_on_keeps_nothing(store: Store, session: Session, work: Path) -> None:
    first = session.checkpoint("routine", label="here")
    session.checkpoint("routine", label="here")
    session.checkpoint("routine")
    assert first.seq not in reasons(store)


def test_what_a_fork_continues_from_stays(store: Store, session: Session, work: Path) -> None:
    first, second, *_ = steps(session, work, 4)
    session.state.set("later", True)
    fork = session.fork(second, "branch")
    fork.state.set("own", 1)
    assert reasons(store)[second.seq] == "needed"
    prune(store)
    assert left(session)[0] == second.seq
    assert first.seq not in left(session)
    assert fork.state.get("step") == 1
    assert store.verify().problems == ()


def test_a_label_that_a_fork_still_sees_stays(store: Store, session: Session, work: Path) -> None:
    first = session.checkpoint("routine", label="here")
    session.checkpoint("routine")
    session.fork("@latest", "branch")
    session.checkpoint("routine", label="here")
    session.checkpoint("routine")
    assert reasons(store)[first.seq] == "needed"


def test_the_files_of_a_fork_are_held_by_an_earlier_checkpoint(
    store: Store, session: Session, work: Path
) -> None:
    """The checkpoint where the fork starts holds no files; those before it do."""
    (work / "file").write_text("content")
    held = session.checkpoint("routine")
    bare = store.session("run").checkpoint("routine")
    session.fork(bare, "branch")
    steps(session, work, 2)
    kept = reasons(store)
    assert {held.seq, bare.seq} <= kept.keys()


def test_undo_reaches_back_within_its_window(timed: Store, clock: FakeClock, work: Path) -> None:
    session = timed.session("run", workspace=work)
    first, *_ = steps(session, work, 2)
    (work / "file").write_text("to be kept by the safety checkpoint")
    safety = session.restore(first).safety
    steps(session, work, 2)
    policy = with_options(NOTHING, {}, {"undo_window": 3600})
    assert safety.seq in reasons(timed, policy)
    prune(timed, policy)
    session.undo()
    assert (work / "file").read_text() == "to be kept by the safety checkpoint"
    steps(session, work, 1)
    clock.advance(3700)
    assert safety.seq not in reasons(timed, policy)


def test_work_before_an_undo_stays_for_a_day_after_another_restore(
    timed: Store, clock: FakeClock, work: Path
) -> None:
    """Undo and redo do not reach it any more; `undo` has named the checkpoint that holds it."""
    session = timed.session("run", workspace=work)
    first, *_ = steps(session, work, 2)
    session.restore(first)
    (work / "file").write_text("written after the restore")
    safety = session.undo().safety
    session.restore(first)
    prune(timed, Policy())
    assert reasons(timed, Policy())[safety.seq] == "window"
    clock.advance(DAY + 1)
    assert safety.seq not in reasons(timed, Policy())
    session.restore(safety)
    assert (work / "file").read_text() == "written after the restore"


def test_an_open_operation_keeps_its_checkpoint(store: Store, session: Session, work: Path) -> None:
    with session.operation("deploy") as operation:
        assert operation.checkpoint is not None
        seq = operation.checkpoint.seq
        steps(session, work, 2)
        assert reasons(store)[seq] == "operation"
    assert seq not in reasons(store)


def test_a_failed_operation_keeps_its_checkpoint_for_a_while(
    timed: Store, clock: FakeClock, work: Path
) -> None:
    session = timed.session("run", workspace=work)
    with pytest.raises(ZeroDivisionError), session.operation("divide") as operation:
        _ = 1 / 0
    assert operation.checkpoint is not None
    seq = operation.checkpoint.seq
    steps(session, work, 4)
    policy = with_options(NOTHING, {}, {"keep_failed": 3600})
    assert reasons(timed, policy)[seq] == "keep_failed"
    clock.advance(3700)
    prune(timed, policy)
    assert seq not in left(session)
    assert session.internal.control("failed_operations", {}) == {}


def test_marks_of_removed_checkpoints_go(store: Store, session: Session, work: Path) -> None:
    first, second, third = steps(session, work, 3)
    session.checkpoints.mark(first, "bad")
    session.checkpoints.mark(third, "good")
    prune(store)
    assert list(session.checkpoints.marks()) == [third.id]
    with pytest.raises(CheckpointPruned, match="rule 'routine'"):
        session.checkpoints.at(second.id)


def test_a_workflows_policy_is_that_of_its_session(store: Store, session: Session) -> None:
    other = store.session("other")
    for _ in range(5):
        session.checkpoint("routine")
        other.checkpoint("routine")
    table = Policy(routine=Rules(keep_last=1)).to_table()
    session.internal.state.set("orchestrator/workflow", {"retention": table})
    prune(store, Policy())
    assert (len(left(session)), len(left(other))) == (1, 3)


def test_the_quota_takes_the_oldest_that_may_go(store: Store, session: Session, work: Path) -> None:
    taken = steps(session, work, 3)
    session.checkpoints.pin(taken[0])
    quota = with_options(Policy(), {}, {"quota": 1})
    plan = Pruner(engine_of(store), quota).plan()
    assert [one.seq for one in plan.plan.keep] == [taken[0].seq, taken[2].seq]
    assert plan.plan.remove[0].rule == "quota"
    assert plan.plan.over_quota > 0


def test_garbage_does_not_cost_checkpoints(store: Store, session: Session, work: Path) -> None:
    """What nothing refers to is given back before the quota takes any checkpoint."""
    taken = steps(session, work, 3)
    (work / "seen").write_bytes(os.urandom(3_000_000))
    session.files.plan(taken[0])  # a look at the files stores their objects, without an event
    (work / "seen").unlink()
    quota = engine_of(store).storage.size() - 1_000_000
    done = prune(store, with_options(Policy(), {}, {"quota": quota}))
    assert done.removed == 0
    assert done.size_after <= quota


def test_a_file_of_a_base_of_patches_counts_if_all_kept_patches_replace_it(
    store: Store, session: Session, work: Path
) -> None:
    for number in range(30):
        (work / f"same-{number}").write_bytes(os.urandom(10_000))
    for _ in range(3):
        (work / "own").write_bytes(os.urandom(600_000))
        session.checkpoint("routine")
    plan = Pruner(engine_of(store), NOTHING).plan(count_bytes=True)
    sizes = [one.bytes_freed for one in plan.plan.remove]
    assert len(sizes) == 2
    assert all(size is not None and 550_000 <= size < 650_000 for size in sizes), sizes


def test_shared_bytes_are_not_counted(store: Store, session: Session, work: Path) -> None:
    (work / "common").write_bytes(os.urandom(500_000))
    session.checkpoint("routine")
    (work / "own").write_bytes(os.urandom(100_000))
    middle = session.checkpoint("routine")
    (work / "own").write_bytes(os.urandom(100_000))
    session.checkpoint("routine")
    plan = Pruner(engine_of(store), NOTHING).plan(count_bytes=True)
    sizes = {one.seq: one.bytes_freed for one in plan.plan.remove}
    assert plan.freed is not None
    assert 100_000 <= (sizes[middle.seq] or 0) < 110_000
    assert 100_000 <= plan.freed < 120_000


def test_a_clock_that_went_back_removes_nothing_more(
    timed: Store, clock: FakeClock, work: Path
) -> None:
    session = timed.session("run", workspace=work)
    policy = Policy(routine=Rules(keep_within=3600))
    taken = steps(session, work, 3)
    clock.set(clock.now() - timedelta(days=400))
    taken += steps(session, work, 3)
    assert prune(timed, policy).removed == 0
    clock.advance(400 * 24 * 3600 + 3700)
    assert prune(timed, policy).removed == len(taken) - 1


@pytest.mark.parametrize("what", ["restore", "pin", "fork"])
def test_what_becomes_needed_meanwhile_stays(tmp_path: Path, work: Path, what: str) -> None:
    """After the plan, before the transaction: the decision is made again."""
    done: list[bool] = []

    def meanwhile(point: Failpoint) -> None:
        if armed and point == Failpoint.PRUNE_COMMITTED and not done:
            done.append(True)
            if what == "restore":
                session.restore(needed)
            elif what == "pin":
                session.checkpoints.pin(needed)
            else:
                session.fork(needed, "branch")

    armed = False
    with open_store(tmp_path / "store", failpoint=meanwhile) as store:
        # The first session's slice is committed, then the other's checkpoint becomes needed.
        first = store.session("a")
        first.checkpoint("routine")
        first.checkpoint("routine")
        session = store.session("run", workspace=work)
        taken = steps(session, work, 4)
        needed = taken[1]
        armed = True
        prune(store, with_options(NOTHING, {}, {"undo_window": 3600}))
        armed = False
        assert done
        assert needed.seq in left(session)
        assert taken[0].seq not in left(session)
        assert store.verify().problems == ()
