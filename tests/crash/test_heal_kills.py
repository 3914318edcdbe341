"""A process is killed while it notes damage, or stores damaged content again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import mulligan
from mulligan.failpoints import Failpoint
from mulligan.store import engine_of
from mulligan.testing.failpoints import kill_at
from mulligan.testing.objects import noise
from mulligan.testing.stores import open_store
from tests.damage import flip_object

BIG = noise(300_000, 7)

POINTS = [
    (Failpoint.DAMAGE_NOTED, 1),
    (Failpoint.JOURNAL_BEFORE_COMMIT, 1),
    (Failpoint.JOURNAL_COMMITTED, 1),
    (Failpoint.PACK_FRAME_HALF_WRITTEN, 1),
    (Failpoint.PACK_SYNCED, 1),
    (Failpoint.JOURNAL_INDEXED, 1),
    (Failpoint.JOURNAL_BEFORE_COMMIT, 2),
    (Failpoint.JOURNAL_COMMITTED, 2),
]
"""The note is the first transaction, the checkpoint that heals it the second."""


def find_and_heal(place: Path, point: Failpoint, nth: int) -> int:
    """Check the store and take a checkpoint, in a process that is killed; return its status."""
    if (pid := os.fork()) == 0:
        with open_store(place / "store", failpoint=kill_at(point, nth=nth)) as store:
            store.verify()
            store.session("run", workspace=place / "work").checkpoint()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


@pytest.mark.parametrize(("point", "nth"), POINTS)
def test_killed_between_finding_damage_and_healing_it(
    tmp_path: Path, point: Failpoint, nth: int
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "big.bin").write_bytes(BIG)
    with mulligan.open(tmp_path / "store") as store:
        store.session("run", workspace=tmp_path / "work").checkpoint(label="before")
        digest = flip_object(engine_of(store), BIG)
    status = find_and_heal(tmp_path, point, nth)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    with mulligan.open(tmp_path / "store") as store:
        # Either the damage is still there, or it is healed: nothing else is wrong.
        assert {problem.digest for problem in store.verify().problems} <= {digest}
        session = store.session("run", workspace=tmp_path / "work")
        session.checkpoint()
        assert store.verify().problems == ()
        session.files.copy("before", tmp_path / "to")
    assert (tmp_path / "to" / "big.bin").read_bytes() == BIG
