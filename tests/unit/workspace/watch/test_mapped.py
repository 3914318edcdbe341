"""Bytes written through a shared mapping, of which no event and often no time tells, are kept."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.failpoints import Failpoint
from mulligan.testing.stores import open_store
from mulligan.workspace.watch.mapped import Mapped

SHM = Path("/dev/shm")

PROGRAM = """
import mmap, os, sys
handle = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(handle, 0)
os.close(handle)
sum(memory[::512])  # a page that was read first can be written to without a fault on tmpfs
print("ready", flush=True)
for line in sys.stdin:
    at, text = line.rstrip("\\n").split(" ", 1)
    memory[int(at) : int(at) + len(text)] = text.encode()
    print("written", flush=True)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and inotify")


class Mapper:
    """A real program that has a file mapped, with its descriptor closed, and writes when told."""

    def __init__(self, file: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PROGRAM, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._hear("ready")

    def write(self, text: str, at: int = 0) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{at} {text}\n")
        self._process.stdin.flush()
        self._hear("written")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _hear(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word


@pytest.fixture(params=["disk", "tmpfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access(SHM, os.W_OK):
        pytest.skip("there is no tmpfs here")
    made = Path(tempfile.mkdtemp(dir=SHM, prefix="mulligan-test-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def work(place: Path) -> Path:
    made = place / "work"
    (made / "data").mkdir(parents=True)
    (made / "data" / "file").write_bytes(b"first" + bytes(5000))
    (made / "other").write_bytes(b"never mapped")
    age(made)
    return made


def age(work: Path) -> None:
    """Move all times past the moment within which a scan reads files again."""
    newest = max(os.lstat(path).st_ctime_ns for path in [work, *work.rglob("*")])
    probe = work.with_name("clock")
    while not probe.exists() or os.lstat(probe).st_ctime_ns < newest + 50_000_000:
        probe.write_bytes(b"x")


@pytest.fixture
def mapper(work: Path) -> Iterator[Mapper]:
    made = Mapper(work / "data" / "file")
    yield made
    made.end()


def held(session: Session, path: str = "data/file") -> bytes:
    return session.files.read("@latest", path)[:6].rstrip(b"\0")


def test_a_watched_session_sees_each_write_through_a_mapping(
    place: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Captures within milliseconds share one look, and the program may start within them.
    monkeypatch.setattr("mulligan.workspace.watch.mapped.RESULT_TTL_SECONDS", 0.0)
    with mulligan.open(place / "store") as store:
        session = store.session("run", workspace=work)
        session.internal.watch()
        session.checkpoint()
        session.checkpoint()
        assert session._workspace.unwatched is None
        mapper = Mapper(work / "data" / "file")
        try:
            for text in ("one", "two", "three"):
                mapper.write(text)
                session.checkpoint()
                assert held(session).startswith(text.encode())
            mapper.write("last")
        finally:
            mapper.end()
        session.checkpoint()
        assert held(session).startswith(b"last")
        assert session._workspace.unwatched is None


def test_a_scan_reads_again_what_was_mapped_when_it_was_last_read(
    place: Path, work: Path, mapper: Mapper
) -> None:
    """The second write hits a page that is dirty already: no time moves."""
    mapper.write("one")
    age(work)
    for text in ("two", "three"):
        with mulligan.open(place / "store") as store:
            session = store.session("run", workspace=work)
            session.checkpoint()
            session.close()
        mapper.write(text)
    mapper.end()
    with mulligan.open(place / "store") as store:
        session = store.session("run", workspace=work)
        session.checkpoint()
        assert held(session).startswith(b"three")
        session.close()


def test_a_scan_of_a_filesystem_in_memory_finds_writes_of_which_nothing_is_left(
    place: Path, work: Path
) -> None:
    """There a write through a mapping need not move a file's times."""
    with mulligan.open(place / "store") as store:
        session = store.session("run", workspace=work)
        first = session.checkpoint()
        assert session.checkpoint().workspace == first.workspace
        mapper = Mapper(work / "data" / "file")
        mapper.write("unseen")
        mapper.end()
        age(work)
        session.checkpoint()
        assert held(session) == b"unseen"


@pytest.mark.parametrize("point", [Failpoint.RESTORE_TEMPORARY_WRITTEN, Failpoint.RESTORE_SWAPPED])
@pytest.mark.parametrize("size", [0, 3 << 20], ids=["small", "large"])
def test_a_restore_keeps_a_file_that_was_written_through_a_mapping_meanwhile(
    place: Path, work: Path, point: Failpoint, size: int
) -> None:
    """No checkpoint holds those bytes, and the file's stat does not show them."""
    writes: list[Mapper] = []
    file = work / "data" / "file"
    file.write_bytes(b"first" + random.Random(3).randbytes(size))

    def meanwhile(reached: Failpoint) -> None:
        if reached is point and writes:
            writes.pop().write("unheld")

    with open_store(place / "store", failpoint=meanwhile) as store:
        session = store.session("run", workspace=work)
        first = session.checkpoint()
        file.write_bytes(b"second" + random.Random(4).randbytes(size))
        mapper = Mapper(file)
        try:
            mapper.write("second")  # from now on the page is dirty
            age(work)
            writes.append(mapper)
            done = session.restore(first)
        finally:
            mapper.end()
        assert not writes
        assert [problem.where for problem in done.problems] == ["data/file"]
        assert file.read_bytes()[:6] == b"unheld"
        session.checkpoint()
        assert held(session) == b"unheld"
        assert session.restore(first).problems == ()
        assert file.read_bytes()[:5] == b"first"
        assert [path.name for path in file.parent.iterdir()] == ["file"]


def test_a_restore_that_deletes_keeps_what_was_written_through_a_mapping_meanwhile(
    place: Path, work: Path
) -> None:
    writes: list[Mapper] = []
    file = work / "data" / "new"

    def meanwhile(reached: Failpoint) -> None:
        if reached is Failpoint.RESTORE_SWAPPED and writes:
            writes.pop().write("unheld")

    with open_store(place / "store", failpoint=meanwhile) as store:
        session = store.session("run", workspace=work)
        first = session.checkpoint()
        file.write_bytes(b"second")
        mapper = Mapper(file)
        try:
            mapper.write("second")
            age(work)
            writes.append(mapper)
            done = session.restore(first)
        finally:
            mapper.end()
        assert not writes
        assert [problem.where for problem in done.problems] == ["data/new"]
        assert file.read_bytes() == b"unheld"


def test_a_mapped_file_is_restored_when_the_safety_checkpoint_holds_it(
    place: Path, work: Path, mapper: Mapper
) -> None:
    with mulligan.open(place / "store") as store:
        session = store.session("run", workspace=work)
        first = session.checkpoint()
        mapper.write("second")
        assert session.restore(first).problems == ()
        assert (work / "data" / "file").read_bytes()[:5] == b"first"
        session.undo()
        assert (work / "data" / "file").read_bytes()[:6] == b"second"


def test_only_files_that_are_mapped_to_be_written_to_are_named(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mulligan.workspace.watch.mapped.RESULT_TTL_SECONDS", 0.0)
    mapped = Mapped(os.fsencode(work))
    (work / "line\nfeed (deleted)").write_bytes(b"content")
    names = ("data/file", "other", "line\nfeed (deleted)")
    assert mapped.files() == set()
    with (work / "other").open("rb") as other, mmap.mmap(other.fileno(), 0, prot=mmap.PROT_READ):
        assert mapped.files() == set()
    programs = [Mapper(work / name) for name in names]
    try:
        assert {os.fsencode(name) for name in names} <= mapped.files()
        assert Mapped(os.fsencode(work / "data")).files() == {b"file"}
        assert Mapped(os.fsencode(work / "dat")).files() == set()
    finally:
        for program in programs:
            program.end()
    assert mapped.files() == set()
