"""Reclaiming space on a full disk: that is when it is needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from mulligan.testing.stores import open_store
from mulligan.upkeep.space.reclaim_space import reclaim
from tests.disks import disk_of


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of(24, tmp_path / "disk") as made:
        yield made


def fill(disk: Path) -> None:
    """Leave not one block free."""
    with (disk / "filler").open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    assert os.statvfs(disk).f_bavail == 0


def test_space_is_given_back_on_a_disk_without_a_free_block(disk: Path, work: Path) -> None:
    with open_store(disk / "store") as store:
        session = store.session("run", workspace=work)
        session.checkpoint()
        for number in range(300):
            (work / f"small-{number}").write_bytes(Random(number).randbytes(2_000))
        (work / "large").write_bytes(Random(1).randbytes(6 << 20))
        pruned = session.checkpoint()
        for file in work.iterdir():
            file.unlink()
        (work / "kept").write_bytes(b"kept" * 1_000)
        session.checkpoint(label="kept")
        with store._engine.write() as txn:
            txn.prune(1, [pruned.seq])
        fill(disk)
        (work / "more").write_bytes(Random(2).randbytes(1 << 20))
        assert session.checkpoint().workspace is None
        done = reclaim(store._engine)
        assert done.removed >= 300
        assert done.total > 5 << 20
        assert store.verify(full=True).problems == ()
        session.checkpoint()
        session.restore("kept")
        assert (work / "kept").read_bytes() == b"kept" * 1_000
