"""The tables of a journal, rebuilt from records that were found anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest

from mulligan import Store
from mulligan.journal.chain import is_unproven
from mulligan.journal.found_records import DERIVED
from mulligan.journal.lmdb.salvage import read_records
from mulligan.journal.lmdb.tables import LmdbTables
from mulligan.journal.rebuild import Rebuilt, rebuild
from mulligan.journal.rebuild_chain import LOST
from mulligan.journal.records import (
    CHECKSUM_SIZE,
    NUMBER,
    PLACE,
    RawRecord,
    checksum,
    decode,
    decode_head,
    encode,
)
from mulligan.layout import read_format
from mulligan.model import SessionRecord
from mulligan.testing.clock import START, FakeClock
from mulligan.testing.stores import open_store
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.space.fold import fold_session


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A journal with a fork, labels, a lease, a fold, a pruned checkpoint and a step back."""
    clock = FakeClock(tick=1.0)
    with open_store(tmp_path, clock=clock) as store:
        session = store.session("run", key="run from elsewhere")
        for number in range(30):
            session.state.set("memory/step", number)
            if number % 5 == 0:
                session.checkpoint(label=f"step-{number}", key=f"id-{number}")
        clock.set(clock.now() - timedelta(hours=2))
        session.state.set("memory/late", True)
        agent = store.agent("coder", session="run")
        agent.state.append("conversation", {"role": "user", "content": "word " * 500})
        agent.close()
        session.fork("step-20", "fork", key="fork from elsewhere").checkpoint(label="forked")
        _fold(store)
    return tmp_path / ".mulligan"


def _fold(store: Store) -> None:
    engine = store._engine
    with engine.read() as view:
        first = view.checkpoints(1, 1, 100)[1][0]
    with engine.write() as txn:
        txn.prune(1, [first])
    with upkeep_lock(engine, wait=False):
        record = store._record("run", False, "cli")
        assert fold_session(engine, record, 12, min_events=2).events


def records(place: Path) -> list[RawRecord]:
    return list(read_records(place / "journal" / "data.mdb"))


def rebuilt(place: Path, found: Iterable[RawRecord]) -> Rebuilt:
    return rebuild(found, bytes.fromhex(read_format(place).id))


def tables(place: Path) -> dict[str, dict[bytes, bytes]]:
    opened = LmdbTables(place / "journal", read_only=True)
    try:
        with opened.read() as reader:
            return {name: dict(reader.scan(name, b"", None)) for name in DERIVED}
    finally:
        opened.close()


def test_a_sound_journal_is_rebuilt_record_for_record(place: Path) -> None:
    made = rebuilt(place, records(place))
    assert made.tables == tables(place)
    assert (made.lost, made.mended, made.unproven, made.assumed) == ([], [], [], [])


def test_older_versions_of_records_change_nothing(place: Path) -> None:
    found = records(place)
    assert any(not record.is_current for record in found)
    assert rebuilt(place, sorted(found)).tables == tables(place)


def test_everything_but_events_and_sessions_is_derived(place: Path) -> None:
    kept = tables(place)
    derived = ("heads", "checkpoints", "ids", "labels", "keys", "names", "meta")
    gone = {value for name in derived for value in kept[name].values()}
    made = rebuilt(place, [record for record in records(place) if record.value not in gone])
    # A fork may name any keyframe of its parent; what it names is gone here.
    fork = NUMBER.pack(2)
    made.tables["heads"].pop(fork), kept["heads"].pop(fork)
    for name in derived:
        assert made.tables[name] == kept[name], name


def test_a_session_without_a_record_is_made_from_its_first_event(place: Path) -> None:
    kept = tables(place)
    gone = {value for name in ("sessions", "names", "keys") for value in kept[name].values()}
    made = rebuilt(place, [record for record in records(place) if record.value not in gone])
    assert made.tables["events"] == kept["events"]
    assert made.tables["names"] == kept["names"]
    assert made.tables["keys"] == kept["keys"]
    assert made.tables["ids"] == kept["ids"]
    assert len(made.assumed) == 2


def without(found: list[RawRecord], place: bytes) -> list[RawRecord]:
    return [r for r in found if r.key != place or len(r.value) < 60]


def current(found: list[RawRecord], key: bytes) -> RawRecord:
    return next(r for r in found if r.key == key and r.is_current and len(r.value) > 60)


def test_a_flipped_bit_in_an_event_is_mended(place: Path) -> None:
    found, key = records(place), PLACE.pack(1, 20)
    damaged = bytearray(current(found, key).value)
    damaged[50] ^= 4
    made = rebuilt(place, [*without(found, key), RawRecord(key, bytes(damaged), True)])
    assert made.tables == tables(place)
    assert made.mended == [("run", 20)]


def test_a_damaged_hash_of_an_event_is_computed_again(place: Path) -> None:
    found, key = records(place), PLACE.pack(1, 20)
    value = current(found, key).value
    made = rebuilt(place, [*without(found, key), RawRecord(key, bytes(32) + value[32:], True)])
    assert made.tables == tables(place)
    assert made.mended == [("run", 20)]


