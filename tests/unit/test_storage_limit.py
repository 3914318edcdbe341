"""How much a store may grow: its quota, and the reserve of its file system."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from mulligan.storage_limit import QUOTA, RESERVE, StorageLimit

GB = 1_000_000_000


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "packs").mkdir()
    (tmp_path / "journal").mkdir()
    return tmp_path


def disk(monkeypatch: pytest.MonkeyPatch, total: int, free: int) -> None:
    found = SimpleNamespace(f_frsize=1, f_blocks=total, f_bavail=free)
    monkeypatch.setattr(os, "statvfs", lambda _: found)


@pytest.mark.parametrize(
    ("total", "free", "left"),
    [
        (1000 * GB, 1 * GB, 0),
        (1000 * GB, 5 * GB, 4 * GB),
        (10 * GB, GB // 10, 0),
        (1_000_000, 500_000, 490_000),
        (1000 * GB, 0, -1 * GB),
    ],
    ids=["1-gb", "more", "1-percent-of-a-small-disk", "a-tiny-disk", "a-full-disk"],
)
def test_the_file_system_keeps_a_reserve(
    place: Path, monkeypatch: pytest.MonkeyPatch, total: int, free: int, left: int
) -> None:
    disk(monkeypatch, total, free)
    found = StorageLimit(place).allowance()
    assert found is not None
    assert (found.bytes, found.limit) == (left, RESERVE)


def test_the_quota_counts_what_packs_and_journal_occupy(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk(monkeypatch, 1000 * GB, 500 * GB)
    (place / "packs" / "1.pack").write_bytes(b"x" * 100_000)
    with (place / "journal" / "data.mdb").open("wb") as file:
        file.truncate(1 << 40)  # a hole, of which nothing is occupied
    limit = StorageLimit(place, quota=1_000_000)
    assert 100_000 <= limit.size() < 200_000
    found = limit.allowance()
    assert found is not None
    assert found.limit == QUOTA
    assert found.bytes == 1_000_000 - limit.size()
    assert "quota of 1 MB" in found.reason


def test_the_smaller_of_both_limits_counts(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, 1000 * GB, GB + 10)
    found = StorageLimit(place, quota=5 * GB).allowance()
    assert found is not None
    assert (found.bytes, found.limit) == (10, RESERVE)


def test_a_store_in_memory_or_one_that_is_gone_has_no_limit(tmp_path: Path) -> None:
    assert StorageLimit(None, quota=1).allowance() is None
    assert StorageLimit(tmp_path / "gone").allowance() is None
