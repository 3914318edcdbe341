"""Copyists: whatever they do or fail to do, a copy is what it would be without them."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import DiskFull
from mulligan.model import Checkpoint, Digest, Location
from mulligan.objects import packs
from mulligan.store import Store
from mulligan.workspace import workers
from mulligan.workspace.checkout import worker
from mulligan.workspace.checkout.worker import CheckoutWorkers
from mulligan.workspace.checkout.worker_main import TOKEN
from tests.children import Tell, run_child
from tests.disks import disk_of
from tests.pictures import picture

LIMIT = 60


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace whose files are in many frames, and of every kind."""
    made, rng = tmp_path / "work", random.Random(1)
    for number in range(40):
        place = made / f"d{number % 5}" / f"e{number}"
        place.mkdir(parents=True)
        for name in ("one", "two", "three"):
            (place / name).write_bytes(rng.randbytes(rng.randrange(2000)))
        (place / "same").write_bytes(b"the same everywhere")
        (place / "empty").write_bytes(b"")
        (place / "link").symlink_to("one")
    (made / b"\xff\xfe".decode(errors="surrogateescape")).write_bytes(b"no text")
    (made / "large").write_bytes(rng.randbytes(3_000_000))
    for mode in (0o400, 0o644, 0o755, 0o777, 0o000, 0o4755):
        (made / f"{mode:o}").write_bytes(rng.randbytes(500))
        (made / f"{mode:o}").chmod(mode)
    return made


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "FRAME_TARGET", 4000)


