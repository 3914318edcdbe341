"""A short turn of the crash loop; ``make crash`` runs a long one."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import mulligan
from mulligan.testing.crash import Killed, Ledger, run
from mulligan.testing.workload import CHECKPOINTED_BATCH, Done, Intent, fingerprint
from tests.scale import times


def test_nothing_acknowledged_is_lost_when_writers_are_killed_at_random(tmp_path: Path) -> None:
    rounds, seed = times(5), random.SystemRandom().randrange(2**32)
    print(f"replay with: python -m mulligan.testing.crash --rounds {rounds} --seed {seed}")
    assert run(rounds, seed, tmp_path, verbose=False) == []


def test_the_loop_is_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mulligan.testing.crash", "--rounds", "1", "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "seed 5" in done.stdout


# The loop is only worth something if it would notice a broken promise.


def _store(directory: Path) -> Done:
    """Make a store with one session and return what would be acknowledged for it."""
    with mulligan.open(directory) as store:
        session = store.session("s")
        session.state.set("a", 1)
        made = session.checkpoint(label="here")
        head = list(session.events())[-1]
    return Done("set", "s", 3, head.hash.hex(), fingerprint({"a": 1}), made.id, "here")


def _broken(directory: Path, *done: Done, pending: Intent | None = None) -> list[str]:
    ended = [Killed(-9, list(done), pending, "")]
    return Ledger().check(directory, ended, random.Random(1))


def test_the_check_is_content_with_a_kept_promise(tmp_path: Path) -> None:
    assert _broken(tmp_path, _store(tmp_path)) == []


def test_the_check_notices_lost_and_changed_events(tmp_path: Path) -> None:
    kept = _store(tmp_path)
    lost = Done("set", "s", 4, "00" * 32, kept.state)
    assert "is lost" in _broken(tmp_path, lost)[0]
    gone = Done("set", "other", 1, "00" * 32, kept.state)
    assert "is gone" in _broken(tmp_path, kept, gone)[0]
    replaced = Done("set", "s", 3, "00" * 32, kept.state)
    assert "another event" in _broken(tmp_path, replaced)[0]
    changed = Done("set", "s", 3, kept.hash, fingerprint({"a": 2}))
    assert "another state" in _broken(tmp_path, changed)[0]


def test_the_check_notices_lost_checkpoints(tmp_path: Path) -> None:
    kept = _store(tmp_path)
    unknown = Done("checkpoint", "s", 3, kept.hash, kept.state, "ab" * 16, None)
    assert "is not found" in _broken(tmp_path, unknown)[0]
    other = Done("checkpoint", "s", 3, kept.hash, kept.state, kept.checkpoint, "there")
    assert "another one" in _broken(tmp_path, other)[0]


def test_the_check_notices_calls_that_happened_in_part(tmp_path: Path) -> None:
    kept = _store(tmp_path)
    with mulligan.open(tmp_path) as store:
        store.session("s").state.set("half", True)
    assert "no call wrote" in _broken(tmp_path, kept)[0]
    whole = Intent("batch", "s", fingerprint({"a": 1, "half": True}))
    assert _broken(tmp_path, kept, pending=whole) == []
    more = Intent("batch", "s", fingerprint({"a": 1, "half": True, "rest": True}))
    assert "in part" in _broken(tmp_path, kept, pending=more)[0]


def test_the_check_notices_the_state_of_a_batch_without_its_checkpoint(tmp_path: Path) -> None:
    kept = _store(tmp_path)
    whole = Intent(CHECKPOINTED_BATCH, "s", fingerprint({"a": 1, "half": True}))
    with mulligan.open(tmp_path) as store:
        store.session("s").state.set("half", True)
    assert "without its checkpoint" in _broken(tmp_path, kept, pending=whole)[0]
    with mulligan.open(tmp_path) as store:
        store.session("s").checkpoint()
    assert _broken(tmp_path, kept, pending=whole) == []


def test_the_check_notices_damage(tmp_path: Path) -> None:
    kept = _store(tmp_path)
    with mulligan.open(tmp_path) as store:
        store.session("s").state.set("large", "x" * 10_000)
    [pack] = (tmp_path / ".mulligan" / "packs").iterdir()
    content = bytearray(pack.read_bytes())
    content[-1] ^= 1
    pack.write_bytes(content)
    assert any("verify" in line or "raised" in line for line in _broken(tmp_path, kept))
