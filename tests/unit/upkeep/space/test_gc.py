"""Garbage collection: what goes, what stays, and what happens beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mulligan import Session, Store, codec
from mulligan.document.fold import STATE
from mulligan.document.history import document_at
from mulligan.engine import Engine
from mulligan.failpoints import Failpoint
from mulligan.model import Checkpoint, Digest, ObjectKind
from mulligan.testing.stores import open_store
from mulligan.upkeep.space.deleted import remove_deleted
from mulligan.upkeep.space.gc import Collected, collect
from mulligan.upkeep.space.mark import Marker


class Killed(BaseException):
    """Stands for the end of the process."""


def engine_of(store: Store) -> Engine:
    return store._engine


def indexed(store: Store) -> set[Digest]:
    with engine_of(store).read() as view:
        return {digest for digest, _ in view.locations()}


def prune(store: Store, session: Session, *checkpoints: Checkpoint) -> None:
    engine = engine_of(store)
    with engine.read() as view:
        record = view.find(session.name)
    assert record is not None
    with engine.write(session=record.number) as txn:
        txn.prune(record.number, [checkpoint.seq for checkpoint in checkpoints])


def assert_sound(store: Store) -> None:
    assert store.verify(full=True).problems == ()


def three_checkpoints(session: Session, work: Path) -> list[Checkpoint]:
    """Take three checkpoints, each with a large file of its own and a common one."""
    (work / "common").write_bytes(b"common" * 5000)
    found = []
    for number in range(3):
        (work / "own").write_bytes(bytes([number]) * 50_000)
        found.append(session.checkpoint())
    return found


def test_nothing_is_removed_that_checkpoints_need(
    store: Store, session: Session, work: Path
) -> None:
    three_checkpoints(session, work)
    before = indexed(store)
    assert collect(engine_of(store)).removed == 0
    assert indexed(store) == before


def test_a_pruned_checkpoints_own_objects_go(store: Store, session: Session, work: Path) -> None:
    first, second, third = three_checkpoints(session, work)
    prune(store, session, first, second)
    done = collect(engine_of(store))
    assert done.removed > 0
    assert_sound(store)
    (work / "own").unlink()
    session.restore(third)
    assert (work / "own").read_bytes() == bytes([2]) * 50_000
    assert (work / "common").read_bytes() == b"common" * 5000


def test_the_same_content_is_stored_again(store: Store, session: Session, work: Path) -> None:
    _, second, _ = three_checkpoints(session, work)
    prune(store, session, second)
    assert collect(engine_of(store)).removed > 0
    (work / "own").write_bytes(bytes([1]) * 50_000)
    again = session.checkpoint()
    assert_sound(store)
    (work / "own").unlink()
    session.restore(again)
    assert (work / "own").read_bytes() == bytes([1]) * 50_000


def test_what_a_plan_stored_goes_and_the_next_checkpoint_stores_it(
    store: Store, session: Session, work: Path
) -> None:
    """A look at the files stores objects without an event; the index of files refers to them."""
    first, *_ = three_checkpoints(session, work)
    (work / "new").write_bytes(b"new" * 10_000)
    session.files.plan(first)
    assert collect(engine_of(store)).removed > 0
    taken = session.checkpoint()
    assert_sound(store)
    (work / "new").unlink()
    session.restore(taken)
    assert (work / "new").read_bytes() == b"new" * 10_000


@pytest.mark.parametrize(
    "point",
    [Failpoint.GC_STARTED, Failpoint.GC_CONDEMNED, Failpoint.GC_GRACE_OVER, Failpoint.GC_SWEPT],
)
def test_the_next_run_takes_up_what_a_killed_one_left(
    tmp_path: Path, work: Path, point: Failpoint
) -> None:
    armed = False

    def kill(reached: Failpoint) -> None:
        if armed and reached == point:
            raise Killed

    with open_store(tmp_path / "store", failpoint=kill) as store:
        session = store.session("run", workspace=work)
        _, second, third = three_checkpoints(session, work)
        prune(store, session, second)
        armed = True
        with pytest.raises(Killed):
            collect(engine_of(store))
        armed = False
        (work / "own").write_bytes(bytes([1]) * 50_000)
        fourth = session.checkpoint()
        assert_sound(store)
        collect(engine_of(store))
        assert_sound(store)
        for checkpoint, content in ((third, 2), (fourth, 1)):
            session.restore(checkpoint)
            assert (work / "own").read_bytes() == bytes([content]) * 50_000


def test_a_writer_that_started_before_is_waited_for(tmp_path: Path, work: Path) -> None:
    """A capture finds a chunk in the index; its last checkpoint is pruned; the capture commits."""
    ran: list[Collected] = []

    def meanwhile(reached: Failpoint) -> None:
        if reached == Failpoint.PACK_SYNCED and armed and not ran:
            ran.append(Collected(0, 0))
            prune(store, other, second)
            # It cannot end while this thread is pinned, so it gives up.
            ran.append(collect(engine_of(store), stop=lambda: True))

    armed = False
    with open_store(tmp_path / "store", failpoint=meanwhile) as store:
        other = store.session("other", workspace=work)
        session = store.session("run", workspace=work)
        _, second, _ = three_checkpoints(other, work)
        (work / "own").write_bytes(bytes([1]) * 50_000)
        (work / "beside").write_bytes(b"x" * 99)
        armed = True
        taken = session.checkpoint()
        assert ran[1].stopped
        assert_sound(store)
        collect(engine_of(store))
        assert_sound(store)
        (work / "own").unlink()
        session.restore(taken)
        assert (work / "own").read_bytes() == bytes([1]) * 50_000


def read(session: Session, point: Checkpoint, path: str) -> bytes:
    return session.files.read(point, path)


@pytest.mark.parametrize(
    "point", [Failpoint.GC_STARTED, None, Failpoint.GC_CONDEMNED, Failpoint.GC_GRACE_OVER]
)
def test_a_patch_that_needs_a_file_of_its_base_again_is_seen(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, point: Failpoint | None
) -> None:
    """The file of a pruned base comes back while a collection runs: the patch leaves it out."""
    taken: list[Checkpoint] = []

    def meanwhile(reached: Failpoint | None) -> None:
        if reached == point and armed and not taken:
            (work / "own").write_bytes(bytes([0]) * 50_000)
            os.utime(work / "own", ns=(times.st_atime_ns, times.st_mtime_ns))
            (work / "beside").write_bytes(b"x")  # without it, the tree would be the base
            taken.append(session.checkpoint())

    after_marking(monkeypatch, lambda: meanwhile(None))
    armed = False
    with open_store(tmp_path / "store", failpoint=meanwhile) as store:
        session = store.session("run", workspace=work)
        (work / "own").write_bytes(bytes([0]) * 50_000)
        times = (work / "own").stat()
        first = session.checkpoint()
        (work / "own").write_bytes(bytes([1]) * 50_000)
        second = session.checkpoint()
        prune(store, session, first)
        armed = True
        collect(engine_of(store))
        assert_sound(store)
        assert read(session, taken[0], "own") == bytes([0]) * 50_000
        assert read(session, second, "own") == bytes([1]) * 50_000


def after_marking(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act when everything was marked, and nothing is condemned yet."""
    mark_all = Marker.mark_all
    monkeypatch.setattr(Marker, "mark_all", lambda self: [mark_all(self), act()])


