"""The collector's campaign: reclaim space beside writers, readers, restores and forks; kill all.

``python -m mulligan.testing.collector --rounds 1000 [--seed N]`` is part of ``make crash``. A round
runs each race of ``mulligan.testing.races`` step by step. Then child processes take checkpoints,
prune, restore and fork, and others reclaim space, until all of them are killed with SIGKILL. The
store must verify, hold every checkpoint that was acknowledged and not pruned, and restore each to
the files that were there. Contents are drawn from a small pool, so that objects are stored again
while they are condemned. ``--without pins`` takes a protection out: then an object must be lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from mulligan.errors import UpkeepBusy
from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.session import Session
from mulligan.store import Store
from mulligan.testing.protections import PROTECTIONS
from mulligan.testing.races import RACES, Races
from mulligan.testing.stores import open_store
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.space.reclaim_space import reclaim

ROUNDS_PER_STORE = 10
WRITERS, COLLECTORS = 2, 1
POOL, FILES, KEEP = 30, 4, 1
SIZES = (30, 3_000, 70_000, 300_000)
CHECKED = 6
"""How many checkpoints each round restores."""

PROGRESS_ROUNDS = 100
"""After how many rounds the campaign says how far it is."""

SLOW = {Failpoint.PACK_SYNCED: 0.1, Failpoint.GC_CONDEMNED: 0.05, Failpoint.GC_GRACE_OVER: 0.05}
"""Where processes pause, and for how long at most: between look-up and commit, and between the
steps of a collection, so that they meet there."""

Files = dict[str, int]


def content(number: int) -> bytes:
    """Return the bytes of a content of the pool."""
    return random.Random(number).randbytes(SIZES[number % len(SIZES)])


def dawdle(rng: random.Random) -> FailpointHook:
    """Return a hook that pauses at random."""

    def hook(point: Failpoint) -> None:
        if point in SLOW and rng.random() < 0.5:
            time.sleep(rng.uniform(0, SLOW[point]))

    return hook


class Ledger:
    """What a writer is about to do and has done, in a file that survives it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, what: str, session: str, label: str, files: Files | None = None) -> None:
        """Append a line."""
        with self._path.open("a") as file:
            file.write(json.dumps([what, session, label, files]) + "\n")

    def read(self) -> tuple[dict[tuple[str, str], Files], set[tuple[str, str]]]:
        """Return the files of every checkpoint that was started, and those that must exist."""
        started: dict[tuple[str, str], Files] = {}
        needed: set[tuple[str, str]] = set()
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        for line in lines:
            what, session, label, files = json.loads(line)
            if what == "start":
                started[session, label] = files
            elif what == "done":
                needed.add((session, label))
            else:
                needed.discard((session, label))
        return started, needed


class CheckpointWriter:
    """Takes checkpoints of a directory, prunes the older ones, restores and forks."""

    def __init__(self, store: Store, name: str, work: Path, ledger: Ledger, seed: int) -> None:
        work.mkdir(exist_ok=True)
        self._store = store
        self._work = work
        self._ledger = ledger
        self._rng = random.Random(seed)
        self._session = store.session(name, workspace=work)
        self._taken = [c.label for c in self._session.checkpoints() if c.label]

    def run(self) -> None:
        """Work until killed."""
        while True:
            # Few restores and forks: each keeps its files, and less becomes garbage.
            act = self._rng.choice((self._checkpoint,) * 20 + (self._restore, self._fork))
            act()
            self._prune()

    def _checkpoint(self) -> None:
        for _ in range(self._rng.randrange(1, 4)):
            # Renamed into place: a killed writer leaves no half of a content behind.
            draft = self._work.with_name(f"{self._work.name}-draft")
            draft.write_bytes(content(self._rng.randrange(POOL)))
            draft.rename(self._work / f"f{self._rng.randrange(FILES)}")
        label = f"l{self._rng.getrandbits(48):x}"
        name, files = self._session.name, found_in(self._work)
        self._ledger.note("start", name, label, files)
        self._session.checkpoint(label=label)
        self._ledger.note("done", name, label)
        self._taken.append(label)

    def _restore(self) -> None:
        if self._taken:
            self._session.restore(self._rng.choice(self._taken))

    def _fork(self) -> None:
        if self._taken and len(self._store.sessions()) < 12:
            self._session.fork(self._rng.choice(self._taken), f"fork-{self._rng.getrandbits(48):x}")

    def _prune(self) -> None:
        old, self._taken = self._taken[:-KEEP], self._taken[-KEEP:]
        if not old:
            return
        for label in old:
            self._ledger.note("prune", self._session.name, label)
        kept = set(self._taken)
        prune(self._store, self._session, lambda label: label not in kept)


def found_in(work: Path) -> Files:
    """Return which content each file of a directory has."""
    pool = {content(number): number for number in range(POOL)}
    return {file.name: pool[file.read_bytes()] for file in sorted(work.iterdir())}


