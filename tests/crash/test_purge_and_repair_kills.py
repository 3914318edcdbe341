"""A purge is killed, the store is damaged, and the repair is killed: nothing purged comes back.

Every pair of failpoints of the two in ``make crash``, some of them in ``make test``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random

import pytest

from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.layout import read_format
from mulligan.repair.originals import discard_originals
from mulligan.repair.store import repair_store
from mulligan.store import engine_of
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from mulligan.upkeep import PurgeTarget, run_purge
from mulligan.upkeep.purge.run import unfinished_purges
from tests.crash.test_purge_kills import AFTER, BEFORE
from tests.raw_bytes import files_with
from tests.scale import SCALE

SECRET = "sk-live-Zq8vKx03LmPw7RtY"
TARGET = PurgeTarget(match="sk-live-[A-Za-z0-9]{8,}")
STEPS, LOST = 3, 100

PURGE = (*BEFORE, *AFTER, Failpoint.PURGE_FINISHED)
REPAIR = tuple(point for point in Failpoint if point.name.startswith("REPAIR_"))
ALL = list(product(PURGE, REPAIR))
# The stride has no factor in common with the number of points of a repair, so both vary.
PAIRS = ALL if SCALE > 1 else ALL[4::31]


def content(number: int) -> bytes:
    return Random(number).randbytes(9_000)


@pytest.fixture
def place(tmp_path: Path, work: Path) -> Path:
    """A store with a secret in a file beside others, in events, in a keyframe and in a note."""
    with open_store(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        (work / "lost").write_bytes(content(LOST))
        (work / "beside").write_bytes(content(101))
        (work / ".env").write_text(f"KEY={SECRET}")
        session.state.set("memory/x", SECRET)
        session.state.set("outputs/out", SECRET + " " + "y" * 10_000)
        session.checkpoint(label="leaked", note=SECRET)
        (work / ".env").unlink()
        (work / "lost").unlink()
        session.state.delete("memory/x")
        for number in range(STEPS):
            (work / f"file-{number}").write_bytes(content(number))
            session.state.set("memory/step", number)
            session.checkpoint(label=f"step-{number}")
    return tmp_path / "store"


def is_killed(work: Callable[[], object]) -> bool:
    if (pid := os.fork()) == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def purge(place: Path, hook: FailpointHook) -> None:
    with open_store(place, failpoint=hook) as store:
        run_purge(store, TARGET, by="anna", reason="leaked")


def repair(place: Path, hook: FailpointHook | None = None) -> None:
    if hook is None:
        repair_store(place / ".mulligan", os.environ)
    else:
        repair_store(place / ".mulligan", os.environ, failpoint=hook)


def damage(place: Path) -> None:
    """Damage FORMAT, the header of a pack, a file that is nowhere else, and the journal."""
    home = place / ".mulligan"
    store_id = bytes.fromhex(read_format(home).id)
    (home / "FORMAT").write_bytes(b"{")
    for pack in (home / "packs").iterdir():
        data = bytearray(pack.read_bytes())
        if (at := data.find(content(LOST))) >= 0:
            data[at + 4_000] ^= 1
            pack.write_bytes(b"mullpack" + data[8:])
    journal = bytearray((home / "journal" / "data.mdb").read_bytes())
    pages = range(len(journal) // 2 // 4096 * 4096, len(journal), 4096)
    # Something has to say which store it is.
    at = next(page for page in pages if store_id not in journal[page : page + 4096])
    journal[at : at + 4096] = bytes(4096)
    (home / "journal" / "data.mdb").write_bytes(journal)


@pytest.mark.parametrize(("purged", "repaired"), PAIRS)
def test_a_killed_purge_and_a_killed_repair_are_both_finished(
    place: Path, tmp_path: Path, purged: Failpoint, repaired: Failpoint
) -> None:
    assert is_killed(lambda: purge(place, kill_at(purged)))
    damage(place)
    # What a purge has erased cannot be healed, and some damage is in dead bytes: a repair of those
    # does not come past every point, and then ends.
    is_killed(lambda: repair(place, kill_at(repaired)))
    repair(place)
    discard_originals(place / ".mulligan")
    with open_store(place, create=False) as store:
        done = run_purge(store, TARGET, by="anna", reason="leaked")
        assert done.is_proved, (done.unfinished, done.proof.left)
        assert unfinished_purges(engine_of(store)) == []
    assert files_with(place, SECRET.encode()) == []
    with open_store(place, create=False) as store:
        assert store.verify(full=True).problems == ()
        session = store.session("run", create=False)
        # The newest event may be on the page that was lost.
        for number in range(STEPS - 1):
            label, out = f"step-{number}", tmp_path / "out" / str(number)
            assert session.files.copy(label, out) == []
            assert (out / "beside").read_bytes() == content(101)
            assert (out / f"file-{number}").read_bytes() == content(number)
            assert session.state.at(label).get("memory/step") == number
        # A purge that moved objects leaves them twice for a while, and one of them is intact.
        if losses := list(session.internal.losses().values()):
            assert [loss.files for loss in losses] == [["lost"]]
        else:
            assert session.files.read("leaked", "lost") == content(LOST)
