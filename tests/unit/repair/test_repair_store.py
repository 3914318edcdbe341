"""Repairing a store: what is intact stays, what can be made again is, the rest is named."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from subprocess import PIPE

import lmdb
import msgspec
import pytest

from mulligan import Store, codec
from mulligan.errors import (
    CheckpointDamaged,
    DamagedJournal,
    DamageError,
    DiskFull,
    NotAStore,
    PointFolded,
    ReadOnlyStore,
    StoreInUse,
    UnknownFormat,
)
from mulligan.failpoints import Failpoint
from mulligan.journal.lmdb.salvage import read_records
from mulligan.journal.records import PLACE
from mulligan.layout import read_format
from mulligan.recovery.plan import plan_resume
from mulligan.repair.originals import discard_originals
from mulligan.repair.store import Repaired, find_damaged, repair_store
from mulligan.session.write import checkpointer
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store
from mulligan.upkeep import PurgeTarget, run_purge
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.retention.policy import Policy
from mulligan.upkeep.retention.prune import Pruner
from mulligan.upkeep.space.reclaim_space import reclaim
from mulligan.upkeep.usage import disk_usage
from mulligan.workspace.capture.patch import is_patch
from tests.damage import find_object, flip_object

STEPS = 6


def content(number: int) -> bytes:
    return Random(number).randbytes(20_000)


def message(number: int) -> str:
    return Random(-number).randbytes(6_000).hex()


@pytest.fixture
def place(tmp_path: Path, work: Path) -> Path:
    """A store with checkpoints of files and of a growing state."""
    with open_store(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        for number in range(STEPS):
            (work / f"file-{number}").write_bytes(content(number))
            session.state.append("conversation", message(number))
            session.state.set("memory/step", number)
            session.checkpoint(label=f"step-{number}")
    return tmp_path / "store" / ".mulligan"


def repaired(place: Path, *, dry_run: bool = False) -> Repaired:
    return repair_store(place, os.environ, dry_run=dry_run)


def damage(place: Path, stored: bytes) -> None:
    with open_store(place, create=False) as store:
        flip_object(store._engine, stored)


def check_step(store: Store, number: int, to: Path) -> None:
    """Assert that a checkpoint has everything that it was taken of."""
    session = store.session("run", create=False)
    label = f"step-{number}"
    assert session.files.copy(label, to / label) == []
    for earlier in range(number + 1):
        assert (to / label / f"file-{earlier}").read_bytes() == content(earlier)
    state = session.state.at(label).get()
    assert state["conversation"] == [message(n) for n in range(number + 1)]
    assert state["memory"] == {"step": number}


def check_all(place: Path, to: Path, steps: range = range(STEPS)) -> None:
    with open_store(place, create=False) as store:
        assert store.verify(full=True).problems == ()
        for number in steps:
            check_step(store, number, to)


def test_a_sound_store_is_left_as_it_is(place: Path) -> None:
    before = {path: path.read_bytes() for path in (place / "packs").iterdir()}
    done = repaired(place)
    assert done.ok
    assert (done.steps, done.originals, done.damaged) == ((), (), ())
    assert {path: path.read_bytes() for path in (place / "packs").iterdir()} == before
    with open_store(place, create=False) as store:
        assert store.session("run").head.seq == 1 + 3 * STEPS


def test_a_store_in_use_is_not_repaired(place: Path) -> None:
    child_ready, parent_done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover -- another process
        with open_store(place, create=False):
            os.write(child_ready[1], b".")
            os.read(parent_done[0], 1)
        os._exit(0)
    try:
        os.read(child_ready[0], 1)
        with pytest.raises(StoreInUse):
            repaired(place)
    finally:
        os.write(parent_done[1], b".")
        os.waitpid(pid, 0)


@pytest.mark.parametrize("share", [0, 1, 2, 3, 5, 8, 12, 20])
def test_any_zeroed_page_of_the_journal_costs_nothing(
    place: Path, tmp_path: Path, share: int
) -> None:
    file = place / "journal" / "data.mdb"
    data = bytearray(file.read_bytes())
    page = share * (len(data) // 4096 - 1) // 20
    data[page * 4096 : (page + 1) * 4096] = bytes(4096)
    file.write_bytes(data)
    repaired(place)
    # The newest event may be on that page alone; everything before it is in the packs, too.
    check_all(place, tmp_path / "out", range(STEPS - 1))


@pytest.mark.parametrize("table", [b"events", b"ids", b"meta", b"heads", b"copies"])
def test_a_table_under_another_name_costs_nothing(
    place: Path, tmp_path: Path, table: bytes
) -> None:
    file = place / "journal" / "data.mdb"
    data = file.read_bytes()
    entry = len(table).to_bytes(2, "little") + table
    assert entry in data
    file.write_bytes(data.replace(entry, entry[:-1] + b"~"))
    repaired(place)
    check_all(place, tmp_path / "out")


def test_a_journal_that_is_gone_is_rebuilt_from_the_packs(place: Path, tmp_path: Path) -> None:
    shutil.rmtree(place / "journal")
    done = repaired(place)
    assert not done.ok  # at least the event of the newest checkpoint is gone
    after = re.escape("events after #18 of session 'run', written after ")
    # In local time with its offset, as in every other message.
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d"
    assert any(re.fullmatch(after + time, line) for line in done.may_be_lost)
    check_all(place, tmp_path / "out", range(STEPS - 1))
    with open_store(place, create=False) as store:
        session = store.session("run", create=False)
        assert session.checkpoints.at("step-2").label == "step-2"
        session.state.set("memory/step", "goes on")
        assert store.verify(full=True).problems == ()


def test_an_older_copy_of_the_journal_is_brought_forward(place: Path, work: Path) -> None:
    older = (place / "journal" / "data.mdb").read_bytes()
    with open_store(place, create=False) as store:
        session = store.session("run", create=False, workspace=work)
        for number in range(3):
            # A checkpoint that writes objects also copies the events before it.
            (work / "more").write_bytes(content(100 + number))
            session.state.set("memory/more", number)
            session.checkpoint(label=f"more-{number}")
    (place / "journal" / "data.mdb").write_bytes(older)
    done = repaired(place)
    assert any("older copy" in step.found for step in done.steps)
    assert any("of session 'run'" in line for line in done.may_be_lost)
    with open_store(place, create=False) as store:
        session = store.session("run", create=False)
        assert session.state.at("more-1").get()["memory"]["more"] == 1
        assert store.verify(full=True).problems == ()


def test_a_store_of_which_nothing_is_left_is_not_said_to_have_lost_nothing(place: Path) -> None:
    shutil.rmtree(place / "journal")
    shutil.rmtree(place / "packs")
    done = repaired(place)
    assert done.report is not None
    assert done.report.problems == ()
    assert not done.ok
    assert done.may_be_lost


def test_a_cut_journal_names_the_sessions_whose_newest_events_may_be_lost(place: Path) -> None:
    """Its pages are missing table by table, and the newest checkpoint with them."""
    os.truncate(place / "journal" / "data.mdb", 6 * 4096)
    done = repaired(place)
    assert not done.ok
    assert any("of session 'run'" in line for line in done.may_be_lost)
    assert repaired(place).ok


@pytest.mark.parametrize("page", [0, 1])
def test_a_damaged_meta_page_loses_nothing_and_says_so(place: Path, page: int) -> None:
    with (place / "journal" / "data.mdb").open("r+b") as journal:
        journal.seek(page * 4096)
        journal.write(bytes(100))
    done = repaired(place)
    assert done.steps
    assert done.ok
    assert done.may_be_lost == ()


def test_what_was_pruned_and_folded_stays_so_when_the_journal_is_gone(
    tmp_path: Path, work: Path
) -> None:
    clock = FakeClock(tick=1.0)
    with open_store(tmp_path / "store", clock=clock) as store:
        session = store.session("run", workspace=work)
        for number in range(12):
            (work / "file").write_bytes(content(number))
            session.state.set("memory/step", number)
            session.checkpoint("routine", label="kept" if number == 3 else None)
        clock.advance(30 * 86_400)
        (work / "file").write_bytes(b"newest")
        session.checkpoint("routine", label="newest")
        with upkeep_lock(store._engine, wait=False):
            assert Pruner(store._engine, Policy()).run().events
        session.state.set("memory/step", "after")
        session.checkpoint("routine")
        with store._engine.read() as view:
            folds, pruned = view.folds(1), view.pruned_before(1, 100)
            expected = view.checkpoints(1, 1, 100)[:-1]
    place = tmp_path / "store" / ".mulligan"
    shutil.rmtree(place / "journal")
    done = repaired(place)
    assert done.report is not None
    assert done.report.problems == ()
    with open_store(place, create=False) as store:
        with store._engine.read() as view:
            assert view.folds(1) == folds
            assert view.pruned_before(1, 100) == pruned
            assert view.checkpoints(1, 1, 100) == expected
        session = store.session("run", create=False)
        assert session.files.read("kept", "file") == content(3)
        assert session.files.read("newest", "file") == b"newest"
        with pytest.raises(PointFolded):
            session.state.at(f"#{folds[0].first}").get()


def test_a_lost_file_is_read_again_from_the_workspace(place: Path, tmp_path: Path) -> None:
    damage(place, content(2))
    done = repaired(place)
    assert done.ok
    assert any("file-2" in line for line in done.healed)
    assert done.originals
    check_all(place, tmp_path / "out")


def test_checkpoints_that_lost_a_file_are_marked_and_name_it(
    place: Path, tmp_path: Path, work: Path
) -> None:
    damage(place, content(3))
    (work / "file-3").write_bytes(b"something else")
    done = repaired(place)
    assert not done.ok
    assert [one.label for one in done.damaged] == ["step-3", "step-4", "step-5"]
    assert {tuple(one.loss.files) for one in done.damaged} == {("file-3",)}
    check_all(place, tmp_path / "out", range(3))
    with open_store(place, create=False) as store:
        session = store.session("run", create=False, workspace=work)
        assert sorted(session.internal.losses()) == [one.seq for one in done.damaged]
        with pytest.raises(CheckpointDamaged, match="file-3") as caught:
            session.restore("step-4")
        assert session.checkpoints.at("step-2").id[:12] in (caught.value.hint or "")


def test_the_rest_of_a_damaged_checkpoint_is_restored_when_told(place: Path, work: Path) -> None:
    damage(place, content(3))
    for number in range(STEPS):
        (work / f"file-{number}").write_bytes(b"changed since")
    repaired(place)
    with open_store(place, create=False) as store:
        session = store.session("run", create=False, workspace=work)
        session.restore("step-4", session.internal.intact_parts("step-4"))
        assert session.state.get("memory/step") == 4
    for number in range(5):
        expected = b"changed since" if number == 3 else content(number)
        assert (work / f"file-{number}").read_bytes() == expected


def test_a_part_that_lost_nothing_is_restored_as_usual(place: Path, work: Path) -> None:
    damage(place, content(3))
    for number in range(STEPS):
        (work / f"file-{number}").write_bytes(b"changed since")
    repaired(place)
    with open_store(place, create=False) as store:
        session = store.session("run", create=False, workspace=work)
        session.restore("step-4", ["workspace/file-1"])
        assert (work / "file-1").read_bytes() == content(1)
        with pytest.raises(CheckpointDamaged):
            session.restore("step-4", ["workspace"])


def test_an_undo_to_lost_files_is_refused_before_anything_changes(place: Path, work: Path) -> None:
    with open_store(place, create=False) as store:
        session = store.session("run", create=False, workspace=work)
        (work / "unsaved").write_bytes(content(50))
        session.restore("step-1")
    assert not (work / "unsaved").exists()
    damage(place, content(50))
    repaired(place)
    with open_store(place, create=False) as store:
        session = store.session("run", create=False, workspace=work)
        with pytest.raises(CheckpointDamaged, match="unsaved"):
            session.undo()
        assert session.files.pending is None
        assert sorted(path.name for path in work.iterdir()) == ["file-0", "file-1"]


def test_checkpoints_that_lost_a_part_of_the_state_name_its_path(
    place: Path, tmp_path: Path
) -> None:
    damage(place, message(2).encode())
    done = repaired(place)
    assert [one.label for one in done.damaged] == ["step-2", "step-3", "step-4", "step-5"]
    assert {tuple(one.loss.state) for one in done.damaged} == {("conversation/2",)}
    assert done.current == {"run": ["conversation/2"]}
    check_all(place, tmp_path / "out", range(2))


def lose_event(place: Path, seq: int, *, hash_too: bool = False) -> None:
    """Overwrite every version of an event in the journal's file."""
    file = place / "journal" / "data.mdb"
    data = file.read_bytes()
    for record in list(read_records(file)):
        if record.key == PLACE.pack(1, seq) and len(record.value) > 60:
            kept = 0 if hash_too else 32
            data = data.replace(record.value[kept:], bytes(len(record.value) - kept))
    file.write_bytes(data)


