"""Folding: what goes, what stays reachable, and what happens beside it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mulligan import Session, Store
from mulligan.document.fold import event_change
from mulligan.document.values import freeze
from mulligan.engine import Engine
from mulligan.errors import (
    FilesPruned,
    InvalidMark,
    NothingToUndo,
    PathNotFound,
    PointFolded,
    UnknownPoint,
)
from mulligan.failpoints import Failpoint
from mulligan.model import Checkpoint, ForkOrigin, SessionRecord
from mulligan.recovery import ladder, plan
from mulligan.testing.clock import FakeClock
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from mulligan.upkeep.space import fold as folding
from mulligan.upkeep.space import needed
from mulligan.upkeep.space.fold import Folded, fold_session
from tests.children import Tell, run_child


def engine_of(store: Store) -> Engine:
    return store._engine


def record_of(store: Store, name: str) -> SessionRecord:
    with engine_of(store).read() as view:
        record = view.find(name)
    assert record is not None
    return record


def fold(store: Store, session: Session, before: Any = None, **options: Any) -> Folded:
    """Fold everything before the head, or before a point in time."""
    options.setdefault("min_events", 1)
    before = session.head.seq if before is None else before
    return fold_session(engine_of(store), record_of(store, session.name), before, **options)


def prune(store: Store, session: Session, *seqs: int) -> None:
    number = record_of(store, session.name).number
    with engine_of(store).write(session=number) as txn:
        txn.prune(number, seqs)


def state_only(store: Store, label: str | None = None) -> Checkpoint:
    """Take a checkpoint of the session "run" without files."""
    return store.session("run").checkpoint(label=label)


def folds(store: Store, session: Session) -> list[tuple[int, int]]:
    with engine_of(store).read() as view:
        found = view.folds(record_of(store, session.name).number)
    return [(one.first, one.last) for one in found]


def assert_sound(store: Store) -> None:
    assert store.verify(full=True).problems == ()


def write(session: Session, count: int) -> None:
    for number in range(count):
        session.state.set("memory/count", session.head.seq)
        session.state.append("memory/log", number)


@pytest.fixture
def plain(store: Store) -> Session:
    """A session without files, of 41 events: #1, then 20 times a set and an append."""
    session = store.session("plain")
    write(session, 20)
    return session


def test_what_is_left_is_one_record(store: Store, plain: Session) -> None:
    state = plain.state.get()
    done = fold(store, plain, 40)
    assert (done.events, done.last, list(done.kept)) == (38, 39, [1])
    assert folds(store, plain) == [(2, 39)]
    assert [event.seq for event in plain.events()] == [1, 40, 41]
    assert plain.state.get() == state
    assert_sound(store)
    with pytest.raises(PointFolded, match="#1 and #40"):
        plain.state.at(20).get()


def test_every_point_from_the_time_on_stays(store: Store, plain: Session) -> None:
    before = {seq: plain.state.at(seq).get() for seq in range(30, 42)}
    fold(store, plain, 30)
    assert {seq: plain.state.at(seq).get() for seq in range(30, 42)} == before
    for seq in range(2, 30):
        with pytest.raises(PointFolded):
            plain.state.at(seq).get()