def test_garbage_that_a_new_tree_leads_to_is_kept(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that only a pruned checkpoint had comes back after everything was marked."""
    with open_store(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        (work / "inner" / "most").mkdir(parents=True)
        (work / "inner" / "most" / "own").write_bytes(b"own" * 20_000)
        first = session.checkpoint()
        os.rename(work / "inner", work.parent / "aside")
        session.checkpoint()
        prune(store, session, first)
        after_marking(monkeypatch, lambda: os.rename(work.parent / "aside", work / "inner"))
        after_marking(monkeypatch, session.checkpoint)
        collect(engine_of(store))
        assert_sound(store)
        assert read(session, session.checkpoints()[-1], "inner/most/own") == b"own" * 20_000


def test_garbage_below_a_new_value_is_kept_to_its_end(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value of a deleted session becomes a part of a new one after everything was marked."""
    other = store.session("other")
    value = {"text": "x" * 5000, **{f"key {number}": "y" * 100 for number in range(50)}}
    other.state.set("memory", value)
    store.delete("other")
    remove_deleted(engine_of(store))
    whole = {"value": value, **{f"key {number}": "z" * 100 for number in range(50)}}
    after_marking(monkeypatch, lambda: session.state.set("memory", whole))
    collect(engine_of(store))
    assert_sound(store)
    with engine_of(store).read() as view:
        document = document_at(view, 1, view.head(1).seq, engine_of(store).load)
    assert document.plain(document.find((STATE[0], "memory"))) == whole


def test_a_base_keeps_what_one_patch_does_not_set(
    store: Store, session: Session, work: Path
) -> None:
    """Patches set different files; what each leaves as in the base stays."""
    for name in ("one", "two", "both"):
        (work / name).write_bytes(name.encode() * 10_000)
    first = session.checkpoint()
    (work / "one").write_bytes(b"1")
    (work / "both").write_bytes(b"2")
    second = session.checkpoint()
    (work / "one").write_bytes(b"one" * 10_000)
    (work / "two").unlink()
    third = session.checkpoint()
    both = chunk(b"both" * 10_000)
    assert both in indexed(store)
    prune(store, session, first)
    collect(engine_of(store))
    assert both not in indexed(store)
    assert_sound(store)
    assert read(session, second, "two") == b"two" * 10_000
    assert read(session, third, "one") == b"one" * 10_000
    # A whole tree that is needed for itself keeps all of its files.
    assert collect(engine_of(store)).removed == 0


def chunk(data: bytes) -> Digest:
    return codec.digest(ObjectKind.CHUNK, data)
