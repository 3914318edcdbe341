"""Purging beside copies of events: they are replaced, and a journal is rebuilt with tombstones."""

from __future__ import annotations

from pathlib import Path

import pytest

from mulligan.check.purges import all_tombstones, named_tombstones
from mulligan.document.nodes import references
from mulligan.failpoints import Failpoint
from mulligan.journal import chain
from mulligan.journal.copies import copied_bodies
from mulligan.journal.lmdb.salvage import read_records
from mulligan.journal.lmdb.tables import LmdbTables
from mulligan.journal.rebuild import DERIVED, rebuild
from mulligan.journal.records import PLACE
from mulligan.layout import TOMBSTONES, read_format
from mulligan.model import ObjectKind
from mulligan.repair.originals import discard_originals
from mulligan.repair.store import repair_store
from mulligan.store import engine_of
from mulligan.testing.stores import open_store
from mulligan.upkeep import PurgeTarget, finish_purges, run_purge
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.space.fold import fold_session
from tests.damage import flip_object
from tests.raw_bytes import files_with

SECRET = "sk-live-Zq8vKx03LmPw7RtY"
TARGET = PurgeTarget(match="sk-live-[A-Za-z0-9]{8,}")


@pytest.fixture(autouse=True)
def copies_at_each_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at those that write no other object."""
    monkeypatch.setattr("mulligan.session.write.checkpointer.MAX_UNCOPIED", 1)


def test_copies_are_replaced_also_of_events_that_were_folded(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        session, engine = store.session("run"), engine_of(store)
        for number in range(12):
            session.state.set("memory/x", f"{number} {SECRET}" + "word " * 400)
        session.checkpoint(label="kept")
        session.state.set("memory/x", SECRET)
        session.checkpoint()
        with upkeep_lock(engine, wait=False), engine.read() as view:
            record = view.find("run")
        assert record is not None
        assert fold_session(engine, record, 10, min_events=2).events
        done = run_purge(store, TARGET, by="anna", reason="leaked")
        assert done.is_proved, (done.unfinished, done.proof.left)
        assert done.plan.copies == 2
        with engine.read() as view:
            copies = list(view.copies())
            digests = [copy.digest for copy in copies]
        assert any(copy.last for copy in copies)
        bodies = [
            body
            for digest in digests
            for body in copied_bodies(engine.objects.get(ObjectKind.EVENTS, digest))
        ]
        assert any(b"by anna: leaked" in body for body in bodies)
        assert store.verify().problems == ()
        store.close()
        assert files_with(tmp_path, SECRET.encode()) == []


def test_a_journal_with_tombstones_is_rebuilt_record_for_record(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        session = store.session("run")
        session.state.set("memory/x", SECRET)
        session.state.set("outputs/last", SECRET + " " + "y" * 10_000)
        session.checkpoint(note=SECRET)
        run_purge(store, TARGET, by="anna", reason="leaked")
    place = tmp_path / ".mulligan"
    found = read_records(place / "journal" / "data.mdb")
    made = rebuild(found, bytes.fromhex(read_format(place).id))
    opened = LmdbTables(place / "journal", read_only=True)
    with opened.read() as reader:
        expected = {name: dict(reader.scan(name, b"", None)) for name in DERIVED}
    opened.close()
    assert made.tables == expected
    assert (made.lost, made.mended, made.unproven, made.assumed) == ([], [], [], [])


@pytest.mark.parametrize("lost", [("purged",), ("purges",), ("purged", "purges")], ids=str)
def test_lost_tombstones_are_made_again_from_the_event_that_names_them(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    with open_store(tmp_path) as store:
        session, engine = store.session("run"), engine_of(store)
        session.state.set("memory/x", SECRET)
        session.state.set("outputs/last", SECRET + " " + "y" * 10_000)
        session.checkpoint(note=SECRET)
        run_purge(store, TARGET, by="anna", reason="leaked")
        place = tmp_path / ".mulligan"
        found = list(read_records(place / "journal" / "data.mdb"))
        store_id = bytes.fromhex(read_format(place).id)
        expected = rebuild(found, store_id)
        gone = {key: value for name in lost for key, value in expected.tables[name].items()}
        left = [one for one in found if gone.get(one.key) != one.value]
        if "purges" in lost:  # also its versions from before it was finished
            purges = expected.tables["purges"]
            left = [one for one in left if one.key not in purges or b"anna" not in one.value]
        assert len(left) < len(found)
        made = rebuild(left, store_id, engine.load)
    assert made.tables["purged"] == expected.tables["purged"]
    assert made.tables["events"] == expected.tables["events"]
    assert made.tables["purges"].keys() == expected.tables["purges"].keys()
    assert made.lost == []


@pytest.mark.parametrize("events", [1, 2_000])
def test_tombstones_that_no_event_names_any_more_are_named_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: int
) -> None:
    """The event of the purge is lost, or its list of tombstones if that is long."""
    monkeypatch.setattr("mulligan.upkeep.purge.bury.events_to_copy", lambda *_: None)
    with open_store(tmp_path) as store:
        session, engine = store.session("run"), engine_of(store)
        for number in range(events):
            session.state.set("memory/x", f"{number} {SECRET}")
        session.checkpoint(note=SECRET)
        run_purge(store, TARGET, by="anna", reason="leaked")
        seq = session.head.seq
        with engine.read() as view:
            stones = all_tombstones(view)
            [event] = view.events(1, seq, seq)
            lists = list(references(event.payload["record"]))
        for digest in lists:
            flip_object(engine, engine.load(digest))
    assert bool(lists) == (events > 1)
    place = tmp_path / ".mulligan"
    if not lists:
        lose_event(place / "journal" / "data.mdb", seq)
    done = repair_store(place, {})
    assert done.report is not None
    assert done.report.problems == ()
    with open_store(tmp_path, create=False) as store, engine_of(store).read() as view:
        assert named_tombstones(engine_of(store), view) == all_tombstones(view) == stones


def lose_event(file: Path, seq: int) -> None:
    """Overwrite every version of an event in a journal's file."""
    data = file.read_bytes()
    for record in list(read_records(file)):
        if record.key == PLACE.pack(1, seq) and len(record.value) > 60:
            data = data.replace(record.value, bytes(len(record.value)))
    file.write_bytes(data)


