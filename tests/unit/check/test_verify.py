"""Verify: each kind of damage is found and named; a sound store has none."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest
from blake3 import blake3

import mulligan
from mulligan import Finding, Report
from mulligan.document.nodes import references
from mulligan.errors import DamagedJournal
from mulligan.testing.clock import START, FakeClock
from mulligan.testing.stores import open_store

LARGE = "large " * 3_000


def build(directory: Path) -> None:
    """Two sessions, a fork, checkpoints with labels, large values and keyframes."""
    with mulligan.open(directory) as store:
        session = store.session("run")
        session.state.set("text", LARGE)
        session.checkpoint(label="here", note="n")
        with session.batch():
            for number in range(600):
                session.state.set(("count", f"k{number % 100}"), number)
        session.checkpoint(label="there")
        session.restore("here")
        fork = session.fork("there", "branch")
        fork.state.append("list", LARGE[::-1])
        store.session("run-1").state.set("text", "small")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    build(tmp_path)
    return tmp_path


def report(directory: Path, *, full: bool = True) -> Report:
    with mulligan.open(directory, salvage=True) as opened:
        return opened.verify(full)


class Tables:
    """The journal's tables, in the hands of somebody who means no good."""

    def __init__(self, env: lmdb.Environment, txn: lmdb.Transaction[bytes]) -> None:
        self._env = env
        self._txn = txn

    def keys(self, table: str) -> list[bytes]:
        return [key for key, _ in self._txn.cursor(self._db(table))]

    def get(self, table: str, key: bytes) -> bytes:
        value: bytes | None = self._txn.get(key, db=self._db(table))
        assert value is not None
        return value

    def put(self, table: str, key: bytes, content: bytes) -> None:
        """Write a record with a checksum that is right."""
        self.put_raw(table, key, content + check(table, key, content))

    def put_raw(self, table: str, key: bytes, value: bytes) -> None:
        self._txn.put(key, value, db=self._db(table))

    def delete(self, table: str, key: bytes) -> None:
        assert self._txn.delete(key, db=self._db(table))

    def _db(self, table: str) -> lmdb._Database:
        return self._env.open_db(table.encode(), txn=self._txn, create=False)


def check(table: str, key: bytes, content: bytes) -> bytes:
    return blake3(b"%s\x00%s\x00%s" % (table.encode(), key, content)).digest(length=8)


@contextmanager
def tables(directory: Path) -> Iterator[Tables]:
    path = str(directory / ".mulligan" / "journal")
    with lmdb.open(path, max_dbs=32, map_size=1 << 30) as env, env.begin(write=True) as txn:
        yield Tables(env, txn)


def flipped(value: bytes, at: int = -1) -> bytes:
    changed = bytearray(value)
    changed[at] ^= 1
    return bytes(changed)


def place(number: int, seq: int) -> bytes:
    return struct.pack(">IQ", number, seq)


RUN, BRANCH = struct.pack(">I", 1), struct.pack(">I", 2)


def test_a_sound_store_has_no_problems(store: Path) -> None:
    found = report(store)
    assert found.problems == ()
    assert found.ok
    assert (found.sessions, found.checkpoints) == (3, 3)
    assert found.events == 1 + 1 + 1 + 600 + 1 + 2 + 2 + 2
    assert found.keyframes >= 1
    assert found.objects > 2
    assert found.packs == 1
    assert report(store, full=False).ok


def test_a_store_in_memory_is_verified_too() -> None:
    with mulligan.open("memory:") as opened:
        session = opened.session("run")
        session.state.set("text", LARGE)
        session.checkpoint()
        found = opened.verify()
    assert found.ok
    assert (found.sessions, found.events, found.checkpoints) == (1, 3, 1)


# --- the two truths --------------------------------------------------------------------------


