"""``checkpoint(if_changed=True)``: nothing is written if the latest one holds the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import mulligan
from mulligan import Session, Store
from mulligan.store import engine_of
from mulligan.testing.failpoints import FailpointCounter
from mulligan.testing.stores import open_store
from mulligan.upkeep.space.gc import collect


def test_a_step_that_changed_nothing_costs_no_event_and_no_write(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "file").write_text("one")
    counter = FailpointCounter()
    with open_store(tmp_path / "store", failpoint=counter) as store:
        session = store.session("run", workspace=work)
        first = session.checkpoint(if_changed=True)  # there is none yet
        before, reached = session.head, counter.counts.copy()
        assert session.checkpoint("routine", "why", "label", if_changed=True) == first
        assert session.head == before
        assert counter.counts == reached
        assert session.checkpoints.labels() == {}


def test_what_changed_is_captured(session: Session, work: Path) -> None:
    known = [session.checkpoint()]
    for change in (
        lambda: session.state.set("a", 1),
        lambda: (work / "file").write_text("new"),
        lambda: (work / "file").chmod(0o600),
        lambda: os.utime(work / "file", (1, 1)),
        lambda: (work / "file").rename(work / "other"),
        lambda: (work / "other").unlink(),
        lambda: session.state.delete("a"),
    ):
        change()
        taken = session.checkpoint(if_changed=True)
        assert taken.id not in [one.id for one in known]
        assert session.checkpoint(if_changed=True) == taken
        known.append(taken)
    assert session.checkpoints() == known


def test_it_is_the_state_that_counts_not_the_events(session: Session) -> None:
    session.state.set("a", 1)
    taken = session.checkpoint()
    session.checkpoints.mark(taken, "good")  # no part of the state
    assert session.checkpoint(if_changed=True) == taken
    session.state.set("a", 2)
    session.state.set("a", 1)
    assert session.checkpoint(if_changed=True) == taken
    session.state.append("a list", 1)
    assert session.checkpoint(if_changed=True) != taken


@pytest.mark.parametrize("has_index", [True, False])
def test_another_process_finds_the_same_files(tmp_path: Path, has_index: bool) -> None:
    """With the index that the first one saved, and without it."""
    work, place = tmp_path / "work", tmp_path / "store"
    work.mkdir()
    (work / "file").write_text("one")
    with mulligan.open(place) as store, store.session("run", workspace=work) as session:
        session.state.set("list", list(range(300)))
        taken = session.checkpoint()
    for index in [] if has_index else place.rglob("index-*"):
        index.unlink()
    with mulligan.open(place) as store, store.session("run", workspace=work) as session:
        assert session.checkpoint(if_changed=True) == taken
        (work / "more").touch()
        assert session.checkpoint(if_changed=True) != taken


def test_a_lost_index_takes_no_checkpoint_although_the_latest_is_a_patch(tmp_path: Path) -> None:
    work, place = tmp_path / "work", tmp_path / "store"
    (work / "inner").mkdir(parents=True)
    for number in range(100):
        (work / "inner" / f"file {number}").write_text(str(number))
    with mulligan.open(place) as store, store.session("run", workspace=work) as session:
        session.checkpoint()
        (work / "inner" / "file 7").write_text("changed")
        taken = session.checkpoint()
    for index in place.rglob("index-*"):
        index.unlink()
    with mulligan.open(place) as store, store.session("run", workspace=work) as session:
        before = session.head
        assert session.checkpoint(if_changed=True) == taken
        assert session.checkpoint(if_changed=True) == taken
        assert session.head == before
        (work / "inner" / "file 7").write_text("again")
        later = session.checkpoint(if_changed=True)
        assert later.seq > taken.seq
        assert session.files.read(later, "inner/file 7") == b"again"
        assert session.files.read(later, "inner/file 8") == b"8"
        collect(engine_of(store))
        assert store.verify(full=True).problems == ()
        assert session.checkpoint(if_changed=True) == later


def test_a_tree_that_was_stored_for_the_index_alone_may_be_collected(tmp_path: Path) -> None:
    work, place = tmp_path / "work", tmp_path / "store"
    work.mkdir()
    (work / "file").write_text("one")
    with mulligan.open(place) as store, store.session("run", workspace=work) as session:
        session.checkpoint()
        (work / "file").write_text("two")
        taken = session.checkpoint()
    for index in place.rglob("index-*"):
        index.unlink()
    with mulligan.open(place) as store, store.session("run", workspace=work) as session:
        assert session.checkpoint(if_changed=True) == taken
        assert collect(engine_of(store)).removed
        assert session.checkpoint(if_changed=True) == taken
        (work / "file").write_text("three")
        assert session.files.read(session.checkpoint(), "file") == b"three"
        assert store.verify(full=True).problems == ()


def test_what_another_process_wrote_is_a_change(session: Session, store: Store) -> None:
    taken = session.checkpoint()
    store.session("run").state.set("theirs", 1)
    found = session.checkpoint(if_changed=True)
    assert found.seq > taken.seq
    assert session.state.at(found).get() == {"theirs": 1}


def test_after_a_restore_the_safety_checkpoint_does_not_count(session: Session, work: Path) -> None:
    (work / "file").write_text("one")
    first = session.checkpoint()
    session.restore(first)  # changes nothing, but takes a safety checkpoint
    safety = session.checkpoints()[-1]
    assert safety.safety
    taken = session.checkpoint(if_changed=True)
    assert taken.seq > safety.seq
    assert not taken.safety
    assert session.checkpoint(if_changed=True) == taken


def test_a_fork_with_a_directory_of_its_own_starts_with_its_own(
    session: Session, work: Path, tmp_path: Path
) -> None:
    """The checkpoint of the parent names another directory."""
    (work / "file").write_text("one")
    taken = session.checkpoint()
    assert session.fork(taken, "state only").checkpoint(if_changed=True) != taken
    fork = session.fork(taken, "with files", workspace=tmp_path / "fork")
    own = fork.checkpoint(if_changed=True)
    assert own.session == "with files"
    assert fork.checkpoint(if_changed=True) == own


def test_without_room_the_state_decides(store: Store, session: Session, work: Path) -> None:
    session.checkpoint()
    (work / "large").write_bytes(os.urandom(3_000_000))
    storage = engine_of(store).storage
    storage.quota = storage.size() + 100_000
    refused = session.checkpoint(if_changed=True)
    assert refused.workspace is None
    assert session.checkpoint(if_changed=True) == refused
    session.state.set("a", 1)
    assert session.checkpoint(if_changed=True).seq > refused.seq
    storage.quota = None
    assert session.checkpoint(if_changed=True).workspace is not None


def test_damaged_content_is_stored_again_although_nothing_changed(
    store: Store, session: Session, work: Path
) -> None:
    (work / "file").write_text("content " * 2_000)
    taken = session.checkpoint()
    engine = engine_of(store)
    with engine.read() as view:
        digests = [digest for digest, _ in view.locations()]
    engine.note_damaged(digests)
    healed = session.checkpoint(if_changed=True)
    assert healed.seq > taken.seq
    with engine.read() as view:
        left = list(view.damaged())
    assert len(left) < len(digests)
    assert session.files.read(taken, "file") == b"content " * 2_000


@pytest.mark.parametrize("kind", ["", "a:b"])
def test_arguments_are_checked_even_if_nothing_changed(session: Session, kind: str) -> None:
    session.checkpoint()
    with pytest.raises(mulligan.errors.InvalidName):
        session.checkpoint(kind, if_changed=True)