@pytest.mark.parametrize("hash_too", [False, True])
def test_a_lost_event_without_a_copy_is_named_and_its_place_kept(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, hash_too: bool
) -> None:
    monkeypatch.setattr(checkpointer, "events_to_copy", lambda *_: None)
    with open_store(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        session.checkpoint(label="before")
        session.state.set("memory/kept", 1)
        session.state.set("memory/lost", 2)
        after = session.checkpoint(label="after")
    place = tmp_path / "store" / ".mulligan"
    lose_event(place, 4, hash_too=hash_too)
    done = repaired(place)
    assert done.lost_events == ("event #4 of session 'run'",)
    [damaged] = done.damaged
    assert (damaged.id, damaged.loss.events) == (after.id, [4, 4])
    with open_store(place, create=False) as store:
        session = store.session("run", create=False, workspace=work)
        assert [event.kind for event in session.events()][3] == "event.lost"
        assert session.checkpoints.at("after").id == after.id
        assert session.state.at("after").get()["memory"] == {"kept": 1}
        with pytest.raises(CheckpointDamaged, match="event #4"):
            session.restore("after")
        session.restore("before")
        session.checkpoint()
        assert store.verify(full=True).problems == ()
    assert repaired(place).lost_events == ()


def test_events_are_listed_also_where_one_lost_its_value(place: Path) -> None:
    damage(place, codec.encode(message(2)))
    with open_store(place, create=False) as store, pytest.raises(DamageError):
        list(store.session("run", create=False).events())
    assert repaired(place).damaged
    with open_store(place, create=False) as store:
        events = list(store.session("run", create=False).events())
    said = [event.payload["values"] for event in events if event.kind == "state.append"]
    assert said == [["(lost)" if n == 2 else message(n)] for n in range(STEPS)]


@pytest.mark.parametrize("hash_too", [False, True])
def test_checkpoints_around_a_lost_one_are_listed_and_pruned(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, hash_too: bool
) -> None:
    monkeypatch.setattr(checkpointer, "events_to_copy", lambda *_: None)
    with open_store(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        before, lost = session.checkpoint(label="before"), session.checkpoint(label="lost")
        after = session.checkpoint(label="after")
    place = tmp_path / "store" / ".mulligan"
    lose_event(place, lost.seq, hash_too=hash_too)
    assert repaired(place).lost_events
    with open_store(place, create=False) as store:
        session = store.session("run", create=False, workspace=work)
        assert [one.id for one in session.checkpoints()] == [before.id, after.id]
        with upkeep_lock(store._engine, wait=False):
            Pruner(store._engine, Policy()).run()
        assert store.verify(full=True).problems == ()


def test_a_fork_of_a_damaged_checkpoint_knows_what_it_lacks(place: Path, work: Path) -> None:
    damage(place, content(3))
    (work / "file-3").write_bytes(b"something else")
    repaired(place)
    with open_store(place, create=False) as store:
        store.session("run", create=False).fork("step-5", "fork")
        fork = store.session("fork", create=False, workspace=work)
        with pytest.raises(CheckpointDamaged, match="file-3"):
            fork.restore("step-4")
        fork.restore("step-2")


def test_a_rollback_passes_over_damaged_checkpoints(place: Path, work: Path) -> None:
    damage(place, content(3))
    (work / "file-3").write_bytes(b"something else")
    repaired(place)
    with open_store(place, create=False) as store:
        session = store.session("run", create=False, workspace=work)
        fork = session.fork("step-5", "fork")
        for one in (session, fork):
            point = plan_resume(one, rollback=True).point
            assert point is not None
            assert point.checkpoint == session.checkpoints.at("step-2").id


def test_a_directory_is_captured_again(tmp_path: Path, work: Path) -> None:
    (work / "deep").mkdir()
    for number in range(100):
        (work / "deep" / f"{number}").write_bytes(b"%d" % number)
    with open_store(tmp_path / "store") as store:
        store.session("run", workspace=work).checkpoint(label="all")
        engine = store._engine
        with engine.read() as view:
            places = dict(view.locations())
        values = dict(engine.objects.get_all(1, places))
        tree = max(values, key=lambda digest: len(values[digest]))
        flip_object(engine, values[tree])
    assert repaired(tmp_path / "store" / ".mulligan").ok
    with open_store(tmp_path / "store") as store:
        assert store.session("run").files.copy("all", tmp_path / "out") == []
    assert len(list((tmp_path / "out" / "deep").iterdir())) == 100


def test_a_lost_keyframe_is_computed_again(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        session = store.session("run")
        for number in range(600):
            session.state.append("conversation", f"message {number}")
        session.checkpoint(label="end")
        engine = store._engine
        with engine.read() as view:
            found = view.keyframe(1, 700)
        assert found is not None
        flip_object(engine, engine.load(found[1]))
    done = repaired(tmp_path / "store" / ".mulligan")
    assert done.ok
    assert any("keyframe" in line for line in done.healed)


def test_a_damaged_entry_of_a_copy_is_found_and_removed(place: Path) -> None:
    file = place / "journal" / "data.mdb"
    with open_store(place, create=False) as store, store._engine.read() as view:
        digest = next(iter(view.copies())).digest
    data = file.read_bytes()
    for record in list(read_records(file)):
        if record.value[8:40] == digest and len(record.value) == 48:
            data = data.replace(record.value, record.value[:-1] + b"?")
    file.write_bytes(data)
    with open_store(place, salvage=True) as store:
        assert [problem.table for problem in store.verify().problems] == ["copies"]
    assert repaired(place).ok
    with open_store(place, create=False) as store, upkeep_lock(store._engine, wait=False):
        reclaim(store._engine)


def test_upkeep_goes_on_after_a_loss(place: Path, work: Path) -> None:
    damage(place, message(2).encode())
    repaired(place)
    with open_store(place, create=False) as store:
        with upkeep_lock(store._engine, wait=False):
            reclaim(store._engine)
        report = store.verify(full=True)
        assert report.problems == ()
        assert any(warning.fault == "needed" for warning in report.warnings)


def lose_a_base_of_patches(place: Path, work: Path) -> None:
    """Wipe all that was stored together with a base tree, and repair what is left."""
    with open_store(place, create=False) as store:
        base, latest = (store.session("run").checkpoints.at(f"step-{n}") for n in (0, STEPS - 1))
        assert base.workspace is not None
        assert latest.workspace is not None
        assert is_patch(codec.decode(store._engine.load(latest.workspace)))
        with store._engine.read() as view:
            found = view.locate(base.workspace)
        assert found is not None
        pack = place / "packs" / store._engine.objects.area_name(found.area)
    data = bytearray(pack.read_bytes())
    # All that was stored together with the tree.
    data[found.offset + 16 : found.offset + found.length] = bytes(found.length - 16)
    pack.write_bytes(data)
    shutil.rmtree(work)
    assert repaired(place).damaged


def test_upkeep_goes_on_after_the_loss_of_a_base_of_patches(place: Path, work: Path) -> None:
    lose_a_base_of_patches(place, work)
    with open_store(place, create=False) as store:
        with upkeep_lock(store._engine, wait=False):
            reclaim(store._engine)
        assert store.verify(full=True).problems == ()


@pytest.mark.parametrize(
    "target", [PurgeTarget(match=message(1)[:40]), PurgeTarget(paths=("file-4",))]
)
def test_a_purge_goes_on_after_the_loss_of_a_base_of_patches(
    place: Path, work: Path, target: PurgeTarget
) -> None:
    lose_a_base_of_patches(place, work)
    discard_originals(place)
    with open_store(place, create=False) as store:
        assert disk_usage(store).sessions
        assert run_purge(store, target, by="anna", reason="leaked").is_proved
        assert store.verify(full=True).problems == ()


def test_a_healed_loss_is_no_longer_marked(place: Path, work: Path) -> None:
    damage(place, content(3))
    (work / "file-3").write_bytes(b"something else")
    repaired(place)
    (work / "file-3").write_bytes(content(3))
    assert repaired(place).ok
    with open_store(place, create=False) as store:
        assert store.session("run").internal.losses() == {}


def test_intact_objects_of_a_damaged_frame_are_stored_again(tmp_path: Path, work: Path) -> None:
    for number in range(40):
        (work / f"file-{number:02}").write_bytes(Random(number).randbytes(2_000) + bytes(2_000))
    with open_store(tmp_path / "store") as store:
        store.session("run", workspace=work).checkpoint(label="all")
        _, first = find_object(store._engine, (work / "file-00").read_bytes())
        pack = store._engine.directory / "packs" / store._engine.objects.area_name(first.area)
    with pack.open("rb+") as file:
        file.seek(first.offset + first.length - 300)
        file.write(bytes(200))
    shutil.rmtree(work)
    done = repaired(tmp_path / "store" / ".mulligan")
    [damaged] = done.damaged
    assert 0 < damaged.loss.file_count < 40


@pytest.mark.parametrize("at", [2, 12, 22, 40, 70, 80])
def test_a_flipped_byte_in_format_is_repaired(place: Path, tmp_path: Path, at: int) -> None:
    before = read_format(place)
    data = bytearray((place / "FORMAT").read_bytes())
    data[at] ^= 1
    (place / "FORMAT").write_bytes(data)
    repaired(place)
    assert read_format(place) == before
    check_all(place, tmp_path / "out")


def test_a_missing_format_is_written_again(place: Path, tmp_path: Path) -> None:
    before = read_format(place)
    (place / "FORMAT").unlink()
    assert find_damaged(place.parent)[0] == place
    repaired(place)
    assert read_format(place) == before
    check_all(place, tmp_path / "out")


@pytest.mark.parametrize(
    "change", [{"format": 2}, {"features": ["patches", "later"]}, {"later": True}]
)
def test_a_store_of_a_later_version_is_not_repaired(place: Path, change: dict[str, object]) -> None:
    found = json.loads((place / "FORMAT").read_text())
    later = msgspec.json.format(json.dumps(found | change)) + "\n"  # as every version writes it
    (place / "FORMAT").write_text(later)
    with pytest.raises(UnknownFormat):
        repaired(place)
    assert (place / "FORMAT").read_text() == later


def test_a_journal_of_another_store_is_not_taken_for_damage(place: Path, tmp_path: Path) -> None:
    with open_store(tmp_path / "other") as store:
        store.session("run")
    other = tmp_path / "other" / ".mulligan" / "journal" / "data.mdb"
    shutil.copy(other, place / "journal" / "data.mdb")
    with pytest.raises(DamagedJournal, match="does not belong"):
        repaired(place)


def test_a_directory_without_any_trace_of_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        repaired(tmp_path)


def test_a_damaged_header_of_a_pack_is_written_again(place: Path, tmp_path: Path) -> None:
    pack = next((place / "packs").iterdir())
    before = pack.read_bytes()
    for at in (0, 9, 13, 20):
        data = bytearray(before)
        data[at] ^= 2
        pack.write_bytes(data)
        assert repaired(place).ok
        assert pack.read_bytes()[:32] == before[:32]
    check_all(place, tmp_path / "out")


def test_a_pack_that_was_cut_keeps_what_is_before_the_cut(place: Path, tmp_path: Path) -> None:
    [pack] = (place / "packs").iterdir()
    with open_store(place, create=False) as store:
        session = store.session("run")
        with store._engine.read() as view:
            end = max(p.offset + p.length for _, p in view.locations())
        assert session.checkpoints.at("step-1")
        _, second = find_object(store._engine, content(2))
    os.truncate(pack, second.offset + 100)
    assert end > second.offset
    shutil.rmtree(tmp_path / "work", ignore_errors=True)
    repaired(place)
    with open_store(place, create=False) as store:
        assert store.verify(full=True).problems == ()
        for number in (0, 1):
            check_step(store, number, tmp_path / "out")
        store.session("run").checkpoint(label="after")
        assert store.verify(full=True).problems == ()


def every_byte(place: Path) -> dict[str, bytes | None]:
    found = {str(path.relative_to(place)): path for path in place.rglob("*")}
    return {name: path.read_bytes() if path.is_file() else None for name, path in found.items()}


def lose_a_file_and_a_message(place: Path, work: Path) -> None:
    """One file is still in the workspace, another is not, and a message is nowhere else."""
    damage(place, content(2))
    damage(place, content(3))
    (work / "file-3").write_bytes(b"changed since")
    damage(place, codec.encode(message(4)))


def lose_the_journal(place: Path, work: Path) -> None:
    (place / "journal" / "data.mdb").unlink()
    (place / "journal" / "lock.mdb").unlink()
    (place / "FORMAT").write_bytes(b"")


def lose_a_page_and_a_header(place: Path, work: Path) -> None:
    lose_a_file_and_a_message(place, work)
    [pack] = (place / "packs").iterdir()
    with open(pack, "r+b") as file:
        file.write(b"\0" * 16)
    with open(place / "journal" / "data.mdb", "r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 4096)


@pytest.mark.parametrize(
    "lose", [lose_a_file_and_a_message, lose_the_journal, lose_a_page_and_a_header]
)
def test_a_dry_run_tells_what_the_repair_does(
    place: Path, work: Path, lose: Callable[[Path, Path], None]
) -> None:
    lose(place, work)
    before = every_byte(place)
    told = repaired(place, dry_run=True)
    assert every_byte(place) == before
    assert told.report is None
    assert told.originals == ()
    done = repaired(place)
    assert told.steps == done.steps
    assert told.healed == done.healed
    assert told.damaged == done.damaged
    assert told.current == done.current
    assert told.lost_events == done.lost_events
    assert told.steps
    if lose is not lose_the_journal:
        assert [line for line in told.healed if "file-2" in line]
        assert {path for one in told.damaged for path in one.loss.files} == {"file-3"}
        assert any(one.loss.state for one in told.damaged)


def test_a_dry_run_that_was_killed_leaves_nothing_for_the_next(place: Path) -> None:
    left = place / "tmp" / "trial-left"
    left.mkdir()
    (left / "FORMAT").write_bytes(b"half")
    assert repaired(place, dry_run=True).ok
    assert not left.exists()


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_store_that_cannot_be_written_is_not_called_in_use(place: Path, dry_run: bool) -> None:
    for options in (["--bind", place, place], ["-o", "remount,ro,bind", place]):
        if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
            pytest.skip("mounting is not permitted here")
    try:
        with pytest.raises(ReadOnlyStore, match="cannot be written"):
            repaired(place, dry_run=dry_run)
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_dry_run_of_a_store_in_use_is_refused(place: Path) -> None:
    command = "import sys; from mulligan.testing.stores import open_store\n"
    command += "with open_store(sys.argv[1], create=False): print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", command, str(place)], stdin=PIPE, stdout=PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()
        with pytest.raises(StoreInUse):
            repaired(place, dry_run=True)
        other.stdin.close()


def test_a_frame_behind_a_misplaced_header_is_found(place: Path, tmp_path: Path) -> None:
    """A block in the wrong place has the header of a frame, whose length leads past an intact one.

    The files are gone from the workspace, so only the pack has them.
    """
    pack = place / "packs" / "00000001.pack"
    with open_store(place, create=False) as store:
        places = [find_object(store._engine, content(number))[1] for number in range(STEPS)]
    data = bytearray(pack.read_bytes())
    before, intact, other = (places[number].offset for number in (1, 2, 4))
    misplaced = data[other : other + 400]
    data[before:intact] = bytes(intact - before - 400) + misplaced
    pack.write_bytes(data)
    for file in (tmp_path / "work").iterdir():
        file.unlink()
    done = repaired(place)
    lost = {path for one in done.damaged for path in one.loss.files}
    assert "file-1" in lost
    assert "file-2" not in lost


def test_a_label_of_a_checkpoint_that_the_index_lacks_is_damage(place: Path) -> None:
    with lmdb.open(str(place / "journal"), max_dbs=32, map_size=1 << 30) as env:
        table = env.open_db(b"checkpoints")
        with env.begin(write=True) as txn:
            assert txn.delete(PLACE.pack(1, 4), db=table)
    with open_store(place, create=False) as store, pytest.raises(DamagedJournal, match="#4"):
        store.session("run", create=False).state.at("step-0")
    assert repaired(place).ok


def test_holes_of_packs_take_no_space_among_the_originals(tmp_path: Path, work: Path) -> None:
    """With the index, what the holes are is lost; the space that upkeep freed must stay free."""
    with open_store(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        for number in range(6):
            (work / "file").write_bytes(Random(number).randbytes(400_000))
            session.checkpoint("routine")
        with upkeep_lock(store._engine, wait=False):
            Pruner(store._engine, Policy()).run()
            reclaim(store._engine)
    place = tmp_path / "store" / ".mulligan"
    (place / "journal" / "data.mdb").unlink()
    done = repaired(place)
    kept = list((place / "damaged").rglob("*.pack-*"))
    assert sum(file.stat().st_size for file in kept) > 800_000
    assert sum(file.stat().st_blocks * 512 for file in kept) < 200_000
    assert done.report is not None
    assert done.report.problems == ()


def test_a_repair_without_room_leaves_no_copies_behind(place: Path, tmp_path: Path) -> None:
    damage(place, content(2))
    (place / "journal" / "data.mdb").unlink()

    def full(point: Failpoint) -> None:
        if point is Failpoint.REPAIR_JOURNAL_WRITTEN:
            assert list((place / "damaged").rglob("*.pack-*"))
            raise DiskFull("There is no space left.")

    with pytest.raises(DiskFull):
        repair_store(place, os.environ, failpoint=full)
    assert not (place / "damaged").exists()
    repaired(place)
    check_all(place, tmp_path / "out", range(STEPS - 1))


def test_originals_are_kept_until_they_are_discarded(place: Path) -> None:
    file = place / "journal" / "data.mdb"
    data = bytearray(file.read_bytes())
    data[: 2 * 4096] = bytes(2 * 4096)
    file.write_bytes(data)
    done = repaired(place)
    [kept] = done.originals
    assert (Path(kept) / "journal" / "data.mdb").read_bytes() == bytes(data)
    assert discard_originals(place) == len(data)
    assert not Path(kept).exists()


def deleted_and_collected(store: Store) -> None:
    store.delete("run")
    with upkeep_lock(store._engine, wait=False):
        reclaim(store._engine)


def purged(store: Store) -> None:
    target = PurgeTarget(match=message(1)[:40])
    assert run_purge(store, target, by="anna", reason="leaked").is_proved


@pytest.mark.parametrize("remove", [deleted_and_collected, purged])
def test_a_killed_trial_keeps_nothing_that_was_removed(
    place: Path, remove: Callable[[Store], None]
) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from mulligan.repair.trial import trial_copy\n"
        "with trial_copy(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(place)], check=False)
    assert list((place / "tmp").glob("trial-*"))
    with open_store(place, create=False) as store:
        remove(store)
    assert not list((place / "tmp").glob("trial-*"))