def prune(store: Store, session: Session, is_old: Callable[[str | None], bool]) -> None:
    """Prune a session's own older checkpoints, those without a label included."""
    engine = store._engine
    with engine.read() as view:
        record = view.find(session.name)
    assert record is not None
    labels = {c.seq: c.label for c in session.checkpoints()}
    with engine.write(session=record.number) as txn:
        base = record.origin.seq if record.origin else 0
        newest = txn.head(record.number).checkpoint
        last = newest[0] if newest else 0
        origins = {s.origin.seq for s in txn.sessions() if s.origin}
        own = (seq for seq, _ in txn.checkpoints(record.number, base + 1, last - 1))
        txn.prune(record.number, [s for s in own if is_old(labels.get(s)) and s not in origins])


def collect_for_ever(store: Store) -> None:
    """Reclaim space until killed."""
    while True:
        try:
            with upkeep_lock(store._engine, wait=False):
                reclaim(store._engine)
        except UpkeepBusy:
            time.sleep(0.01)


def _child(act: Callable[[], None], without: str | None) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            if without is not None:
                PROTECTIONS[without]()
            act()
        except BaseException as error:
            # The parent reports that it ended.
            print(f"child: {error!r}", file=sys.stderr, flush=True)
        os._exit(3)
    return pid


class Campaign:
    """Rounds on one store after the other; ``without`` names a protection to take out."""

    def __init__(self, seed: int, without: str | None = None) -> None:
        self._rng = random.Random(seed)
        self._without = without
        self._place = Path(tempfile.mkdtemp(prefix="mulligan-collector-"))
        self.restored = 0

    def round(self, number: int) -> list[str]:
        """Run one round; return what is wrong afterwards."""
        if number % ROUNDS_PER_STORE == 0:
            shutil.rmtree(self._place)
            self._place.mkdir()
        races = Races(self._place / "races", self._rng, self._without)
        for kind in RACES:
            if problems := races.run(kind):
                return problems
        return self._kill_all()

    def _kill_all(self) -> list[str]:
        """Let writers and collectors meet by chance, kill them, and check the store."""
        seeds = [self._rng.getrandbits(32) for _ in range(WRITERS)]
        acts = [partial(self._write, n, seed) for n, seed in enumerate(seeds)]
        seeds = [self._rng.getrandbits(32) for _ in range(COLLECTORS)]
        acts += [partial(self._collect, seed) for seed in seeds]
        children = [_child(act, self._without) for act in acts]
        time.sleep(self._rng.uniform(0.1, 1.6))
        self._rng.shuffle(children)
        problems = []
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            if not os.WIFSIGNALED(status):
                problems.append(f"a child ended by itself with status {status}")
        return problems + self._check()

    def close(self) -> None:
        """Delete the store."""
        shutil.rmtree(self._place, ignore_errors=True)

    def _write(self, number: int, seed: int) -> None:
        ledger = Ledger(self._place / f"ledger-{number}")
        hook = dawdle(random.Random(seed))
        with open_store(self._place / "store", failpoint=hook) as store:
            CheckpointWriter(
                store, f"w{number}", self._place / f"work-{number}", ledger, seed
            ).run()

    def _collect(self, seed: int) -> None:
        hook = dawdle(random.Random(seed))
        with open_store(self._place / "store", failpoint=hook) as store:
            collect_for_ever(store)

    def _check(self) -> list[str]:
        with open_store(self._place / "store") as store:
            problems = [str(problem) for problem in store.verify(full=True).problems]
            for number in range(WRITERS):
                problems += self._check_writer(store, number)
            return problems

    def _check_writer(self, store: Store, number: int) -> list[str]:
        name, work = f"w{number}", self._place / f"work-{number}"
        started, needed = Ledger(self._place / f"ledger-{number}").read()
        if not started:
            return []
        session = store.session(name, workspace=work)
        present = [c.label for c in session.checkpoints() if c.label]
        lost = [label for _, label in needed if label not in present]
        problems = [f"{name}: checkpoint {label} is lost" for label in lost]
        for label in self._rng.sample(present, min(CHECKED, len(present))):
            session.restore(label)
            self.restored += 1
            if found_in(work) != started[name, label]:
                problems.append(f"{name}: checkpoint {label} restores other files")
        return problems


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--without", choices=sorted(PROTECTIONS), help="a protection to take out")
    chosen = parser.parse_args(arguments)
    seed = random.SystemRandom().getrandbits(32) if chosen.seed is None else chosen.seed
    print(f"collector: {chosen.rounds} rounds, seed {seed}", flush=True)
    campaign = Campaign(seed, chosen.without)
    for number in range(chosen.rounds):
        if number and number % PROGRESS_ROUNDS == 0:
            print(f"collector: {number} rounds done", flush=True)
        if problems := campaign.round(number):
            print(f"round {number}, seed {seed}:", *problems, sep="\n  ")
            if chosen.without:
                campaign.close()  # as expected; otherwise the store stays for a look at it
            return 1
    campaign.close()
    print(f"collector: {campaign.restored} checkpoints restored, none lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
