"""LMDB tables notice when their file is removed, moved or replaced while they are open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mulligan.journal.lmdb.clean_close import DATA
from mulligan.journal.lmdb.tables import LmdbTables
from mulligan.journal.protocol import Presence


def move(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))


def remove(directory: Path) -> None:
    (directory / DATA).unlink()


def replace(directory: Path) -> None:
    data = (directory / DATA).read_bytes()
    (directory / "copy").write_bytes(data)
    (directory / "copy").rename(directory / DATA)


def put_a_file_in_its_place(directory: Path) -> None:
    move(directory)
    directory.touch()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (move, Presence.MISSING),
        (remove, Presence.MISSING),
        (put_a_file_in_its_place, Presence.MISSING),
        (replace, Presence.REPLACED),
    ],
)
def test_a_changed_path_is_noticed(
    tmp_path: Path, change: Callable[[Path], None], expected: Presence
) -> None:
    directory = tmp_path / "journal"
    directory.mkdir()
    tables = LmdbTables(directory)
    assert tables.presence() is Presence.PRESENT
    change(directory)
    assert tables.presence() is expected
    tables.close()


def test_a_file_that_was_missing_from_the_start_is_not_gone(tmp_path: Path) -> None:
    """Verify opens what is left of a store; it must not call that removed."""
    tables = LmdbTables(tmp_path, salvage=True)
    assert tables.presence() is Presence.PRESENT
    tables.close()
