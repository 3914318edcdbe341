"""What upkeep costs in a process of its own: ``python -m benchmarks.upkeep_child WHAT STORE``.

``collect`` gives back what nothing refers to, ``prune`` keeps the newest checkpoints alone and
folds all it can, ``verify`` reads everything. Each prints seconds, seconds of processors, the peak
memory and the longest that it held the write lock as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.timing import Spent, peak_memory, timed_with_cpu


class Cost(NamedTuple):
    """What a child process needed."""

    spent: Spent
    peak: int
    longest_hold: float


def start(what: str, store: Path) -> subprocess.Popen[bytes]:
    """Start a child process."""
    command = [sys.executable, "-m", "benchmarks.upkeep_child", what, str(store)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def cost_of(child: subprocess.Popen[bytes]) -> Cost:
    """Return what a child process needed, after its end."""
    out, _ = child.communicate()
    if child.returncode:
        raise AssertionError(f"the child process ended with {child.returncode}")
    wall, cpu, peak, hold = json.loads(out)
    return Cost(Spent(wall, cpu), peak, hold)


def main(argv: Sequence[str]) -> None:
    """Do it and print what it took."""
    import mulligan

    what, place = argv
    work = {"collect": _collect, "prune": _prune, "verify": _verify}[what]
    holds: list[float] = []
    with mulligan.open(place, create=False) as store:
        spent = timed_with_cpu(lambda: holds.append(work(store)))
    print(json.dumps([*spent, peak_memory(), *holds]))


def _prune(store: Any) -> float:
    from mulligan.store import engine_of
    from mulligan.upkeep.lock import upkeep_lock
    from mulligan.upkeep.retention.policy import Policy, Rules
    from mulligan.upkeep.retention.prune import Pruner

    engine = engine_of(store)
    policy = Policy(routine=Rules(keep_last=3), window=0.001, undo_window=0)
    with upkeep_lock(engine, wait=True):
        done = Pruner(engine, policy).run()
    if not (done.removed and done.events and done.objects):
        raise AssertionError("there was nothing to remove")
    return done.longest_hold


def _collect(store: Any) -> float:
    from mulligan.store import engine_of
    from mulligan.upkeep.lock import upkeep_lock
    from mulligan.upkeep.space.reclaim_space import reclaim

    engine = engine_of(store)
    with upkeep_lock(engine, wait=True):
        done = reclaim(engine)
    if not done.removed:
        raise AssertionError("there was no garbage")
    return done.longest_hold


def _verify(store: Any) -> float:
    if problems := store.verify(full=True).problems:
        raise AssertionError(f"the store is damaged: {problems[0]}")
    return 0.0


if __name__ == "__main__":
    main(sys.argv[1:])