def one(found: Report, what: str, where: str, detail: str = "") -> Finding:
    """Return the problem that is named so; there has to be one."""
    fits = [p for p in found.problems if p.what == what and where in p.where and detail in p.detail]
    assert fits, f"no {what!r} at {where!r} among {found.problems}"
    return fits[0]


@pytest.mark.parametrize("seq", [1, 2, 300, 606])
@pytest.mark.parametrize("at", [0, 32, 40, -1])
def test_a_changed_event(store: Path, seq: int, at: int) -> None:
    with tables(store) as damage:
        record = damage.get("events", place(1, seq))
        damage.put_raw("events", place(1, seq), flipped(record, at))
    for full in (True, False):
        found = one(report(store, full=full), "journal", f"session 'run' event #{seq}")
        assert (found.fault, found.session, found.seq) == ("event", 1, seq)


def test_a_missing_event(store: Path) -> None:
    with tables(store) as damage:
        damage.delete("events", place(1, 300))
    found = one(report(store), "journal", "session 'run' event #300")
    assert "missing" in found.detail


def test_two_events_that_changed_places(store: Path) -> None:
    with tables(store) as damage:
        first, second = (damage.get("events", place(1, seq)) for seq in (100, 101))
        damage.put_raw("events", place(1, 100), second)
        damage.put_raw("events", place(1, 101), first)
    one(report(store), "journal", "session 'run' event #100", "chain breaks")


def test_an_event_that_was_replaced_by_a_true_one(store: Path, tmp_path: Path) -> None:
    with tables(store) as damage:
        damage.put_raw("events", place(1, 100), damage.get("events", place(3, 2)))
    one(report(store), "journal", "session 'run' event #100", "chain breaks")


@pytest.mark.parametrize("at", [40, 60, 90, -1])
def test_a_damaged_pack(store: Path, at: int) -> None:
    [pack] = (store / ".mulligan" / "packs").iterdir()
    pack.write_bytes(flipped(pack.read_bytes(), at))
    found = report(store)
    assert not found.ok
    assert any("00000001.pack" in p.where or "00000001.pack" in p.detail for p in found.problems)
    for problem in found.problems:
        if problem.fault in ("object", "gap"):
            assert problem.location is not None
            assert problem.location.area == problem.area == 1
            assert (problem.fault == "object") == (problem.digest is not None)
    assert {p.fault for p in found.problems} & {"object", "gap"}


def test_a_pack_that_is_cut_short(store: Path) -> None:
    [pack] = (store / ".mulligan" / "packs").iterdir()
    pack.write_bytes(pack.read_bytes()[:-10])
    for full in (True, False):
        one(report(store, full=full), "pack", "00000001.pack")


def test_a_missing_pack(store: Path) -> None:
    [pack] = (store / ".mulligan" / "packs").iterdir()
    pack.unlink()
    for full in (True, False):
        found = one(report(store, full=full), "pack", "00000001.pack", "missing")
        assert (found.fault, found.area) == ("pack", 1)


def test_bytes_nobody_acknowledged_are_no_problem(store: Path) -> None:
    [pack] = (store / ".mulligan" / "packs").iterdir()
    with pack.open("ab") as file:
        file.write(b"torn tail")
    found = report(store)
    assert found.ok
    assert found.unreferenced_bytes >= 9


