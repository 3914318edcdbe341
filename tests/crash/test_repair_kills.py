"""A repair is killed at every failpoint, or runs on a full disk; the next one goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from mulligan.errors import DiskFull
from mulligan.failpoints import Failpoint
from mulligan.repair.store import Repaired, repair_store
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from tests.disks import disk_of

POINTS = [point for point in Failpoint if point.name.startswith("REPAIR_")]
STEPS = 4
LOST, KEPT = "lost-in-the-store", "still-in-the-workspace"


def content(number: int) -> bytes:
    return Random(number).randbytes(9_000)


def make(place: Path, work: Path) -> None:
    """Make a store in which everything is damaged that a repair can find damaged."""
    work.mkdir(exist_ok=True)
    (work / LOST).write_bytes(content(100))
    (work / KEPT).write_bytes(content(101))
    (work / "beside").write_bytes(content(102))
    with open_store(place) as store:
        session = store.session("run", workspace=work)
        session.checkpoint(label="all")
        (work / LOST).unlink()
        for number in range(STEPS):
            (work / f"file-{number}").write_bytes(content(number))
            session.state.set("memory/step", number)
            session.checkpoint(label=f"step-{number}")
    home = place / ".mulligan"
    pack = home / "packs" / "00000001.pack"
    data = bytearray(pack.read_bytes())
    # Raw in one frame, so that other objects of it are intact.
    for number in (100, 101):
        data[data.index(content(number)) + 4_000] ^= 1
    pack.write_bytes(b"mullpack" + data[8:])
    (home / "FORMAT").write_bytes(b"{")
    with (home / "journal" / "data.mdb").open("rb+") as journal:
        journal.seek(len((home / "journal" / "data.mdb").read_bytes()) // 2 // 4096 * 4096)
        journal.write(bytes(4096))


@pytest.fixture
def place(tmp_path: Path, work: Path) -> Path:
    make(tmp_path / "store", work)
    return tmp_path / "store"


def repaired(place: Path) -> Repaired:
    return repair_store(place / ".mulligan", os.environ)


def killed(place: Path, point: Failpoint) -> bool:
    if (pid := os.fork()) == 0:
        code = 1
        try:
            repair_store(place / ".mulligan", os.environ, failpoint=kill_at(point))
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def check(place: Path, out: Path) -> None:
    with open_store(place, create=False) as store:
        assert store.verify(full=True).problems == ()
        session = store.session("run", create=False)
        assert list(session.internal.losses()) == [session.checkpoints.at("all").seq]
        for number in range(STEPS - 1):
            label = f"step-{number}"
            assert session.files.copy(label, out / label) == []
            assert (out / label / "beside").read_bytes() == content(102)
            assert (out / label / KEPT).read_bytes() == content(101)
            assert (out / label / f"file-{number}").read_bytes() == content(number)
            assert session.state.at(label).get()["memory"] == {"step": number}
        [lost] = session.internal.losses().values()
        assert lost.files == [LOST]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_repair_is_finished_by_the_next(
    place: Path, tmp_path: Path, point: Failpoint
) -> None:
    assert killed(place, point)
    repaired(place)
    check(place, tmp_path / "out")
    # Nothing is left to do, and nothing of the killed one is in the way.
    assert repaired(place).steps == ()
    assert not list((place / ".mulligan" / "journal").glob("repair-*"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of(8, tmp_path / "disk") as made:
        yield made


def test_a_repair_on_a_full_disk_fails_cleanly_and_works_once_there_is_room(
    disk: Path, tmp_path: Path, work: Path
) -> None:
    make(disk / "store", work)
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    with pytest.raises(DiskFull):
        repaired(disk / "store")
    filler.unlink()
    repaired(disk / "store")
    check(disk / "store", tmp_path / "out")
