"""Root writes the store of another user, who can go on with it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan.journal.lmdb import compact
from mulligan.locked_notes import close_note, write_note
from mulligan.owner import make_directory, open_as_owner
from mulligan.repair.originals import Originals
from mulligan.repair.store import repair_store
from mulligan.store import engine_of
from mulligan.supervisor.heartbeat import heartbeat_reader
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.space.reclaim_space import reclaim

OTHER = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A store of another user."""
    made = tmp_path / "place"
    with mulligan.open(made) as store:
        store.session("main").state.set("memory", {})
    for file in (made, *made.rglob("*")):
        os.chown(file, OTHER, OTHER, follow_symlinks=False)
    return made


def locked_out(place: Path) -> list[str]:
    """The files that the owner of the store cannot read."""
    return [
        str(file)
        for file in place.rglob("*")
        if (found := file.stat()).st_uid != OTHER and not found.st_mode & stat.S_IROTH
    ]


def test_what_root_writes_belongs_to_the_owner_of_the_store(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "MIN_FREE_BYTES", 1)
    monkeypatch.setattr(compact, "MIN_FREE_SHARE", 0.0)
    work = tmp_path / "work"
    work.mkdir()
    (work / "file").write_bytes(os.urandom(100_000))
    with mulligan.open(place) as store:
        session = store.session("main", workspace=work)
        first = session.checkpoint("manual")
        (work / "file").write_text("changed")
        session.restore(first)
        store.session("doomed").state.extend("log", ["x" * 2_000] * 200)
        store.delete("doomed")
        with upkeep_lock(engine_of(store), wait=False):
            assert reclaim(engine_of(store)).journal_bytes
    assert locked_out(place) == []


def test_what_root_repairs_belongs_to_the_owner_of_the_store(place: Path) -> None:
    journal = place / ".mulligan" / "journal" / "data.mdb"
    data = bytearray(journal.read_bytes())
    data[2 * 4096 :] = bytes(len(data) - 2 * 4096)
    journal.write_bytes(data)
    before = journal.stat().st_ino
    assert repair_store(place / ".mulligan", {}).steps
    assert journal.stat().st_ino != before
    assert locked_out(place) == []


def test_directories_that_root_makes_do_not_lock_the_owner_out(place: Path) -> None:
    store = place / ".mulligan"
    for part in ("tmp", "locks"):
        shutil.rmtree(store / part)
    Originals(store, datetime(2026, 1, 1, tzinfo=UTC)).keep_stretch("packs/1", 10, [(0, b"old")])
    heartbeat_reader(str(store), "main", "agent", 1)
    close_note(write_note(store / "tmp" / "note", b"{}"))
    with mulligan.open(place) as opened:
        opened.session("main").state.set("memory/a", 1)
    assert locked_out(place) == []


def test_the_guard_that_root_makes_against_git_clean_is_seen_by_the_owner(place: Path) -> None:
    subprocess.run(["git", "init", "-q", place], check=True)
    (place / "a").write_text("in the repository that is newer than the store")
    with mulligan.open(place) as store:
        store.session("main", workspace=place).checkpoint()
    assert (place / ".mulligan" / ".git" / "HEAD").is_file()
    assert locked_out(place / ".mulligan") == []


def test_only_new_directories_are_given_away(place: Path) -> None:
    known = place / "known"
    known.mkdir(mode=0o700)
    make_directory(known)
    assert known.stat().st_uid == 0
    known.rmdir()
    known.write_text("no directory")
    with pytest.raises(FileExistsError):
        make_directory(known)


def test_only_new_files_are_given_away(place: Path, tmp_path: Path) -> None:
    secret, pins = tmp_path / "secret", place / ".mulligan" / "locks" / "pins"
    secret.write_text("of root")
    pins.unlink()
    os.link(secret, pins)
    with mulligan.open(place) as store:
        store.session("main").state.set("memory/a", "x" * 10_000)
    assert secret.stat().st_uid == 0
    secret.unlink()
    with mulligan.open(place) as store:
        store.session("main").state.set("memory/a", "y" * 10_000)
    assert pins.stat().st_uid == 0


def test_a_link_leads_nobody_to_another_file(tmp_path: Path) -> None:
    secret, link = tmp_path / "secret", tmp_path / "link"
    secret.write_text("of root")
    link.symlink_to(secret)
    with pytest.raises(OSError, match="symbolic link"):
        open_as_owner(link, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    assert secret.read_text() == "of root"


@pytest.mark.parametrize("made", ["pins", "directory"])
def test_a_directory_that_is_exchanged_meanwhile_leads_root_to_give_nothing_away(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    """Its owner could have a file made in a directory of root, and be asked for as its owner."""
    ours, theirs = tmp_path / "ours", place / ".mulligan" / "locks"
    ours.mkdir()
    away = theirs.rename(place / "away")
    theirs.symlink_to(ours)
    open_ = os.open

    def open_and_exchange(*args: Any, **options: Any) -> int:
        handle = open_(*args, **options)
        if made in os.listdir(ours):
            theirs.unlink(missing_ok=True)
            theirs.symlink_to(away)
        return handle

    monkeypatch.setattr(os, "open", open_and_exchange)
    if made == "pins":
        os.close(open_as_owner(theirs / made, os.O_RDWR | os.O_CREAT))
    else:
        make_directory(theirs / made)
    assert (ours / made).stat().st_uid == 0
