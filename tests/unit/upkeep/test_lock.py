"""Who may look after a store, and when: one process, pins everywhere, and the newest journal."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mulligan import Store, layout
from mulligan.errors import DamagedJournal, StoreInUse, UnknownFormat, UpkeepBusy
from mulligan.layout import PINS
from mulligan.store import engine_of
from mulligan.testing.clock import FakeClock
from mulligan.testing.stepped import END, SteppedProcess, Stop
from mulligan.testing.stores import open_store
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.maintain import maintain
from mulligan.upkeep.record import read_record
from mulligan.upkeep.retention.policy import Policy
from mulligan.upkeep.retention.prune import Pruner
from mulligan.upkeep.space.grace import held_back_by
from mulligan.upkeep.space.reclaim_space import reclaim
from mulligan.views.upkeep import HELD_SECONDS, upkeep_status


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A store that an earlier version made, with checkpoints to remove."""
    with open_store(tmp_path / "store") as store:
        session = store.session("run")
        for _ in range(8):
            session.checkpoint("routine")
    directory = tmp_path / "store" / ".mulligan"
    for feature in (PINS, layout.ORDERED):
        layout.drop_feature(directory, feature)
    return directory


@pytest.fixture
def child() -> Iterator[list[SteppedProcess]]:
    found: list[SteppedProcess] = []
    yield found
    for process in found:
        process.kill()


def features(directory: Path) -> list[str]:
    found: list[str] = json.loads((directory / layout.FORMAT).read_text())["features"]
    return found


def test_an_older_store_gains_the_feature_with_its_first_upkeep(older: Path) -> None:
    with open_store(older) as store:
        store.session("run").checkpoint("routine")
        assert features(older) == ["patches"]
        assert maintain(engine_of(store), 10) is not None
        assert features(older) == ["patches", PINS]
        assert maintain(engine_of(store), 10) is None  # not due, and no error


