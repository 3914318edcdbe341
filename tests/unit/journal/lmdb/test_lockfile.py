"""LMDB's locks stay where they are, whoever looks into its lock file."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import mulligan
from mulligan.journal.lmdb.lockfile import LockFile
from mulligan.journal.lmdb.write_lock import find_write_lock_owner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/locks")


def locks(directory: Path) -> int:
    """Return how many locks the system knows of on a journal's lock file."""
    inode = (directory / "lock.mdb").stat().st_ino
    return sum(f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    mulligan.open(tmp_path).close()
    return tmp_path / ".mulligan/journal"


def test_looking_for_the_writer_keeps_the_locks(tmp_path: Path, journal: Path) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("run").state.set("a", 1)
        held = locks(journal)
        assert held >= 1
        find_write_lock_owner(journal)
        assert locks(journal) == held
    assert locks(journal) == 0


def test_writes_that_may_wait_keep_the_locks(tmp_path: Path, journal: Path) -> None:
    """Every write of a command or a supervisor looks for a stopped writer first."""
    with (
        mulligan.open(tmp_path, on_wait=lambda _: None) as store,
        mulligan.open(tmp_path, on_wait=lambda _: None) as second,
    ):
        store.session("run").state.set("a", 1)
        second.session("run").state.set("a", 2)
        assert locks(journal) >= 1
        second.close()
        assert locks(journal) >= 1


OPENED = """
    import sys
    import mulligan
    with mulligan.open(sys.argv[1]) as store:
        print(store.session("run").state.get("a"))
"""


def test_another_process_is_seen_and_sees(tmp_path: Path, journal: Path) -> None:
    look = LockFile(journal)
    assert not look.is_used_elsewhere()
    look.release()
    with mulligan.open(tmp_path, on_wait=lambda _: None) as store:
        store.session("run").state.set("a", 1)
        inside = (
            "import sys; from pathlib import Path;"
            "from mulligan.journal.lmdb.lockfile import LockFile;"
            "print(LockFile(Path(sys.argv[1])).is_used_elsewhere())"
        )
        assert said(inside, str(journal)) == "True"
        assert said(textwrap.dedent(OPENED), str(tmp_path)) == "1"
        store.session("run").state.set("a", 2)
        assert locks(journal) >= 1


def said(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        with mulligan.open(tmp_path / str(number), on_wait=lambda _: None) as store:
            store.session("run").state.set("a", 1)
    assert len(os.listdir("/proc/self/fd")) <= before
