"""The pages of a journal: nothing sound is called damaged, and every kind of damage is found."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import lmdb
import pytest

from mulligan.journal.lmdb import layout, pages

PAGE = 4_096
SIZES = (0, 1, 30, 300, 2_000, 3_000, 9_000, 50_000)


def found(directory: Path, known: Iterable[str] = ("large", "small")) -> dict[str, str]:
    """Return what is wrong with the newest commit."""
    fd = os.open(directory / "data.mdb", os.O_RDONLY)
    try:
        return pages.check(fd, layout.commits(fd)[0], known)
    finally:
        os.close(fd)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_lmdb_writes_is_sound(tmp_path: Path, seed: int) -> None:
    """Random puts, overwrites and deletes of all sizes, in several tables, over many commits."""
    rng = random.Random(seed)
    with lmdb.open(str(tmp_path), map_size=1 << 30, max_dbs=32, sync=False) as env:
        names = [f"t{number}" for number in range(rng.randint(1, 4))]
        tables = [env.open_db(name.encode()) for name in names]
        known: list[bytes] = []
        for _ in range(rng.randint(2, 30)):
            with env.begin(write=True) as txn:
                for _ in range(rng.randint(1, 200)):
                    table = rng.choice(tables)
                    if known and rng.random() < 0.4:
                        txn.delete(rng.choice(known), db=table)
                    if known and rng.random() < 0.2:
                        key = rng.choice(known)
                    else:
                        key = rng.randbytes(rng.choice([1, 4, 12, 32, 200, 511]))
                        known.append(key)
                    txn.put(key, bytes(rng.choice(SIZES)), db=table)
            assert found(tmp_path, names) == {}


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Two tables, one of them with branches and large values."""
    with lmdb.open(str(tmp_path), map_size=1 << 30, max_dbs=32, sync=False) as env:
        large, small = env.open_db(b"large"), env.open_db(b"small")
        for part in range(4):
            with env.begin(write=True) as txn:
                for number in range(500):
                    txn.put(struct.pack(">IQ", part, number), bytes(number % 90), db=large)
                txn.put(b"\xff%d" % part, bytes(9_000), db=large)
                txn.put(b"key", b"value %d" % part, db=small)
    assert found(tmp_path) == {}
    return tmp_path


def first(journal: Path, flags: int, then: Callable[[int, bytes], bool] = lambda *_: True) -> int:
    """Return the number of the first reachable page of a kind."""
    data = (journal / "data.mdb").read_bytes()
    for number in range(2, len(data) // PAGE):
        page = data[number * PAGE : (number + 1) * PAGE]
        own, _, kind = struct.unpack_from("=QHH", page)
        if (own, kind) != (number, flags) or not then(number, page):
            continue
        write(journal, number * PAGE, bytes(PAGE))
        is_used = found(journal) != {}
        write(journal, number * PAGE, page)
        if is_used:
            return number
    raise AssertionError("no such page")


def write(journal: Path, offset: int, data: bytes) -> None:
    with (journal / "data.mdb").open("r+b") as file:
        file.seek(offset)
        file.write(data)


BRANCH, LEAF, OVERFLOW = 1, 2, 4


@pytest.mark.parametrize("kind", [BRANCH, LEAF, OVERFLOW])
@pytest.mark.parametrize(
    "field",
    [(0, "=Q", 1), (10, "=H", 0), (10, "=H", 0x12), (12, "=H", 17), (14, "=H", 0xFFF0)],
    ids=["number", "no kind", "dirty", "lower", "upper"],
)
def test_a_wrong_field_in_the_head_of_a_page(
    journal: Path, kind: int, field: tuple[int, str, int]
) -> None:
    offset, form, value = field
    if kind == OVERFLOW and offset == 12:
        value = 0  # fewer pages than the value needs
    write(journal, first(journal, kind) * PAGE + offset, struct.pack(form, value))
    assert found(journal) != {}


def test_an_entry_that_points_out_of_its_page(journal: Path) -> None:
    write(journal, first(journal, LEAF) * PAGE + 16, struct.pack("=H", PAGE - 2))
    assert found(journal) != {}


def test_entries_in_the_wrong_order(journal: Path) -> None:
    at = first(journal, LEAF, lambda _, page: struct.unpack_from("=H", page, 12)[0] > 40) * PAGE
    data = (journal / "data.mdb").read_bytes()
    write(journal, at + 16, data[at + 18 : at + 20] + data[at + 16 : at + 18])
    assert "out of order" in next(iter(found(journal).values()))


def test_damage_is_told_of_the_table_that_has_it_and_of_no_other(journal: Path) -> None:
    write(journal, first(journal, BRANCH) * PAGE, bytes(PAGE))
    assert list(found(journal)) == ["large"]


def test_a_flipped_bit_anywhere_in_the_entry_of_a_table(journal: Path) -> None:
    """Of a table under another name LMDB would make a new, empty one, and hide the records."""
    data = (journal / "data.mdb").read_bytes()
    fd = os.open(journal / "data.mdb", os.O_RDONLY)
    page = layout.commits(fd)[0].main.root * PAGE
    os.close(fd)
    (upper,) = struct.unpack_from("=H", data, page + 14)
    for at in range(page + upper, page + PAGE):
        for bit in range(8):
            write(journal, at, bytes([data[at] ^ 1 << bit]))
            # Head, name and record have 61 bytes; LMDB aligns entries to two.
            is_padding = (at - page - upper) % 62 == 61
            assert bool(found(journal)) != is_padding, (at, bit)
        write(journal, at, data[at : at + 1])


def test_a_table_that_every_journal_has_is_missed(journal: Path) -> None:
    damage = found(journal, ["large", "small", "other", "folds"])
    assert damage == {"other": "it is missing"}  # a later version added ``folds``


def test_a_page_that_is_free_and_in_use(journal: Path) -> None:
    """A writer would take it for a new page, and write over what is there."""
    data = (journal / "data.mdb").read_bytes()
    fd = os.open(journal / "data.mdb", os.O_RDONLY)
    commit = layout.commits(fd)[0]
    os.close(fd)
    at = commit.free.root * PAGE
    lower = struct.unpack_from("=H", data, at + 12)[0]
    node = at + struct.unpack_from(f"={(lower - 16) // 2}H", data, at + 16)[0]
    key = struct.unpack_from("=H", data, node + 6)[0]
    write(journal, node + 8 + key + 8, struct.pack("=Q", commit.main.root))
    assert list(found(journal)) == [pages.FREE]


@pytest.mark.parametrize("at", [16, 24 + 8 + 8, 144, 10, 0])
def test_a_meta_page_that_tells_of_no_commit(journal: Path, at: int) -> None:
    write(journal, at, b"\xa5\xa5")
    fd = os.open(journal / "data.mdb", os.O_RDONLY)
    try:
        with pytest.raises(layout.Unreadable):
            layout.commits(fd)
    finally:
        os.close(fd)
