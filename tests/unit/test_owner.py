"""Root writes the store of another user, who can go on with it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import mulligan
from mulligan.journal.lmdb import compact
from mulligan.owner import open_as_owner
from mulligan.store import engine_of
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
