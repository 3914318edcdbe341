"""A purge is killed at every named failpoint, meets a full disk, and runs beside others."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random

import pytest

from mulligan import Store
from mulligan.errors import DiskFull, PurgedContent, UpkeepBusy
from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.store import engine_of
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from mulligan.upkeep import Purged, PurgeTarget, finish_purges, run_purge
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.maintain import maintain
from mulligan.upkeep.purge.run import unfinished_purges
from tests.disks import disk_of
from tests.raw_bytes import files_with

SECRET = "sk-live-Zq8vKx03LmPw7RtY"
PATTERN = "sk-live-[A-Za-z0-9]{8,}"

BEFORE = (Failpoint.PURGE_ANNOUNCED, Failpoint.PURGE_WRITTEN)
AFTER = (
    Failpoint.PURGE_BURIED,
    Failpoint.GC_STARTED,
    Failpoint.FREE_COPIED,
    Failpoint.FREE_RELOCATED,
    Failpoint.PURGE_VACATED,
    Failpoint.FREE_EXTENTS_FREED,
    Failpoint.PURGE_ERASED,
    Failpoint.PURGE_CACHES_REMOVED,
    Failpoint.COMPACT_COPIED,
    Failpoint.COMPACT_LOCKED,
    Failpoint.COMPACT_SWAPPED,
    Failpoint.COMPACT_REOPENED,
)


def content() -> bytes:
    return Random(7).randbytes(40_000)


@pytest.fixture
def place(tmp_path: Path, work: Path) -> Path:
    place = tmp_path / "store"
    fill(place, work)
    return place


def fill(place: Path, work: Path) -> None:
    """Put the secret into a frame with other files, into events, and into a keyframe."""
    with open_store(place) as store:
        session = store.session("run", workspace=work)
        (work / "kept").write_bytes(content())
        (work / ".env").write_text(f"KEY={SECRET}")
        session.state.set("memory/x", SECRET)
        session.state.set("outputs/out", SECRET + " " + "y" * 10_000)
        session.checkpoint(label="taken", note=SECRET)


def purge(store: Store, **options: float) -> Purged:
    return run_purge(store, PurgeTarget(match=PATTERN), by="anna", reason="leaked", **options)


def killed(place: Path, hook: FailpointHook) -> bool:
    child = os.fork()
    if not child:
        with open_store(place, failpoint=hook) as store:
            purge(store)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def check_kept(store: Store) -> None:
    """What nobody purged is there."""
    assert store.verify().problems == ()
    session = store.session("run")
    assert session.files.read("taken", "kept") == content()
    assert "y" * 10_000 in session.state.at("taken").get("outputs/out")


def check_gone(place: Path, store: Store) -> None:
    check_kept(store)
    assert unfinished_purges(engine_of(store)) == []
    assert files_with(place, SECRET.encode()) == []
    with pytest.raises(PurgedContent):
        store.session("run").files.read("taken", ".env")


@pytest.mark.parametrize("point", BEFORE)
def test_killed_before_its_commit_it_has_done_nothing(place: Path, point: Failpoint):
    assert killed(place, kill_at(point))
    with open_store(place) as store:
        check_kept(store)
        assert unfinished_purges(engine_of(store)) == []
        assert store.session("run").state.get("memory/x") == SECRET
        assert purge(store).is_proved
        check_gone(place, store)


@pytest.mark.parametrize("point", AFTER)
def test_killed_after_its_commit_it_is_finished_later(place: Path, point: Failpoint):
    assert killed(place, kill_at(point))
    with open_store(place) as store:
        check_kept(store)
        assert len(unfinished_purges(engine_of(store))) == 1
        assert [w.what for w in store.verify().warnings] == ["purge"]
        assert SECRET not in store.session("run").state.get("memory/x")
        assert finish_purges(store).is_proved
        check_gone(place, store)


def test_the_next_purge_of_anything_finishes_it(place: Path):
    assert killed(place, kill_at(Failpoint.PURGE_BURIED))
    with open_store(place) as store:
        done = run_purge(store, PurgeTarget(match="never-was-here"), by="anna")
        assert done.is_proved
        check_gone(place, store)


def test_upkeep_finishes_it_by_itself(place: Path):
    assert killed(place, kill_at(Failpoint.PURGE_VACATED))
    with open_store(place) as store:
        maintain(engine_of(store), 60)
        check_gone(place, store)


def test_after_its_end_nothing_is_unfinished(place: Path):
    assert killed(place, kill_at(Failpoint.PURGE_FINISHED))
    with open_store(place) as store:
        check_gone(place, store)


def test_beside_another_process_it_is_unfinished_until_that_ends(place: Path):
    """The other process may have the secret in its map of the journal."""
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(done[1])
        with open_store(place) as other:
            session = other.session("run")
            assert session.state.get("memory/x") == SECRET
            os.write(ready[1], b"1")
            os.read(done[0], 1)
            # Its document is from before the purge, and it writes on.
            for number in range(520):
                session.state.append("conversation", str(number))
            session.checkpoint()
        os._exit(0)
    os.close(done[0])
    os.read(ready[0], 1)
    with open_store(place) as store:
        result = purge(store, wait=0.2)
        assert not result.is_proved
        assert "other processes have it open" in " ".join(result.unfinished)
        os.close(done[1])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert purge(store).is_proved
        assert SECRET not in store.session("run").state.get("memory/x")
        check_gone(place, store)


def test_processes_that_work_leave_the_journal_for_a_moment(place: Path):
    """They lose nothing, and write nothing of the secret afterwards."""
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(done[1])
        os.set_blocking(done[0], False)
        with open_store(place) as other:
            session, number = other.session("run"), 0
            assert session.state.get("memory/x") == SECRET
            while True:
                session.state.append("conversation", str(number))
                number += 1
                if number == 1:
                    os.write(ready[1], b"1")
                try:
                    if os.read(done[0], 1) == b"":
                        break
                except BlockingIOError:
                    continue
            session.checkpoint(note=str(number))
        os._exit(0)
    os.close(done[0])
    os.read(ready[0], 1)
    with open_store(place) as store:
        result = purge(store)
        assert result.is_proved, (result.unfinished, result.proof.left)
        os.close(done[1])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        session = store.session("run")
        said = session.state.get("conversation")
        assert said == [str(number) for number in range(len(said))]
        assert session.checkpoints()[-1].note == str(len(said))
        check_gone(place, store)


def test_one_process_at_a_time(place: Path):
    with open_store(place) as store, upkeep_lock(engine_of(store), wait=False):
        child = os.fork()
        if not child:
            status = 1
            with open_store(place) as other:
                try:
                    purge(other)
                except UpkeepBusy:
                    status = 0
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_on_a_full_disk_it_does_all_or_nothing(tmp_path: Path, work: Path):
    with disk_of(16, tmp_path / "disk") as disk:
        fill(disk / "store", work)
        with (
            (disk / "filler").open("wb", buffering=0) as filler,
            open_store(disk / "store") as store,
        ):
            for size in (1 << 20, 4096):
                try:
                    while True:
                        filler.write(bytes(size))
                except OSError:
                    continue
            try:
                result = purge(store)
            except DiskFull:
                assert store.session("run").state.get("memory/x") == SECRET
            else:
                assert not result.is_proved
                assert SECRET not in store.session("run").state.get("memory/x")
            check_kept(store)
            os.ftruncate(filler.fileno(), 0)
            assert purge(store).is_proved
            check_gone(disk / "store", store)


def test_every_failpoint_of_a_purge_is_killed_at(place: Path):
    passed: set[Failpoint] = set()
    with open_store(place, failpoint=passed.add) as store:
        purge(store)
    mine = {point for point in Failpoint if point.name.startswith("PURGE_")}
    assert mine | {*BEFORE, *AFTER} <= passed
    assert mine <= {*BEFORE, *AFTER, Failpoint.PURGE_FINISHED}