@pytest.fixture
def store(tmp_path: Path, small_frames: None) -> Iterator[Store]:
    with mulligan.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def made(session: Session) -> Checkpoint:
    return session.checkpoint()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[CheckoutWorkers]:
    """Have two checkout workers for the smallest of trees, and return all that were started."""
    found: list[CheckoutWorkers] = []

    class Noted(CheckoutWorkers):
        def __init__(self, root: int, count: int) -> None:
            super().__init__(root, count)
            found.append(self)

    monkeypatch.setattr(worker, "CheckoutWorkers", Noted)
    monkeypatch.setattr(worker, "MIN_FILES_PER_WORKER", 1)
    monkeypatch.setattr(worker, "MIN_BATCH_WEIGHT", 10)
    monkeypatch.setattr(workers, "processors", lambda: 3)
    return found


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the caller take no batch, so that the checkout workers make everything that they can."""
    monkeypatch.setattr(CheckoutWorkers, "own", lambda _: iter(()))


def has_ended(workers: CheckoutWorkers) -> bool:
    assert len(workers._processes) == 2
    return all(process.returncode is not None for process in workers._processes)


def test_a_copy_made_together_is_the_tree(
    session: Session, made: Checkpoint, work: Path, tmp_path: Path, started: list[CheckoutWorkers]
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert session.files.copy(made, tmp_path / "copy") == []
    assert picture(tmp_path / "copy") == picture(work)
    assert len(started) == 1
    assert has_ended(started[0])
    assert len(os.listdir("/proc/self/fd")) < before + 10


@pytest.mark.usefixtures("idle")
def test_a_copy_made_by_checkout_workers_is_the_tree(
    session: Session,
    made: Checkpoint,
    work: Path,
    tmp_path: Path,
    started: list[CheckoutWorkers],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[int] = []
    real = CheckoutWorkers.settle

    def settle(self: CheckoutWorkers, files_by_digest: worker.FilesByDigest) -> set[Digest]:
        unfinished = real(self, files_by_digest)
        left.append(len(files_by_digest))
        return unfinished

    monkeypatch.setattr(CheckoutWorkers, "settle", settle)
    assert session.files.copy(made, tmp_path / "copy") == []
    assert picture(tmp_path / "copy") == picture(work)
    assert len(started[0]._batches) > 10
    assert left == [0]


START = "import os, sys; sys.path[:] = sys.argv[3:]\n"
DIES_IN_A_FILE = """
from mulligan.workspace.checkout import file_writer, worker_main
sizes = []
def write_parts(handle, parts):
    data = b"".join(parts)
    sizes.append(len(data))
    os.write(handle, data[: len(data) // 2] if len(sizes) == 14 else data)
    if len(sizes) == 14:
        os.kill(os.getpid(), 9)
file_writer.write_parts = write_parts
worker_main.run(int(sys.argv[1]), int(sys.argv[2]), 0, 1)
"""
CUT_SHORT = """
from mulligan.workspace.checkout import worker_main
real = os.write
def write(handle, data):
    return real(handle, data[:-1] if handle == 1 else data)
os.write = write
worker_main.run(int(sys.argv[1]), int(sys.argv[2]), 0, 1)
"""
PROGRAMS = {
    "fails": "raise SystemExit(1)",
    "is killed": "os.kill(os.getpid(), 9)",
    "takes a batch and dies": "os.read(0, 16); os._exit(3)",
    "takes all batches and dies": "\nwhile os.read(0, 16): pass\n",
    "dies in the middle of a file": DIES_IN_A_FILE,
    "does not say all that it did": CUT_SHORT,
}


@pytest.mark.parametrize("is_idle", [False, True], ids=["helped", "idle"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_a_checkout_worker_does_not_finish_is_made_by_the_caller(
    session: Session,
    made: Checkpoint,
    work: Path,
    tmp_path: Path,
    started: list[CheckoutWorkers],
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    is_idle: bool,
) -> None:
    monkeypatch.setattr(worker, "_PROGRAM", START + program)
    if is_idle:
        monkeypatch.setattr(CheckoutWorkers, "own", lambda _: iter(()))
    assert session.files.copy(made, tmp_path / "copy") == []
    assert picture(tmp_path / "copy") == picture(work)
    assert has_ended(started[0])


IN_THE_WAY: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_bytes(b"mine"),
    "a longer file": lambda path: path.write_bytes(b"the same everywhere, and more"),
    "a directory": lambda path: path.mkdir(),
    "a symlink": lambda path: path.symlink_to("one"),
    "a pipe": lambda path: os.mkfifo(path),
}


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("program", [None, PROGRAMS["takes all batches and dies"]])
@pytest.mark.parametrize("appears", IN_THE_WAY.values(), ids=IN_THE_WAY)
def test_what_is_in_the_way_stays_and_is_one_failure(
    session: Session,
    made: Checkpoint,
    work: Path,
    tmp_path: Path,
    started: list[CheckoutWorkers],
    monkeypatch: pytest.MonkeyPatch,
    appears: Callable[[Path], object],
    program: str | None,
) -> None:
    way, real = tmp_path / "copy/d1/e1/same", CheckoutWorkers.offer

    def offer(self: CheckoutWorkers, *arguments: object, syncs: bool) -> None:
        appears(way)
        real(self, *arguments, syncs=syncs)  # type: ignore[arg-type]

    if program is not None:
        monkeypatch.setattr(worker, "_PROGRAM", START + program)
    monkeypatch.setattr(CheckoutWorkers, "offer", offer)
    problems = session.files.copy(made, tmp_path / "copy")
    assert [(found.where, found.detail) for found in problems] == [("d1/e1/same", "File exists")]
    appears(work / "expected")
    copied, expected = picture(tmp_path / "copy"), picture(work)
    stays, looks = copied.pop(b"d1/e1/same"), expected[b"expected"]
    assert stays._replace(mtime=0) == looks._replace(mtime=0)
    assert {*expected} - {*copied} == {b"expected", b"d1/e1/same"}


@pytest.mark.usefixtures("idle")
def test_damage_is_the_same_failures_with_checkout_workers_and_without(
    session: Session,
    made: Checkpoint,
    store: Store,
    tmp_path: Path,
    started: list[CheckoutWorkers],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pack = Path(store.path) / "packs" / "00000001.pack"
    data = bytearray(pack.read_bytes())
    data[40_000:50_000] = bytes(10_000)
    pack.write_bytes(data)
    problems = session.files.copy(made, tmp_path / "helped")
    assert len(started) == 1
    monkeypatch.setattr(worker, "MIN_FILES_PER_WORKER", 10_000)
    alone = session.files.copy(made, tmp_path / "alone")
    assert len(started) == 1
    assert alone
    assert sorted(problems, key=str) == sorted(alone, key=str)
    assert picture(tmp_path / "helped") == picture(tmp_path / "alone")


@pytest.mark.parametrize("is_idle", [False, True], ids=["helped", "idle"])
def test_a_full_disk_is_said_and_ends_the_checkout_workers(
    session: Session,
    work: Path,
    tmp_path: Path,
    started: list[CheckoutWorkers],
    monkeypatch: pytest.MonkeyPatch,
    is_idle: bool,
) -> None:
    for number in range(40):
        (work / f"block{number}").write_bytes(random.Random(number).randbytes(100_000))
    made = session.checkpoint()
    if is_idle:
        monkeypatch.setattr(CheckoutWorkers, "own", lambda _: iter(()))
    with disk_of(2, tmp_path / "disk") as disk:
        with pytest.raises(DiskFull, match="no space left to write"):
            session.files.copy(made, disk / "copy")
        assert has_ended(started[0])


def test_a_copy_that_is_interrupted_leaves_no_checkout_worker_behind(
    session: Session,
    made: Checkpoint,
    tmp_path: Path,
    started: list[CheckoutWorkers],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: CheckoutWorkers) -> Iterator[list[Digest]]:
        raise KeyboardInterrupt

    monkeypatch.setattr(CheckoutWorkers, "own", interrupted)
    monkeypatch.setattr(worker, "_PROGRAM", f"import time; time.sleep({LIMIT})")
    with pytest.raises(KeyboardInterrupt):
        session.files.copy(made, tmp_path / "copy")
    assert [process.returncode for process in started[0]._processes] == [-signal.SIGKILL] * 2


WAITS = """
import time
limit = time.monotonic() + {limit}
while os.getppid() == {caller} and time.monotonic() < limit:
    time.sleep(0.01)
from mulligan.workspace.checkout import worker_main
try:
    worker_main.run(int(sys.argv[1]), int(sys.argv[2]), 0, 1)
finally:
    open({ended!r} + str(os.getpid()), "w").close()
"""


def test_nothing_is_written_after_the_caller_was_killed(
    work: Path,
    tmp_path: Path,
    small_frames: None,
    started: list[CheckoutWorkers],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = tmp_path / "ended"
    ended.mkdir()
    monkeypatch.setattr(CheckoutWorkers, "own", lambda _: os.kill(os.getpid(), signal.SIGKILL))

    def body(_: Tell) -> None:
        waits = WAITS.format(ended=f"{ended}/", caller=os.getpid(), limit=LIMIT)
        monkeypatch.setattr(worker, "_PROGRAM", START + waits)
        with mulligan.open(tmp_path / "store") as store:
            session = store.session("run", workspace=work)
            session.files.copy(session.checkpoint(), tmp_path / "copy")

    assert run_child(body).by_sigkill
    limit = time.monotonic() + LIMIT
    while len(list(ended.iterdir())) < 2:
        assert time.monotonic() < limit, "a checkout worker goes on without its caller"
        time.sleep(0.01)
    assert [path for path in (tmp_path / "copy").rglob("*") if path.is_file()] == []


def test_without_room_for_a_request_the_caller_makes_everything(
    session: Session,
    made: Checkpoint,
    work: Path,
    tmp_path: Path,
    started: list[CheckoutWorkers],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "nameless_file", partial(open, "/dev/full", "wb"))
    assert session.files.copy(made, tmp_path / "copy") == []
    assert picture(tmp_path / "copy") == picture(work)
    assert has_ended(started[0])


@pytest.mark.parametrize("executable", ["/usr/bin/uwsgi", "/opt/app", "", None, "/no/such/python3"])
def test_without_an_interpreter_the_caller_makes_everything(
    session: Session,
    made: Checkpoint,
    work: Path,
    tmp_path: Path,
    started: list[CheckoutWorkers],
    monkeypatch: pytest.MonkeyPatch,
    executable: str | None,
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert session.files.copy(made, tmp_path / "copy") == []
    assert picture(tmp_path / "copy") == picture(work)
    assert started == []


def test_a_small_tree_has_no_checkout_workers(
    session: Session,
    made: Checkpoint,
    tmp_path: Path,
    started: list[CheckoutWorkers],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "MIN_FILES_PER_WORKER", 10_000)
    assert session.files.copy(made, tmp_path / "copy") == []
    assert started == []


@pytest.mark.parametrize(("frames", "objects"), [(1, 1), (30, 30), (1, 3000), (50_000, 1)])
def test_batches_are_whole_frames_and_few_enough_for_the_queue(frames: int, objects: int) -> None:
    places = [
        (Digest(b"%08d%08d" % (frame, slot)), Location(1, frame * 100, 100, slot))
        for frame in range(frames)
        for slot in range(objects)
    ]
    batches = worker._cut(places)
    assert [place for batch in batches for place in batch] == places
    kept = [{place[1].offset for place in batch} for batch in batches]
    assert sum(map(len, kept)) == frames
    assert len(batches) * TOKEN.size <= 4096