def test_what_a_purge_left_of_an_event_is_kept_without_the_events_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mulligan.session.write.checkpointer.events_to_copy", lambda *_: None)
    with open_store(tmp_path) as store:
        session = store.session("run")
        session.state.set("memory/a", 1)
        session.state.set("memory/x", SECRET)
        session.state.set("memory/b", 2)
        run_purge(store, TARGET, by="anna", reason="leaked")
        place = tmp_path / ".mulligan"
        found = list(read_records(place / "journal" / "data.mdb"))
        store_id = bytes.fromhex(read_format(place).id)
        tables = rebuild(found, store_id).tables
    gone = tables["purged"] | tables["purges"]
    # Neither the tombstone, nor the event that names it, nor the one before what is left.
    gone |= {key: tables["events"][key] for key in (PLACE.pack(1, 2), PLACE.pack(1, 5))}
    made = rebuild([one for one in found if gone.get(one.key) != one.value], store_id)
    event = chain.read_record("run", 3, b"", made.tables["events"][PLACE.pack(1, 3)])
    assert event.kind == "state.set"
    assert "by anna: leaked" in str(event.payload)


def leaked(directory: Path) -> None:
    """Make a store whose state, files and events have the secret, and purge it."""
    (directory / "env").write_text(f"KEY={SECRET}")
    (directory / "other").write_text("nothing")
    with open_store(directory) as store:
        session = store.session("run", workspace=directory)
        session.state.set("memory/x", SECRET)
        session.checkpoint(label="first")
        session.state.set("memory/y", "other")
        session.checkpoint(label="second")
        assert run_purge(store, TARGET, by="anna", reason="leaked").is_proved
        (directory / "env").unlink()
        session.checkpoint(label="third")


def is_sound(directory: Path) -> None:
    with open_store(directory) as store:
        assert store.verify().problems == ()
        session = store.session("run", recover=False)
        assert "by anna: leaked" in session.state.at("first").get("memory/x")
        session.files.copy("first", directory / "copy")
    assert (directory / "copy" / "other").read_text() == "nothing"
    assert files_with(directory / ".mulligan", SECRET.encode()) == []


@pytest.mark.parametrize("damaged", ["FORMAT", "journal/data.mdb"])
def test_a_repair_keeps_what_purges_left(tmp_path: Path, damaged: str) -> None:
    leaked(tmp_path)
    (tmp_path / ".mulligan" / damaged).unlink()
    done = repair_store(tmp_path / ".mulligan", {})
    assert (done.damaged, done.current) == ((), {})
    assert TOMBSTONES in read_format(tmp_path / ".mulligan").features
    is_sound(tmp_path)


def test_a_journal_from_before_the_purge_does_not_bring_it_back(tmp_path: Path) -> None:
    journal = tmp_path / ".mulligan" / "journal" / "data.mdb"
    (tmp_path / "other").write_text("nothing")
    with open_store(tmp_path) as store:
        session = store.session("run", workspace=tmp_path)
        session.state.set("memory/x", SECRET)
        session.checkpoint(label="first")
    before = journal.read_bytes()
    with open_store(tmp_path) as store:
        assert run_purge(store, TARGET, by="anna", reason="leaked").is_proved
        store.session("run", workspace=tmp_path).checkpoint()
    journal.write_bytes(before)
    repair_store(tmp_path / ".mulligan", {})
    discard_originals(tmp_path / ".mulligan")
    with open_store(tmp_path) as store:
        finish_purges(store)
    is_sound(tmp_path)


def test_it_is_unfinished_while_originals_of_a_repair_are_kept(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.session("run").state.set("memory/x", SECRET)
    kept = tmp_path / ".mulligan" / "damaged" / "20261118T000000.000000Z"
    kept.mkdir(parents=True)
    (kept / "pack").write_bytes(b"compressed")
    with open_store(tmp_path) as store:
        done = run_purge(store, TARGET, by="anna", reason="leaked")
        assert not done.is_proved
        assert "verify --discard" in " ".join(done.unfinished)
        discard_originals(tmp_path / ".mulligan")
        assert finish_purges(store).is_proved


def test_a_repair_of_an_unfinished_purge_leaves_its_bytes_out(tmp_path: Path) -> None:
    (tmp_path / "env").write_text(f"KEY={SECRET}")
    (tmp_path / "other").write_text("nothing")

    class Killed(Exception):
        pass

    def kill(at: Failpoint) -> None:
        if at is Failpoint.PURGE_BURIED:
            raise Killed

    with open_store(tmp_path, failpoint=kill) as store:
        session = store.session("run", workspace=tmp_path)
        session.state.set("memory/x", SECRET)
        session.checkpoint(label="first")
        with pytest.raises(Killed):
            run_purge(store, TARGET, by="anna", reason="leaked")
    (tmp_path / "env").unlink()
    (tmp_path / ".mulligan" / "journal" / "data.mdb").unlink()
    repair_store(tmp_path / ".mulligan", {})
    discard_originals(tmp_path / ".mulligan")
    with open_store(tmp_path) as store:
        assert finish_purges(store).is_proved
    is_sound(tmp_path)
