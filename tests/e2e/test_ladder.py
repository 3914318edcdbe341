"""The whole ladder with real processes: what is announced is done, and in the end nothing runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mulligan import Session, Store
from mulligan.cli.context import CliContext
from mulligan.cli.watch import start_resume
from mulligan.recovery.ladder import LadderLimits
from mulligan.recovery.plan import attempts
from mulligan.recovery.watch import Notice, RecoveryWatch
from tests.children import processes_in
from tests.e2e.test_resume import place, run, start, store, until

__all__ = ["place", "store"]

DEADLY = """
import os, signal, time
import mulligan

session = mulligan.attach()
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(600)                     # and it outlives the supervisor that it killed
"""
AT_ONCE = LadderLimits(window=0, cooldown=0)


def climb(store: Store, place: Path) -> list[Notice]:
    """Watch until the watcher gives up, and return what it said."""
    call = CliContext(store_path=str(place), quiet=True)
    watcher = RecoveryWatch(store, lambda name, rung: start_resume(call, name, rung), AT_ONCE)
    said: list[Notice] = []

    def has_stopped() -> bool:
        said.extend(watcher.look())
        return bool(said) and said[-1].what == "stopped"

    until(has_stopped, "the watcher gave up")
    return said


def taken(session: Session) -> list[str]:
    return [e.payload["rung"] for e in session.events() if e.kind == "recovery.begun"]


def test_what_is_announced_is_done_and_in_the_end_nothing_runs(place: Path, store: Store) -> None:
    (place / "agent.py").write_text(DEADLY)
    (place / "team.toml").write_text(f'[agents.ada]\ncommand = ["{sys.executable}", "agent.py"]\n')
    start("up", "team.toml").wait()
    session = store.session("main")
    said = climb(store, place)
    # The only checkpoint is the one before the agents started, so there is no older one.
    assert [notice.rung for notice in said if notice.what == "started"] == taken(session)
    assert taken(session) == ["retry", "good", "clean"]
    assert [attempt.rung for attempt in attempts(session)] == ["retry", "good", "clean", "stop"]
    assert said[-1].tried == ["retry", "good", "clean"]
    until(lambda: processes_in(place) == [], "nothing ran any more")

    [shown] = json.loads(run("status", "--json").stdout)["sessions"]
    assert (shown["status"], shown["interrupted"]) == ("failed", None)
    assert shown["gave_up"]["tried"] == ["retry", "good", "clean"]
    assert [(agent["state"], agent["is_alive"]) for agent in shown["agents"]] == [
        ("suspended", False)
    ]
    words = run("status").stdout
    assert "the watcher gave up after 3 attempts (retry, good, clean)" in words
    assert "mulligan resume main --from POINT" in words

    (place / "agent.py").write_text("import mulligan\nmulligan.attach()\n")
    done = run("resume", "main")
    assert done.returncode == 0, done.stderr
    [shown] = json.loads(run("status", "--json").stdout)["sessions"]
    assert (shown["status"], shown["gave_up"]) == ("done", None)
    assert "gave up" not in run("status").stdout
