"""Commands on a disk without room: what they say, and whether a script goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.disks import disk_of


@pytest.fixture
def project(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project on a small disk of its own, with its store inside."""
    with disk_of(20, place / "disk") as disk:
        made = disk / "project"
        made.mkdir()
        monkeypatch.chdir(made)
        yield made
        monkeypatch.chdir(place)


def leave_free(disk: Path, size: int) -> None:
    """Fill a disk up to so many bytes."""
    filler = disk / f"filler-{len(list(disk.iterdir()))}"
    filler.write_bytes(os.urandom(max(0, shutil.disk_usage(disk).free - size)))


def test_a_checkpoint_without_the_files_fails(project: Path, cli: Cli) -> None:
    cli("init", "--inside")
    (project / "file").write_bytes(os.urandom(5_000_000))
    leave_free(project.parent, 4_000_000)
    taken = cli("checkpoint")
    assert taken.code == 15
    assert taken.out.strip() == cli("log", "-q", "-n", "1").out.strip()
    assert "they do not fit on the disk of the store, which now has" in " ".join(taken.err.split())
    assert "mulligan prune" in taken.err
    assert "mulligan du" in taken.err
    assert "0.209715" not in cli("log").out


def test_that_is_an_error_for_programs_as_well(project: Path, cli: Cli) -> None:
    cli("init", "--inside")
    (project / "file").write_bytes(os.urandom(5_000_000))
    leave_free(project.parent, 4_000_000)
    taken = cli("checkpoint", "--json")
    assert (taken.code, taken.error["error"]) == (15, "DiskFull")
    assert taken.json["workspace"] is None


def test_a_checkpoint_without_files_on_request_is_none_of_this(project: Path, cli: Cli) -> None:
    cli("init", "--inside")
    (project / "file").write_bytes(os.urandom(5_000_000))
    leave_free(project.parent, 4_000_000)
    assert cli("checkpoint", "--no-files").code == 0


def test_a_restore_that_cannot_begin_has_changed_no_file(project: Path, cli: Cli) -> None:
    cli("init", "--inside")
    file = project / "file"
    file.write_text("one")
    assert cli("checkpoint").code == 0
    kept = os.urandom(3_000_000)
    file.write_bytes(kept)
    leave_free(project.parent, 100_000)
    failed = cli("restore", "@latest", "--yes")
    assert failed.code == 15
    said = " ".join(failed.err.split())
    assert "No file was changed." in said
    assert "`mulligan prune` frees space of the store; `mulligan du` shows what takes it." in said
    assert file.read_bytes() == kept


def test_an_undo_that_cannot_begin_has_changed_no_file(project: Path, cli: Cli) -> None:
    cli("init", "--inside")
    file = project / "file"
    file.write_text("one")
    assert cli("checkpoint").code == 0
    file.write_text("two")
    assert cli("restore", "@latest", "--yes").code == 0
    kept = os.urandom(3_000_000)
    file.write_bytes(kept)
    leave_free(project.parent, 100_000)
    failed = cli("undo", "--yes")
    assert failed.code == 15
    assert "No file was changed." in " ".join(failed.err.split())
    assert file.read_bytes() == kept


def test_a_restore_that_is_stopped_halfway_names_the_ways_to_make_room(
    project: Path, cli: Cli
) -> None:
    cli("init", "--inside")
    file = project / "file"
    file.write_bytes(os.urandom(6_000_000))
    assert cli("checkpoint").code == 0
    file.write_text("small")
    leave_free(project.parent, 2_000_000)
    failed = cli("restore", "@latest", "--yes")
    assert failed.code == 15
    said = " ".join(failed.err.split())
    assert "`mulligan prune` frees space of the store; `mulligan du` shows what takes it." in said
    assert "half restored" in said
    assert "No file was changed." not in said


def test_a_prune_that_has_nothing_to_remove_says_so(project: Path, cli: Cli) -> None:
    """The record of it is a cache, and needs room that is not there."""
    cli("init", "--inside")
    assert cli("checkpoint", "--no-files").code == 0
    leave_free(project.parent, 0)
    pruned = cli("prune")
    assert pruned.code == 0, pruned.err
    assert "Removed 0 checkpoints; 1 checkpoint kept." in pruned.out
    assert not list((project / ".mulligan" / "tmp").glob("upkeep-*"))


def test_the_log_says_that_the_files_would_have_filled_the_disk(project: Path, cli: Cli) -> None:
    """There is room, but not for these files."""
    cli("init", "--inside")
    (project / "file").write_bytes(os.urandom(5_000_000))
    leave_free(project.parent, 4_000_000)
    cli("checkpoint")
    assert "the disk of the store would have less than 0.21 MB free" in cli("log").words