def test_a_pack_of_another_store_is_named_and_not_called_collectable(
    store: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    with mulligan.open(other) as opened:
        opened.session("s").state.set("a", "x" * 10_000)
    data = bytearray((other / ".mulligan/packs/00000001.pack").read_bytes())
    data[12:16] = (9).to_bytes(4, "little")  # its number
    before = report(store).unreferenced_bytes
    (store / ".mulligan/packs/00000009.pack").write_bytes(data)
    found = report(store)
    assert found.ok
    assert [w.where for w in found.warnings if "another store" in w.detail] == ["00000009.pack"]
    assert found.unreferenced_bytes == before


# --- every index against them ----------------------------------------------------------------

SMALL = ["sessions", "names", "heads", "checkpoints", "ids", "keyframes", "packs"]


@pytest.mark.parametrize("table", SMALL)
@pytest.mark.parametrize("at", [0, -1])
def test_a_flipped_bit_in_a_small_record(store: Path, table: str, at: int) -> None:
    with tables(store) as damage:
        key = damage.keys(table)[0]
        damage.put_raw(table, key, flipped(damage.get(table, key), at))
    found = report(store)
    assert not found.ok
    assert any(table in p.detail or table in p.where for p in found.problems), found.problems
    assert table in {p.table for p in found.problems}


def test_a_record_of_the_wrong_length(store: Path) -> None:
    with tables(store) as damage:
        key = damage.keys("objects")[0]
        damage.put_raw("objects", key, b"short")
    assert not report(store).ok


Wrong = Callable[[Tables], None]


def lost_id(damage: Tables) -> None:
    damage.delete("ids", damage.get("checkpoints", place(1, 3))[:-8])


def id_of_another(damage: Tables) -> None:
    identity = damage.get("checkpoints", place(1, 3))[:-8]
    damage.put("ids", identity, place(1, 2))


def lost_checkpoint(damage: Tables) -> None:
    damage.delete("checkpoints", place(1, 3))


def invented_checkpoint(damage: Tables) -> None:
    damage.put("checkpoints", place(1, 2), bytes(16))


def lost_label(damage: Tables) -> None:
    [key] = [key for key in damage.keys("labels") if b"here" in key and b"there" not in key]
    damage.delete("labels", key)


def lost_name(damage: Tables) -> None:
    damage.delete("names", b"run")


def name_of_another(damage: Tables) -> None:
    damage.put("names", b"run", BRANCH)


def lost_head(damage: Tables) -> None:
    damage.delete("heads", RUN)


def head_too_low(damage: Tables) -> None:
    content = damage.get("heads", RUN)[:-8]
    damage.put("heads", RUN, struct.pack(">Q", 100) + content[8:])


def head_too_high(damage: Tables) -> None:
    content = damage.get("heads", RUN)[:-8]
    damage.put("heads", RUN, struct.pack(">Q", 10_000) + content[8:])


def head_of_another_hash(damage: Tables) -> None:
    content = damage.get("heads", RUN)[:-8]
    damage.put("heads", RUN, content[:8] + bytes(32) + content[40:])


def head_of_another_checkpoint(damage: Tables) -> None:
    content = damage.get("heads", RUN)[:-8]
    seq = struct.calcsize(">Q32sqQ")
    damage.put("heads", RUN, content[:seq] + struct.pack(">Q", 3) + content[seq + 8 :])


def head_of_another_keyframe(damage: Tables) -> None:
    content = damage.get("heads", RUN)[:-8]
    seq = struct.calcsize(">Q32sq")
    damage.put("heads", RUN, content[:seq] + struct.pack(">Q", 7) + content[seq + 8 :])


def invented_label(damage: Tables) -> None:
    damage.put("labels", RUN + b"invented\x00" + struct.pack(">Q", 2), b"")


def invented_id(damage: Tables) -> None:
    damage.put("ids", bytes(16), place(1, 2))


def invented_name(damage: Tables) -> None:
    damage.put("names", b"invented", RUN)


def lost_keyframe(damage: Tables) -> None:
    damage.delete("keyframes", damage.keys("keyframes")[0])


def keyframe_of_another_state(damage: Tables) -> None:
    key = damage.keys("keyframes")[0]
    seq = struct.unpack(">IQ", key)[1]
    damage.put("keyframes", place(1, seq - 100), damage.get("keyframes", key)[:-8])


def keyframe_of_nothing(damage: Tables) -> None:
    damage.put("keyframes", damage.keys("keyframes")[0], bytes(32))


def lost_object(damage: Tables) -> None:
    # A copy of events is no loss while the events are there.
    copies = {damage.get("copies", key)[8:40] for key in damage.keys("copies")}
    damage.delete("objects", next(key for key in damage.keys("objects") if key not in copies))


def object_elsewhere(damage: Tables) -> None:
    key = damage.keys("objects")[0]
    pack, offset, length, slot = struct.unpack(">IQII", damage.get("objects", key)[:20])
    rest = damage.get("objects", key)[20:]
    damage.put_raw("objects", key, struct.pack(">IQII", pack, offset + 1, length, slot) + rest)


def invented_object(damage: Tables) -> None:
    key = damage.keys("objects")[0]
    damage.put_raw("objects", bytes(32), damage.get("objects", key))


def pack_too_short(damage: Tables) -> None:
    damage.put("packs", RUN, struct.pack(">Q", 100))


def pack_too_long(damage: Tables) -> None:
    damage.put("packs", RUN, struct.pack(">Q", 10**9))


def invented_pack(damage: Tables) -> None:
    damage.put("packs", struct.pack(">I", 9), struct.pack(">Q", 100))


NAMED = [
    (lost_id, "index", "session 'run' checkpoint #3"),
    (id_of_another, "index", "session 'run' checkpoint #3"),
    (lost_checkpoint, "index", "session 'run' checkpoint #3"),
    (invented_checkpoint, "index", "session 'run' checkpoint #2"),
    (lost_label, "index", "session 'run' checkpoint #3"),
    (lost_name, "index", "session 'run' name"),
    (name_of_another, "index", "session 'run' name"),
    (lost_head, "journal", "session 'run'"),
    (head_too_low, "index", "session 'run' head"),
    (head_too_high, "journal", "session 'run' event #"),
    (head_of_another_hash, "index", "session 'run' head"),
    (head_of_another_checkpoint, "index", "session 'run' head"),
    (head_of_another_keyframe, "index", "session 'run' head"),
    (lost_keyframe, "index", "session 'run' "),
    (keyframe_of_another_state, "index", "session 'run' keyframe #"),
    (keyframe_of_nothing, "object", "00" * 32),
    (invented_label, "index", "session 'run' label"),
    (invented_id, "index", "00" * 16),
    (invented_name, "index", "'invented'"),
    (lost_object, "object", "needed by"),
    (object_elsewhere, "index", "object "),
    (invented_object, "index", f"object {'00' * 32}"),
    (pack_too_short, "pack", "00000001.pack"),
    (pack_too_long, "pack", "00000001.pack"),
]


def test_a_missing_pack_that_nothing_leads_to_is_a_warning(store: Path) -> None:
    with tables(store) as damage:
        invented_pack(damage)
    found = report(store)
    assert found.ok
    [warning] = found.warnings
    assert (warning.fault, warning.area) == ("pack", 9)


@pytest.mark.parametrize(
    ("wrong", "what", "where"), NAMED, ids=lambda x: getattr(x, "__name__", "")
)
def test_a_false_index_is_named(store: Path, wrong: Wrong, what: str, where: str) -> None:
    with tables(store) as damage:
        wrong(damage)
    one(report(store), what, where)


def test_damage_in_one_session_does_not_hide_that_of_another(store: Path) -> None:
    with tables(store) as damage:
        for number in (1, 3):
            record = damage.get("events", place(number, 2))
            damage.put_raw("events", place(number, 2), flipped(record))
    found = report(store)
    one(found, "journal", "session 'run' event #2")
    one(found, "journal", "session 'run-1' event #2")
    assert found.sessions == 3


def test_everything_that_is_not_damaged_can_still_be_read(store: Path) -> None:
    with tables(store) as damage:
        record = damage.get("events", place(1, 605))
        damage.put_raw("events", place(1, 605), flipped(record))
    with mulligan.open(store) as opened:
        assert opened.session("run-1").state.get("") == {"text": "small"}
        assert opened.session("run").state.at(2).get() == {"text": LARGE}


# --- below the tables ------------------------------------------------------------------------


def root_of(directory: Path, table: str) -> int:
    """Return the first page of a table, as the table of tables has it."""
    with lmdb.open(str(directory / ".mulligan/journal"), max_dbs=32) as env, env.begin() as txn:
        record: bytes | None = txn.get(table.encode())
    assert record is not None
    return int(struct.unpack_from("=Q", record, 40)[0])


@pytest.mark.parametrize(
    "table", ["events", "heads", "names", "ids", "labels", "keyframes", "objects", "packs"]
)
def test_verify_goes_on_after_a_table_that_cannot_be_read(store: Path, table: str) -> None:
    root = root_of(store, table)
    with (store / ".mulligan/journal/data.mdb").open("r+b") as file:
        file.seek(root * 4_096)
        file.write(bytes(4_096))
    pack = store / ".mulligan/packs/00000001.pack"
    pack.write_bytes(flipped(pack.read_bytes(), 32 + 32 + 2))  # a digest in a frame's directory
    found = report(store)
    one(found, "journal", f"table {table!r}")
    one(found, "pack", "00000001.pack")
    assert found.packs == 1


def test_names_that_are_not_utf_8_are_damage(store: Path) -> None:
    with tables(store) as damage:
        damage.put("names", b"\xff\xfe", RUN)
        damage.put("sessions", struct.pack(">I", 9), b"\x94\x09\xa2\xff\xfe\x00\xc0")
    with mulligan.open(store) as opened, pytest.raises(DamagedJournal):
        opened.sessions()
    one(report(store), "journal", "table 'sessions'")


def test_a_step_back_in_time_that_was_not_written_down_is_named(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_store(tmp_path, clock=clock) as opened:
        session = opened.session("run")
        clock.advance(3_600)
        session.state.set("a", 1)
        clock.set(START)
        session.state.set("a", 2)
        assert opened.verify().ok
    with tables(tmp_path) as damage:
        damage.delete("meta", b"clock" + RUN)
    one(report(tmp_path), "journal", "session 'run' event #3", "its time is before")
    with tables(tmp_path) as damage:
        damage.put("meta", b"clock" + RUN, struct.pack(">QQ", 2, 3))
    one(report(tmp_path), "index", "session 'run' event #2", "its time is not before")


@pytest.mark.parametrize("full", [False, True])
def test_a_lost_part_of_the_list_of_what_is_left_out_is_found(tmp_path: Path, full: bool) -> None:
    """The list is stored once for all checkpoints that share it, so that all of them need it."""
    for number in range(200):
        (tmp_path / "work" / f"package-{number:04}" / "__pycache__").mkdir(parents=True)
    with mulligan.open(tmp_path) as store:
        session = store.session("run", workspace=tmp_path / "work")
        taken = session.checkpoint()
        with session._engine.read() as view:
            event = next(iter(view.events(1, taken.seq, taken.seq)))
        lost = next(references(event.payload["coverage"]))
        session.close()
    with tables(tmp_path) as damage:
        damage.delete("objects", lost)
    found = report(tmp_path, full=full).problems
    assert any(lost.hex() in problem.where for problem in found)


def test_a_store_in_memory_is_verified_as_any_other() -> None:
    with mulligan.open("memory:") as store:
        session = store.session("run")
        session.state.set("text", "long " * 10_000)
        session.checkpoint("routine")
        report = store.verify(full=True)
        assert report.ok
        assert report.objects > 0
        assert (report.packs, report.unreferenced_bytes) == (1, 0)
        contents = store._engine.objects._contents  # type: ignore[attr-defined]
        digest, (kind, data) = next(iter(contents.items()))
        contents[digest] = (kind, data[:-1] + b"?")
        assert store.verify(full=False).ok, "without full, the bytes of objects are not read"
        [problem, *_] = store.verify(full=True).problems
        assert digest.hex() in problem.where
