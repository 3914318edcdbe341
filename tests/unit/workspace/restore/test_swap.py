"""What a killed restore left beside a leaf goes only if the store holds it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mulligan.model import ObjectKind
from mulligan.objects.memory import MemoryObjects
from mulligan.workspace.entries import File, Link
from mulligan.workspace.restore.swap import sweep, temporary_names

OWN = temporary_names(b"link", "token")
MTIME = 1_700_000_000_000_000_000


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[int]:
    handle = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield handle
    os.close(handle)


def taken_out(parent: int, target: str) -> None:
    """Leave a link as a restore does that is killed just after it took the link's place."""
    os.symlink(target, OWN.swap, dir_fd=parent)
    os.utime(OWN.swap, ns=(MTIME, MTIME), dir_fd=parent, follow_symlinks=False)


def test_a_link_that_the_store_holds_goes(parent: int) -> None:
    taken_out(parent, "known")
    sweep(parent, OWN, MemoryObjects(), Link(MTIME, b"other"), Link(MTIME, b"known"))
    assert os.listdir(parent) == []


def test_a_link_to_elsewhere_stays_even_if_its_time_is_that_of_a_known_one(parent: int) -> None:
    taken_out(parent, "somebody's work")
    sweep(parent, OWN, MemoryObjects(), Link(MTIME, b"other"), Link(MTIME, b"known"), None)
    assert os.readlink(OWN.swap, dir_fd=parent) == b"somebody's work"


def test_a_file_goes_only_with_the_bytes_that_the_store_holds(parent: int) -> None:
    """A write through a mapping may leave size, times and mode as they were."""
    objects = MemoryObjects()
    bundle = objects.bundle()
    known = File(0o600, MTIME, 5, (bundle.put(ObjectKind.CHUNK, b"known"),))
    bundle.flush()
    for data, is_left in ((b"other", True), (b"known", False)):
        handle = os.open(OWN.swap, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=parent)
        os.write(handle, data)
        os.utime(handle, ns=(MTIME, MTIME))
        os.close(handle)
        sweep(parent, OWN, objects, None, known)
        assert bool(os.listdir(parent)) is is_left
