"""Reclaiming space is killed at every named failpoint; every checkpoint that is kept restores."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path
from random import Random

import pytest

from mulligan import Store
from mulligan.failpoints import Failpoint
from mulligan.journal.lmdb import compact
from mulligan.model import Digest
from mulligan.testing.failpoints import FailpointCounter, kill_at
from mulligan.testing.stores import open_store
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.space.reclaim_space import Reclaimed, reclaim

POINTS = [point for point in Failpoint if point.name.startswith(("GC_", "FREE_", "COMPACT_"))]
FILES = range(40)
KEPT = range(0, 40, 10)


def content(number: int) -> bytes:
    return Random(number).randbytes(20_000)


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact small journals, too."""
    monkeypatch.setattr(compact, "MIN_FREE_BYTES", 1 << 18)


@pytest.fixture
def place(tmp_path: Path, work: Path) -> Path:
    """A store with dead packs, dead frames, frames that are mostly dead, and free pages."""
    place = tmp_path / "store"
    with open_store(place) as store:
        engine = store._engine
        with engine.pin(), engine.write(bundle := engine.bundle()):
            bundle.put(2, Random(99).randbytes(300_000))
    # While its writer is not there, the next one gets a pack of its own.
    pack = next((place / ".mulligan" / "packs").iterdir())
    with pack.open("rb+") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        fill(place, work)
    return place


def fill(place: Path, work: Path) -> None:
    with open_store(place) as store:
        session = store.session("run", workspace=work)
        session.checkpoint()
        for number in FILES:
            (work / f"file-{number}").write_bytes(content(number))
        full = session.checkpoint()
        for number in FILES:
            if number not in KEPT:
                (work / f"file-{number}").unlink()
        session.checkpoint(label="kept")
        with store._engine.write() as txn:
            txn.prune(1, [full.seq])
            txn.condemn(Digest(Random(n).randbytes(32)) for n in range(20_000))
        with store._engine.write() as txn:
            txn.unlist(list(txn.condemned()))


def reclaimed(store: Store) -> Reclaimed:
    with upkeep_lock(store._engine, wait=False):
        return reclaim(store._engine)


def check(store: Store, work: Path) -> None:
    assert store.verify(full=True).problems == ()
    session = store.session("run", workspace=work)
    for file in work.iterdir():
        file.unlink()
    session.restore("kept")
    for number in KEPT:
        assert (work / f"file-{number}").read_bytes() == content(number)


def killed(place: Path, point: Failpoint, nth: int) -> bool:
    """Reclaim in a child that is killed at the nth pass of a point; return whether it was."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with open_store(place, failpoint=kill_at(point, nth)) as store:
                reclaimed(store)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert status == 0
    return False


@pytest.mark.parametrize("point", POINTS)
def test_killed_on_the_way_of_reclaiming(place: Path, work: Path, point: Failpoint) -> None:
    assert killed(place, point, 1)
    nth = 2
    with open_store(place) as store:
        check(store, work)
    while nth < 4 and killed(place, point, nth):
        nth += 1
    with open_store(place) as store:
        check(store, work)
        reclaimed(store)
        check(store, work)
        # What the killed runs left is given back by the next one.
        assert reclaimed(store).total == 0
        packs = place / ".mulligan" / "packs"
        used = sum(file.stat().st_blocks * 512 for file in packs.iterdir())
        assert used <= 1.5 * len(KEPT) * 20_000 + 128_000


def test_one_run_reaches_every_point(place: Path, work: Path) -> None:
    counter = FailpointCounter()
    with open_store(place, failpoint=counter) as store:
        done = reclaimed(store)
        assert done.total > 0
        assert done.skipped == ()
        check(store, work)
    assert [point for point in POINTS if not counter.counts[point]] == []
