"""A writer is killed at every named failpoint; the store opens, verifies, has lost nothing."""

from __future__ import annotations

import fcntl
import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import mulligan
from mulligan.failpoints import Failpoint
from mulligan.testing.crash import Child, Killed, Ledger
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from tests.scale import passes

STORE_POINTS = [point for point in Failpoint if point.name.startswith("STORE_")]
RARE_POINTS = [Failpoint.PACK_CREATED, Failpoint.PACK_TAIL_CUT]
"""FailpointCounter once in the life of a process, if at all."""

WORKSPACE_POINTS = [point for point in Failpoint if point.name.startswith(("RESTORE_", "FORK_"))]
"""FailpointCounter while files are written, which the tests of the workspace see to."""

POINTER_POINTS = [
    point for point in Failpoint if point.name.startswith(("POINTER_", "PROJECT_", "OUTSIDE_"))
]
"""FailpointCounter while a store outside of its project is made: ``tests/unit/test_stores.py``."""

MOVE_POINTS = [point for point in Failpoint if point.name.startswith("MOVE_")]
"""FailpointCounter while a store is moved: ``tests/crash/test_move_kills.py``."""

DRILL_POINTS = [point for point in Failpoint if point.name.startswith("DRILL_")]
"""FailpointCounter while a drill is run: ``tests/crash/test_drill_kills.py``."""

REWIND_POINTS = [point for point in Failpoint if point.name.startswith("REWIND_")]
"""FailpointCounter while a coding agent is rewound: ``tests/crash/test_rewind_kills.py``."""

UPKEEP_POINTS = [
    point
    for point in Failpoint
    if point.name.startswith(
        ("PRUNE_", "UPKEEP_", "FOLD_", "GC_", "FREE_", "COMPACT_", "PURGE_", "DELETE_")
    )
]
"""FailpointCounter during upkeep: ``tests/crash/test_*_kills.py``, ``tests/unit/upkeep``."""

DAMAGE_POINTS = [Failpoint.DAMAGE_NOTED]
# See ``test_repair_kills``.
DAMAGE_POINTS += [point for point in Failpoint if point.name.startswith("REPAIR_")]
"""FailpointCounter while damage is noted: ``tests/crash/test_heal_kills.py``."""

ACT_POINTS = [
    point
    for point in Failpoint
    if point.name.startswith(("STEP_", "EFFECT_", "COMPENSATION_", "TOOL_"))
]
"""FailpointCounter of steps, effects and tools: ``tests/crash/test_effect_kills.py``."""

SETTINGS_POINTS = [point for point in Failpoint if point.name.startswith("SETTINGS_")]
"""FailpointCounter while hooks are installed: ``tests/crash/test_settings_kills.py``."""

CLIENT_POINTS = [point for point in Failpoint if point.name.startswith("CLIENT_")]
"""FailpointCounter while the helper's client is written: ``tests/crash/test_client_kills.py``."""

OTHER_POINTS = CLIENT_POINTS + (
    SETTINGS_POINTS + STORE_POINTS + RARE_POINTS + WORKSPACE_POINTS + POINTER_POINTS + MOVE_POINTS
)
OTHER_POINTS += DRILL_POINTS + REWIND_POINTS + UPKEEP_POINTS + DAMAGE_POINTS + ACT_POINTS
COMMON_POINTS = [point for point in Failpoint if point not in OTHER_POINTS]


def killed_at(store: Path, point: Failpoint, nth: int = 1, seed: int = 1) -> Killed:
    """Run the workload until it dies at the point; anything else is a failure."""
    killed = Child(store, seed, point=point, nth=nth, calls=60).finished(60)
    assert killed.by_sigkill, f"{point} was not reached {nth} times: {killed.stderr}"
    return killed


def check(store: Path, *ended: Killed) -> Ledger:
    ledger = Ledger()
    assert ledger.check(store, ended, random.Random(1)) == []
    return ledger


def go_on(store: Path, ledger: Ledger, seed: int = 2) -> None:
    """A writer that is not killed continues on the same store and finds everything."""
    ended = Child(store, seed, calls=40).finished(60)
    assert ended.status == 0, ended.stderr
    assert len(ended.done) > 20
    assert ledger.check(store, [ended], random.Random(1)) == []


@pytest.mark.parametrize("nth", passes(3))
@pytest.mark.parametrize("point", COMMON_POINTS)
def test_killed_on_the_way_of_a_write(tmp_path: Path, point: Failpoint, nth: int) -> None:
    killed = killed_at(tmp_path, point, nth, seed=nth)
    go_on(tmp_path, check(tmp_path, killed))


@pytest.mark.parametrize("point", STORE_POINTS)
def test_killed_while_the_store_is_made(tmp_path: Path, point: Failpoint) -> None:
    killed = killed_at(tmp_path, point)
    assert killed.done == []
    go_on(tmp_path, check(tmp_path, killed))


def test_killed_again_and_again_while_packs_are_made(tmp_path: Path) -> None:
    ended = []
    with ExitStack() as locks:
        for seed in range(3):
            # While others hold the packs there are, a writer has to make one.
            ended.append(killed_at(tmp_path, Failpoint.PACK_CREATED, seed=seed))
            locks.enter_context(locked(packs(tmp_path)[-1]))
        ledger = check(tmp_path, *ended)
    assert len(packs(tmp_path)) == 3
    go_on(tmp_path, ledger)


def packs(store: Path) -> list[Path]:
    return sorted((store / ".mulligan" / "packs").iterdir())


@contextmanager
def locked(pack: Path) -> Iterator[None]:
    with pack.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def test_killed_again_and_again_while_a_torn_tail_is_cut(tmp_path: Path) -> None:
    ended = [killed_at(tmp_path, Failpoint.PACK_FRAME_WRITTEN, nth=3)]
    ledger = check(tmp_path, *ended)
    for seed in range(2, 5):
        [pack] = packs(tmp_path)
        with pack.open("ab") as file:
            file.write(b"torn" * seed)
        cut = killed_at(tmp_path, Failpoint.PACK_TAIL_CUT, seed=seed)
        assert ledger.check(tmp_path, [cut], random.Random(1)) == []
    go_on(tmp_path, ledger)


def test_a_dead_writers_half_frame_is_cut_by_the_next_one(tmp_path: Path) -> None:
    ended = [killed_at(tmp_path, Failpoint.PACK_FRAME_HALF_WRITTEN, nth=3)]
    ledger = check(tmp_path, *ended)
    ended = [killed_at(tmp_path, Failpoint.PACK_TAIL_CUT, seed=9)]
    assert ledger.check(tmp_path, ended, random.Random(1)) == []
    go_on(tmp_path, ledger)


def test_every_point_is_in_one_of_the_tests() -> None:
    assert sorted(OTHER_POINTS + COMMON_POINTS) == sorted(Failpoint)


def test_kill_at_kills_at_the_nth_time_and_no_other(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        hook = kill_at(Failpoint.JOURNAL_COMMITTED, nth=2)
        with open_store(tmp_path, failpoint=hook) as store:
            session = store.session("s")
            (tmp_path / "made").touch()
            session.state.set("a", 1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert (tmp_path / "made").exists()
    with mulligan.open(tmp_path) as store:
        assert store.session("s").state.get("") == {"a": 1}
