"""Files are written byte by byte as they were, and zeros take no space."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.workspace.restore.fileops import write_parts

MEGABYTE = 1 << 20


def written(place: Path, parts: list[bytes]) -> Path:
    handle = os.open(place / "file", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        write_parts(handle, iter(parts))
    finally:
        os.close(handle)
    return place / "file"


def pieces(rng: random.Random) -> Iterator[bytes]:
    """Yield runs of zeros and of other bytes, of any length around what counts as a hole."""
    for _ in range(rng.randrange(12)):
        length = rng.choice((1, 100, 4095, 4096, 4097, 8192, 70_000, rng.randrange(200_000)))
        yield bytes(length) if rng.random() < 0.6 else rng.randbytes(length)


@pytest.mark.parametrize("seed", range(60))
def test_any_content_in_any_parts_is_written_as_it_is(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    content = b"".join(pieces(rng))
    cuts = sorted(rng.randrange(len(content) + 1) for _ in range(rng.randrange(5)))
    parts = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    assert written(tmp_path, parts).read_bytes() == content


def test_a_write_that_is_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda h, data, at: real(h, data[:1000], at))
    content = random.Random(1).randbytes(100_000) + bytes(100_000) + b"end"
    assert written(tmp_path, [content]).read_bytes() == content


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session with a file of 40 MB of which almost all is a hole."""
    (tmp_path / "work").mkdir()
    with (tmp_path / "work/image").open("wb") as file:
        file.write(b"a header that shifts everything")
        file.seek(17 * MEGABYTE + 123)
        file.write(random.Random(2).randbytes(100_000))
        file.truncate(40 * MEGABYTE)
    if space(tmp_path / "work/image") > MEGABYTE:
        pytest.skip("this filesystem has no holes")
    with mulligan.open(tmp_path / "store") as store:
        yield store.session("run", workspace=tmp_path / "work")


def space(file: Path) -> int:
    return file.stat().st_blocks * 512


def test_a_sparse_file_stays_sparse_wherever_it_is_restored(
    session: Session, tmp_path: Path
) -> None:
    file = tmp_path / "work/image"
    content, made = file.read_bytes(), session.checkpoint()
    file.write_bytes(b"replaced")
    assert session.restore(made).problems == ()
    assert session.files.copy(made, tmp_path / "copy") == []
    session.fork(made, workspace=tmp_path / "fork")
    for place in (file, tmp_path / "copy/image", tmp_path / "fork/image"):
        assert place.read_bytes() == content
        assert space(place) < MEGABYTE