def test_a_handle_that_was_open_goes_on(store: Store, plain: Session, tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as other:
        late = other.session("plain")
        late.state.get()
        write(plain, 5)
        fold(store, plain)
        assert late.state.get() == plain.state.get()
        late.state.set("memory/late", True)
    assert plain.state.get("memory/late") is True
    assert_sound(store)


def test_checkpoints_stay_with_their_state_and_files(
    store: Store, session: Session, work: Path
) -> None:
    kept = []
    for number in range(3):
        (work / "f").write_text(str(number))
        write(session, 5)
        kept.append((session.checkpoint(), session.state.get()))
    state_only(store)
    write(session, 5)
    fold(store, session)
    for number, (checkpoint, state) in enumerate(kept):
        assert session.state.at(checkpoint).get() == state
        assert session.files.read(checkpoint, "f") == str(number).encode()
    assert session.files.read("@latest", "f") == b"2"
    assert session.files.read(session.head, "f") == b"2"
    assert [c.id for c in session.checkpoints()][:3] == [c.id for c, _ in kept]
    assert_sound(store)


def test_a_second_run_makes_folds_longer_and_joins_them(store: Store, session: Session) -> None:
    write(session, 5)
    first = state_only(store)
    write(session, 5)
    state_only(store)
    write(session, 5)
    state = session.state.get()
    fold(store, session, first.seq + 5)
    assert folds(store, session) == [(2, first.seq - 1), (first.seq + 1, first.seq + 4)]
    prune(store, session, first.seq)
    assert_sound(store)
    fold(store, session, session.checkpoints()[-1].seq)
    assert folds(store, session) == [(2, session.checkpoints()[-1].seq - 1)]
    assert session.state.get() == state
    assert fold(store, session, session.checkpoints()[-1].seq).events == 0
    # A window that was made longer cannot bring anything back, and does no harm.
    assert fold(store, session, 4).events == 0
    assert_sound(store)


def test_slices_leave_a_true_record_each(
    store: Store, plain: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "SLICE_EVENTS", 7)
    states = {seq: plain.state.at(seq).get() for seq in (40, 41)}
    calls = iter(range(100))
    done = fold(store, plain, 40, stop=lambda: next(calls) == 3)
    assert (done.stopped, done.events) == (True, 21)
    assert folds(store, plain) == [(2, 22)]
    assert_sound(store)
    done = fold(store, plain, 40)
    assert (done.stopped, done.events) == (False, 17)
    assert folds(store, plain) == [(2, 39)]
    assert {seq: plain.state.at(seq).get() for seq in (40, 41)} == states
    assert_sound(store)


def test_a_slice_ends_at_a_keyframe_that_is_there(tmp_path: Path, clock: FakeClock) -> None:
    # A clock that stands still: slices that take long become so small that none reaches a keyframe.
    store = open_store(tmp_path / "store", clock=clock)
    session = store.session("long")
    with session.batch():
        for number in range(1_500):
            session.state.set("memory/count", number)
    with engine_of(store).read() as view:
        number = record_of(store, "long").number
        before = len(list(view.locations()))
        frames = [view.keyframe(number, seq) for seq in (600, 1_100)]
    done = fold(store, session, frames[1][0] + 1, min_events=8)  # type: ignore[index]
    assert done.events == frames[1][0] - 1  # type: ignore[index]
    with engine_of(store).read() as view:
        assert len(list(view.locations())) == before
    assert_sound(store)


def test_a_few_events_are_not_worth_a_fold(store: Store, session: Session) -> None:
    for _ in range(5):
        write(session, 1)
        state_only(store)
    assert fold(store, session, min_events=8).events == 0
    assert folds(store, session) == []


def test_kept_seqs_stay(store: Store, plain: Session) -> None:
    state = plain.state.at(20).get()
    done = fold(store, plain, keep={20: "said so"})
    assert done.kept[20] == "said so"
    assert plain.state.at(20).get() == state
    assert folds(store, plain) == [(2, 19), (21, 40)]


@pytest.mark.parametrize(
    "point", [Failpoint.FOLD_PREPARED, Failpoint.FOLD_WRITTEN, Failpoint.FOLD_COMMITTED]
)
@pytest.mark.parametrize("nth", [1, 2])
def test_killed_between_two_slices(
    tmp_path: Path, point: Failpoint, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "SLICE_EVENTS", 9)
    with open_store(tmp_path / "store") as store:
        session = store.session("run")
        write(session, 20)
        states = {seq: session.state.at(seq).get() for seq in range(30, 42)}

    def die(_: Tell) -> None:
        with open_store(tmp_path / "store", failpoint=kill_at(point, nth)) as store:
            fold(store, store.session("run"), 30)

    assert run_child(die).by_sigkill
    with open_store(tmp_path / "store") as store:
        session = store.session("run")
        assert_sound(store)
        assert {seq: session.state.at(seq).get() for seq in range(30, 42)} == states
        fold(store, session, 30)
        assert folds(store, session) == [(2, 29)]
        assert {seq: session.state.at(seq).get() for seq in range(30, 42)} == states
        assert_sound(store)


# --- what is needed ------------------------------------------------------------------------------


def test_forks_stay_where_they_began(store: Store, session: Session, work: Path) -> None:
    (work / "f").write_text("1")
    first = session.checkpoint()
    write(session, 3)
    child = session.fork(session.head, "child")
    origin = session.head
    write(session, 5)
    write(child, 5)
    grandchild = child.fork(origin, "grandchild")  # at an event of its grandparent
    state = grandchild.state.get()
    done = fold(store, session)
    assert origin.seq in done.kept
    assert done.kept[first.seq] == needed.KEPT
    fold(store, child)
    assert grandchild.state.get() == state
    assert grandchild.files.read(grandchild.head, "f") == b"1"
    assert next(event.seq for event in child.events()) == 1
    assert_sound(store)


def test_a_fork_at_a_folded_point_is_refused(store: Store, plain: Session) -> None:
    fold(store, plain, 40)
    with pytest.raises(PointFolded):
        plain.fork(20, "child")
    number = record_of(store, "plain").number
    with pytest.raises(PointFolded), engine_of(store).write() as txn:
        txn.create("child", engine_of(store).clock.now(), ForkOrigin(number, 20))


def test_a_fork_made_meanwhile_stays(tmp_path: Path) -> None:
    def meanwhile(at: Failpoint) -> None:
        if at == Failpoint.FOLD_PREPARED and not made:
            made.append(session.fork(20, "child"))

    made: list[Session] = []
    with open_store(tmp_path / "store", failpoint=meanwhile) as store:
        session = store.session("run")
        write(session, 20)
        assert fold(store, session).events == 0
        fold(store, session)
        assert 20 in {event.seq for event in session.events()}
        assert made[0].state.get() == session.state.at(20).get()
        assert_sound(store)


def test_a_restore_can_be_undone_within_its_window(
    tmp_path: Path, work: Path, clock: FakeClock
) -> None:
    with open_store(tmp_path / "store", clock=clock) as store:
        session = store.session("run", workspace=work)
        (work / "f").write_text("old")
        session.checkpoint(label="old")
        (work / "f").write_text("new")
        session.state.set("memory/word", "new")
        session.restore("old")
        clock.advance(3600)
        write(session, 10)
        state_only(store)
        prune(store, session, *[c.seq for c in session.checkpoints() if c.safety])
        fold(store, session)
        session.undo()
        assert (work / "f").read_text() == "new"
        assert session.state.get("memory/word") == "new"
        session.redo()
        clock.advance(3600)
        write(session, 10)
        session.checkpoint()
        write(session, 2)
        prune(store, session, *[c.seq for c in session.checkpoints() if c.safety])
        fold(store, session, undo_since=clock.now())
        with pytest.raises(NothingToUndo, match="folded away"):
            session.undo()
        assert_sound(store)


def test_a_pending_restore_can_be_finished(tmp_path: Path, work: Path) -> None:
    """Also that of another session: it needs the point that it goes to."""
    armed = False

    def kill(at: Failpoint) -> None:
        if armed and at == Failpoint.RESTORE_MARKED:
            raise RuntimeError("interrupted")

    with open_store(tmp_path / "store", failpoint=kill) as store:
        source = store.session("source", workspace=work)
        (work / "f").write_text("old")
        source.checkpoint()
        write(source, 10)
        target = source.head.seq
        write(source, 10)
        session = store.session("run", workspace=work)
        (work / "f").write_text("new")
        write(session, 2)
        armed = True
        with pytest.raises(RuntimeError):
            session.restore(f"source:#{target}")
        armed = False
        write(session, 10)
        assert fold(store, source).kept[target] == needed.PENDING
        held_back = fold(store, session).held_back
        assert held_back is not None
    with open_store(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        session.checkpoint()
        assert (work / "f").read_text() == "old"
        assert_sound(store)


def test_a_restore_that_starts_meanwhile_keeps_its_point(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed = False

    def meanwhile(at: Failpoint) -> None:
        nonlocal armed
        if armed and at == Failpoint.FOLD_PREPARED:
            armed = False
            monkeypatch.setattr(folding, "MAX_BEHIND", 3)
            write(session, 10)  # more than is looked at under the write lock
            with pytest.raises(RuntimeError):
                session.restore(20)
        if at == Failpoint.RESTORE_MARKED:
            raise RuntimeError("interrupted")

    with open_store(tmp_path / "store", failpoint=meanwhile) as store:
        session = store.session("run", workspace=work)
        session.checkpoint()
        write(session, 20)
        armed = True
        assert fold(store, session).events == 0
        assert session.state.at(20).get()
        assert_sound(store)


def test_events_since_an_open_operation_stay(store: Store, plain: Session) -> None:
    with plain.operation("risky", rollback="state") as operation:
        write(plain, 10)
        done = fold(store, plain)
        assert operation.checkpoint is not None
        assert done.held_back == operation.checkpoint.seq
        assert folds(store, plain) == [(2, operation.checkpoint.seq - 1)]
    assert fold(store, plain).held_back is None
    assert_sound(store)


def test_names_of_recovery_are_those_that_it_writes() -> None:
    assert (needed.RECOVERIES, needed.RECOVERY_ENDED) == (plan.RECOVERIES, plan.ENDED)


def test_a_recovery_that_is_not_judged_keeps_its_signs_of_life(
    tmp_path: Path, clock: FakeClock
) -> None:
    with open_store(tmp_path / "store", clock=clock) as store:
        session = store.session("run")
        session.internal.state.set("agents", {"coder": {"state": "working"}})
        attempt = ladder.Attempt(clock.now(), ladder.RETRY, ladder.PREPARED)
        clock.advance(1)
        value = freeze(msgspec.to_builtins([attempt]))
        ended = event_change(plan.ENDED, control=[[[plan.RECOVERIES], value]])
        session.internal.commit_events(lambda _: [ended])
        clock.advance(3600)
        write(store.session("run", actor="coder"), 20)
        write(session, 20)
        assert [attempt.outcome for attempt in plan.tried(session)] == [ladder.OK]
        fold(store, session)
        assert len(list(session.events())) < 6
        assert [attempt.outcome for attempt in plan.tried(session)] == [ladder.OK]


# --- points --------------------------------------------------------------------------------------


@pytest.fixture
def timed(tmp_path: Path, clock: FakeClock) -> Iterator[tuple[Store, Session]]:
    """A session with an event a minute, whose clock was set back by an hour at #21."""
    with open_store(tmp_path / "timed", clock=clock) as store:
        session = store.session("run")
        for seq in range(2, 42):
            clock.advance(60)
            if seq == 21:
                clock.set(clock.now() - timedelta(hours=1))
            session.state.set("memory/seq", seq)
        yield store, session


def test_times_find_what_they_found_before(timed: tuple[Store, Session], clock: FakeClock) -> None:
    store, session = timed
    moments = {event.seq: event.time + timedelta(seconds=30) for event in session.events()}
    before = {seq: session.point(moment).seq for seq, moment in moments.items()}
    fold(store, session, moments[36] + timedelta(seconds=0))
    assert folds(store, session) == [(2, 20), (22, 35)]
    for seq, moment in moments.items():
        if before[seq] in (1, 21, *range(36, 42)):
            assert session.point(moment).seq == before[seq]
        else:
            with pytest.raises(PointFolded, match="folded away with #"):
                session.point(moment)
    with pytest.raises(UnknownPoint, match="before session"):
        session.point(moments[21] - timedelta(days=1))
    assert_sound(store)


def test_a_folded_point_names_what_is_near(store: Store, session: Session) -> None:
    write(session, 5)
    one = state_only(store, "one")
    write(session, 5)
    two = state_only(store, "two")
    fold(store, session)
    with pytest.raises(PointFolded) as caught:
        session.point(one.seq + 3)
    text = str(caught.value)
    assert f"#{one.seq} and #{two.seq}" in text
    assert one.id[:12] in text
    assert two.id[:12] in text
    assert session.point("two~1").seq == one.seq
    assert session.point("one").seq == one.seq
    with pytest.raises(PointFolded):
        session.point(session.point(two).__class__(session.name, one.seq + 3))


def test_events_can_start_and_end_at_folded_ones(store: Store, plain: Session) -> None:
    fold(store, plain, 30)
    assert [e.seq for e in plain.events(since=10, until=32)] == [30, 31, 32]
    assert [e.seq for e in plain.events(until=12)] == [1]


def test_files_are_never_those_of_an_older_checkpoint(
    store: Store, session: Session, work: Path, tmp_path: Path
) -> None:
    taken = []
    for number in range(4):
        (work / "f").write_text(str(number))
        taken.append(session.checkpoint())
        write(session, 5)
    prune(store, session, taken[1].seq)
    one, two, three, _ = (c.seq for c in taken)
    for _ in range(2):
        assert session.files.read(one, "f") == b"0"
        for point in (two, three - 1):
            with pytest.raises(FilesPruned) as caught:
                session.files.read(point, "f")
            assert taken[0].id[:12] in str(caught.value)
            assert taken[2].id[:12] in str(caught.value)
        with pytest.raises(FilesPruned):
            session.restore(three - 1)
        with pytest.raises(FilesPruned):
            session.restore(three - 1, only=["workspace"])
        assert session.files.read(three + 5, "f") == b"2"
        # The second time, events around them are folded away.
        fold(store, session, three - 3)
    session.restore(three - 1, only=["memory"])
    assert session.state.get("memory") == session.state.at(three - 1).get("memory")
    with pytest.raises((FilesPruned, PathNotFound)):
        session.restore(three - 1, only=["f"])
    assert_sound(store)


def test_a_restores_files_outlive_its_pruned_checkpoint(
    store: Store, session: Session, work: Path
) -> None:
    (work / "f").write_text("old")
    session.checkpoint(label="old")
    (work / "f").write_text("new")
    session.restore("old")
    safety = session.checkpoints()[-1]
    write(session, 10)
    state_only(store)
    prune(store, session, safety.seq)
    write(session, 5)
    fold(store, session, undo_since=engine_of(store).clock.now() + timedelta(days=1))
    assert session.files.read("@latest", "f") == b"old"
    assert_sound(store)


def test_a_mark_across_a_fold_is_refused(store: Store, session: Session) -> None:
    state_only(store)
    write(session, 20)
    fold(store, session, 20)
    with pytest.raises(InvalidMark, match="folded away"):
        session.checkpoints.mark(25, "good")


# --- beside a writer -----------------------------------------------------------------------------


BESIDE = """
import sys, threading
import mulligan
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
with mulligan.open(sys.argv[1]) as store:
    session = store.session("run", actor="beside")
    count = 0
    # Bounded: each fold goes up to the newest event, which must not run away from it.
    while count < 50 or not ended.is_set() and count < 600:
        session.state.append("memory/beside", count)
        count += 1
        if count % 10 == 0:
            session.checkpoint()
        if count == 20:
            print("started", flush=True)
"""


def test_fold_beside_a_writer_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "SLICE_EVENTS", 16)
    path = tmp_path / "store"
    with open_store(path) as store:
        session = store.session("run")
        write(session, 100)
        command = [sys.executable, "-c", BESIDE, str(path)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "started\n"
            for _ in range(10):
                fold(store, session)
            child.communicate()
        assert child.returncode == 0
        beside = session.state.get("memory/beside")
        assert beside == list(range(len(beside)))
        kept = session.checkpoints()
        assert [len(session.state.at(c).get("memory/beside")) for c in kept] == [
            10 * (number + 1) for number in range(len(kept))
        ]
        assert folds(store, session)[0][0] == 2
        assert_sound(store)
