"""The saved index is believed as a whole or not at all: any damage only costs a full reading."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import mulligan
from mulligan.workspace.capture.index import HEAD, VERSION, Index, load_index, save_index
from tests.pictures import picture
from tests.scale import SCALE

FLIPS, CUTS = 260, 40

CAPTURED = max(1, 12 // SCALE)
"""Of so many damaged indexes, a checkpoint is taken with one."""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Files that an index can be wrong about: in directories, linked, large and left out."""
    made = tmp_path / "work"
    (made / "src" / "deep").mkdir(parents=True)
    (made / "node_modules").mkdir()
    for number in range(12):
        (made / "src" / f"file-{number}.txt").write_bytes(b"content %d\n" % number)
    (made / "src" / "deep" / "large.bin").write_bytes(random.Random(5).randbytes(9000))
    (made / "link").symlink_to("src")
    age(made)
    return made


def age(work: Path) -> None:
    """Move all times past the moment within which a scan reads files again."""
    newest = max(os.lstat(path).st_ctime_ns for path in [work, *work.rglob("*")])
    probe = work.with_name("clock")
    while not probe.exists() or os.lstat(probe).st_ctime_ns < newest + 50_000_000:
        probe.write_bytes(b"x")


def checkpointed(store: Path, work: Path) -> str:
    """Take a checkpoint as a process of its own would, and return its id."""
    with mulligan.open(store) as opened:
        session = opened.session("run", workspace=work)
        made = session.checkpoint().id
        session.close()
        return made


def index_file(store: Path) -> Path:
    [file] = (store / ".mulligan" / "tmp").glob("index-*")
    return file


def flipped(data: bytes, bit: int) -> bytes:
    byte = bytes([data[bit // 8] ^ (1 << bit % 8)])
    return data[: bit // 8] + byte + data[bit // 8 + 1 :]


def spoilers(size: int) -> list[Callable[[bytes], bytes]]:
    source = random.Random(20261116)
    bits = [*range(0, HEAD.size * 8, 7), *(source.randrange(size * 8) for _ in range(FLIPS))]
    cuts = [0, 1, HEAD.size - 1, HEAD.size, size - 1, *source.sample(range(size), CUTS)]
    return [
        *(lambda data, bit=bit: flipped(data, bit) for bit in bits),  # type: ignore[misc]
        *(lambda data, cut=cut: data[:cut] for cut in cuts),  # type: ignore[misc]
        lambda data: data + b"\0",
        lambda data: data + data,
    ]


def test_an_index_with_any_bit_flipped_or_cut_anywhere_is_not_used(
    tmp_path: Path, work: Path
) -> None:
    """The next checkpoint is taken all the same, and restores to exactly the files."""
    store, out = tmp_path / "store", tmp_path / "out"
    checkpointed(store, work)
    expected = picture(work)
    sound = index_file(store).read_bytes()
    assert load_index(index_file(store), work) is not None
    for number, spoil in enumerate(spoilers(len(sound))):
        index_file(store).write_bytes(spoil(sound))
        assert load_index(index_file(store), work) is None
        if number % CAPTURED:
            continue
        with mulligan.open(store) as opened:
            session = opened.session("run", workspace=work)
            assert session.files.copy(session.checkpoint(), out) == []
            session.close()
        assert picture(out) == expected
        shutil.rmtree(out)
    with mulligan.open(store) as opened:
        assert opened.verify(full=True).ok


@pytest.mark.parametrize("other", [{"version": VERSION - 1}, {"root": "/elsewhere"}])
def test_an_index_of_another_version_or_directory_is_not_used(
    tmp_path: Path, work: Path, other: dict[str, object]
) -> None:
    store = tmp_path / "store"
    checkpointed(store, work)
    file = index_file(store)
    found = load_index(file, work)
    assert isinstance(found, Index)
    save_index(found, file)
    assert load_index(file, work) is not None
    save_index(msgspec.structs.replace(found, **other), file)
    assert load_index(file, work) is None


def test_what_is_no_plain_file_is_not_read_as_an_index(tmp_path: Path, work: Path) -> None:
    """A FIFO would make every checkpoint wait for ever."""
    store = tmp_path / "store"
    checkpointed(store, work)
    file = index_file(store)
    aside = file.rename(tmp_path / "aside")
    os.mkfifo(file)
    assert load_index(file, work) is None
    file.unlink()
    file.symlink_to(aside)
    assert load_index(file, work) is None


def test_an_index_of_a_journal_that_was_rolled_back_is_not_used(tmp_path: Path, work: Path) -> None:
    """It refers to objects that the journal does not know any more."""
    store = tmp_path / "store"
    checkpointed(store, work)
    data = store / ".mulligan" / "journal" / "data.mdb"
    older = data.read_bytes()
    (work / "src" / "file-3.txt").write_bytes(b"written after the copy of the journal")
    age(work)
    checkpointed(store, work)
    data.write_bytes(older)
    made = checkpointed(store, work)
    with mulligan.open(store) as opened:
        session = opened.session("run", workspace=work)
        assert session.files.copy(made, tmp_path / "out") == []
        session.close()
        assert opened.verify(full=True).ok
    assert picture(tmp_path / "out") == picture(work)