def test_an_earlier_version_refuses_a_store_that_was_looked_after(
    older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(older) as store, upkeep_lock(engine_of(store), wait=False):
        pass
    monkeypatch.setattr(layout, "KNOWN_FEATURES", ("patches",))
    with pytest.raises(UnknownFormat, match="pins"):
        open_store(older)


def test_nothing_is_removed_while_a_process_may_be_of_an_earlier_version(
    older: Path, child: list[SteppedProcess]
) -> None:
    def use(stop: Stop) -> None:
        with open_store(older):
            stop("opened")

    child.append(SteppedProcess(use))
    assert child[0].until("opened") == "opened"
    with open_store(older) as store:
        engine = engine_of(store)
        with (
            pytest.raises(StoreInUse, match=f"Process {child[0].pid} .* earlier version"),
            upkeep_lock(engine, wait=False),
        ):
            pass
        # By itself, it is shown by `mulligan status`.
        assert maintain(engine, 10) is None
        record = read_record(engine)
        assert record is not None
        assert "earlier version" in str(record.error)
        assert features(older) == ["patches"]
        assert len(store.session("run").checkpoints()) == 8
        assert child[0].until() == END
        with upkeep_lock(engine, wait=False):
            assert features(older) == ["patches", PINS]


def test_a_process_that_reads_the_format_just_before_it_changes_is_noticed(
    older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(older) as store:
        engine = engine_of(store)
        answers = iter([None, os.getppid()])
        monkeypatch.setattr(engine.journal, "other_user", lambda: next(answers))
        with pytest.raises(StoreInUse), upkeep_lock(engine, wait=False):
            pass
        assert features(older) == ["patches"]


def test_a_second_process_is_told_who_looks_after_the_store(
    tmp_path: Path, child: list[SteppedProcess]
) -> None:
    open_store(tmp_path / "store").close()

    def hold(stop: Stop) -> None:
        with open_store(tmp_path / "store") as store, upkeep_lock(engine_of(store), wait=False):
            stop("holding")

    child.append(SteppedProcess(hold))
    assert child[0].until("holding") == "holding"
    with open_store(tmp_path / "store") as store:
        busy = pytest.raises(UpkeepBusy, match=f"Process {child[0].pid} .*looking after the store")
        with busy, upkeep_lock(engine_of(store), wait=False):
            pass


def test_a_process_that_keeps_space_from_being_given_back_is_named(
    tmp_path: Path, child: list[SteppedProcess], clock: FakeClock
) -> None:
    place = tmp_path / "store"
    open_store(place).close()

    def pin(stop: Stop) -> None:
        with open_store(place) as store, engine_of(store).pin():
            stop("pinned")

    child.append(SteppedProcess(pin))
    assert child[0].until("pinned") == "pinned"
    told: list[int | None] = []
    on_wait = lambda owner: told.append(owner.pid if owner else None)  # noqa: E731
    with open_store(place, clock=clock, on_wait=on_wait) as store:
        engine = engine_of(store)
        engine.pins.start_grace_period()
        assert engine.directory is not None
        held = held_back_by(engine.directory)
        assert held is not None
        assert held[0].pid == child[0].pid
        # Not at once: every collection waits for a moment.
        clock.set(clock.now().fromtimestamp(held[1], clock.now().tzinfo))
        assert upkeep_status(engine).held_by is None
        clock.advance(HELD_SECONDS + 1)
        owner = upkeep_status(engine).held_by
        assert owner is not None
        assert owner.pid == child[0].pid
        end = clock.monotonic() + 60
        assert reclaim(engine, stop=lambda: clock.monotonic() >= end).stopped
        assert told == [child[0].pid]
        assert child[0].until() == END
        assert not reclaim(engine).stopped
        assert upkeep_status(engine).held_by is None


# --- older copies of the journal -----------------------------------------------------------------


def take(store: Store, work: Path, count: int) -> None:
    work.mkdir(exist_ok=True)
    session = store.session("run", workspace=work)
    for number in range(count):
        (work / "file").write_bytes(os.urandom(5000))
        session.state.set("memory/n", [number] * 3000)
        session.checkpoint("routine")


@pytest.mark.parametrize("is_whole", [False, True])
def test_nothing_is_removed_for_an_older_copy_of_the_journal(
    tmp_path: Path, is_whole: bool
) -> None:
    place, work, copy = tmp_path / "store", tmp_path / "work", tmp_path / "copy"
    journal = place / ".mulligan" / "journal"
    with open_store(place) as store:
        take(store, work, 6)
    shutil.copytree(journal, copy)
    with open_store(place) as store:
        take(store, work, 3)
    newer = tmp_path / "newer"
    shutil.copytree(journal, newer)
    packs = {p.name: p.stat().st_size for p in (place / ".mulligan" / "packs").iterdir()}
    for name in ("data.mdb", "clean") if is_whole else ("data.mdb",):
        shutil.copy(copy / name, journal / name)
    with open_store(place) as store:
        engine = engine_of(store)
        with upkeep_lock(engine, wait=False):
            for remove in (lambda: reclaim(engine), Pruner(engine, Policy()).run):
                with pytest.raises(DamagedJournal, match="older copy"):
                    remove()
        assert len(store.session("run").checkpoints()) == 6
    assert {p.name: p.stat().st_size for p in (place / ".mulligan" / "packs").iterdir()} == packs
    for name in ("data.mdb", "clean"):
        shutil.copy(newer / name, journal / name)
    with open_store(place) as store:
        assert store.verify().problems == ()
        assert len(store.session("run").checkpoints()) == 9


def test_upkeep_goes_on_once_work_went_on_with_an_older_copy(tmp_path: Path) -> None:
    place, work, copy = tmp_path / "store", tmp_path / "work", tmp_path / "copy"
    journal = place / ".mulligan" / "journal"
    with open_store(place) as store:
        take(store, work, 6)
    shutil.copytree(journal, copy)
    with open_store(place) as store:
        take(store, work, 3)
    for name in ("data.mdb", "clean"):
        shutil.copy(copy / name, journal / name)
    pack = place / ".mulligan" / "packs" / "00000001.pack"
    with open_store(place) as store:
        # Without a new object: the pack is not taken over, and keeps what the journal lacks.
        store.session("run").state.set("memory/n", 1)
        assert pack.stat().st_size > _acknowledged(store)
        with upkeep_lock(engine_of(store), wait=False):
            Pruner(engine_of(store), Policy()).run()
        assert store.verify().problems == ()
        assert pack.stat().st_size == _acknowledged(store)


def _acknowledged(store: Store) -> int:
    with engine_of(store).read() as view:
        return view.area_length(1)