def test_an_event_with_a_damaged_key_is_found(place: Path) -> None:
    found, key = records(place), PLACE.pack(1, 20)
    for other in (PLACE.pack(1, 20 | 1 << 40), PLACE.pack(1 | 1 << 20, 20)):
        moved = RawRecord(other, current(found, key).value, True)
        made = rebuilt(place, [*without(found, key), moved])
        assert made.tables == tables(place)
        assert made.lost == []


def test_a_lost_event_leaves_its_place_and_the_rest_is_proven(place: Path) -> None:
    found, key = records(place), PLACE.pack(1, 20)
    value = current(found, key).value
    damaged = RawRecord(key, value[:32] + bytes(len(value) - 32), True)
    made = rebuilt(place, [*without(found, key), damaged])
    assert [(lost.session, lost.seq) for lost in made.lost] == [("run", 20)]
    assert made.unproven == []
    expected, events = tables(place)["events"], made.tables["events"]
    assert {k for k, v in events.items() if expected[k] != v} == {key}
    assert is_unproven(events[key])
    assert LOST.encode() in events[key]


def test_events_after_a_gap_are_kept_although_nothing_proves_the_first(place: Path) -> None:
    found = records(place)
    for seq in (20, 21):
        found = without(found, PLACE.pack(1, seq))
    made = rebuilt(place, found)
    assert [lost.seq for lost in made.lost] == [20, 21]
    assert made.unproven == [("run", 22)]
    expected, events = tables(place)["events"], made.tables["events"]
    assert {PLACE.unpack(k)[1] for k, v in events.items() if expected[k] != v} == {20, 21, 22}


def test_a_second_rebuild_changes_nothing(place: Path) -> None:
    found = records(place)
    for seq in (20, 21):
        found = without(found, PLACE.pack(1, seq))
    first = rebuilt(place, found)
    pairs = [pair for table in first.tables.values() for pair in table.items()]
    again = rebuilt(place, [RawRecord(key, value, True) for key, value in pairs])
    assert again.tables == first.tables
    assert again.lost == []


def test_a_lost_checkpoint_is_named(place: Path) -> None:
    found = records(place)
    identity, seq = next(
        (value[:16].hex(), PLACE.unpack(key)[1])
        for key, value in tables(place)["checkpoints"].items()
        if PLACE.unpack(key)[0] == 1 and PLACE.unpack(key)[1] > 15
    )
    made = rebuilt(place, without(found, PLACE.pack(1, seq)))
    [lost] = made.lost
    assert (lost.seq, lost.checkpoint) == (seq, identity)
    assert lost.label is not None
    assert identity not in {key.hex() for key in made.tables["ids"]}


def test_a_lost_lease_counts_as_released_with_its_epoch(place: Path) -> None:
    kept = tables(place)
    gone = set(kept["leases"].values())
    assert gone
    made = rebuilt(place, [record for record in records(place) if record.value not in gone])
    assert made.tables["leases"].keys() == kept["leases"].keys()
    assert "coder" in made.assumed[0]


def test_a_head_does_not_name_a_keyframe_that_is_lost(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        session = store.session("run")
        with session.batch():
            for number in range(600):
                session.state.set("memory/step", number)
    place = tmp_path / ".mulligan"
    key = NUMBER.pack(1)
    assert decode_head(tables(place)["heads"][key][:-CHECKSUM_SIZE]).keyframe
    keyframes = tables(place)["keyframes"]
    left = [one for one in records(place) if one.key not in keyframes or len(one.value) > 60]
    made = rebuilt(place, left)
    assert made.tables["keyframes"] == {}
    assert decode_head(made.tables["heads"][key][:-CHECKSUM_SIZE]).keyframe == 0


@pytest.mark.parametrize("is_older_found", [False, True])
def test_a_deleted_session_does_not_get_a_key_or_name_back_that_another_has(
    tmp_path: Path, is_older_found: bool
) -> None:
    """The record that says it is deleted is lost; one from before may be found, or its events."""
    with open_store(tmp_path) as store:
        for name in ("first", "second"):
            store.session(name, key=f"id of {name}").state.set("memory/a", 1)
            store.delete(name)
        store.session("other", key="id of first").state.set("memory/a", 2)
        store.session("second").state.set("memory/a", 2)
    place = tmp_path / ".mulligan"
    gone = [NUMBER.pack(number) for number in (1, 2)]
    found = [record for record in records(place) if not _is_session(record, gone)]
    if is_older_found:
        for number, name in enumerate(("first", "second"), 1):
            older = encode(SessionRecord(number, name, START, None, f"id of {name}"))
            check = checksum("sessions", NUMBER.pack(number), older)
            found.append(RawRecord(NUMBER.pack(number), older + check, False))
    made = rebuilt(place, found).tables
    sessions = [decode(value[:-8], SessionRecord, "") for value in made["sessions"].values()]
    by_name = {one.name: one.number for one in sessions}
    assert len(by_name) == len(sessions)
    assert (by_name["other"], by_name["second"]) == (3, 4)
    keys = [one.key for one in sessions if one.key]
    assert len(set(keys)) == len(keys)
    assert next(one.key for one in sessions if one.number == 3) == "id of first"


def _is_session(record: RawRecord, keys: list[bytes]) -> bool:
    content, check = record.value[:-8], record.value[-8:]
    return record.key in keys and check == checksum("sessions", record.key, content)
