"""The crash loop: kill writers with SIGKILL at random moments and check that nothing is lost.

``python -m mulligan.testing.crash --rounds 200 [--seed N]`` is what ``make crash`` runs. In each
round one or two child processes run :mod:`mulligan.testing.workload` on a store and are killed.
Then the store is opened, verified, and compared with everything the children acknowledged.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

import mulligan
from mulligan.document.fold import CHECKPOINT
from mulligan.errors import MulliganError
from mulligan.failpoints import Failpoint, ignore
from mulligan.session import Session
from mulligan.store import Store
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from mulligan.testing.workload import (
    CHECKPOINTED_BATCH,
    Done,
    Intent,
    Line,
    Workload,
    fingerprint,
    report_to_pipe,
)

ROUNDS_PER_STORE = 12
"""Number of rounds after which a new store is created."""

MAX_RECHECKED = 30
"""Number of acknowledgements of earlier rounds that each round checks again."""

MAX_CALLS = 100_000
"""More calls than a child makes before it is killed."""

_decode = msgspec.json.Decoder(Line).decode


class Killed(msgspec.Struct, frozen=True):
    """How a child ended: what it had acknowledged, and what it was about to do."""

    status: int
    done: list[Done]
    pending: Intent | None
    stderr: str

    @property
    def by_sigkill(self) -> bool:
        """Whether SIGKILL ended it, rather than an error of its own."""
        return self.status == -signal.SIGKILL


class Child:
    """A process that runs the workload on a store until it is killed."""

    def __init__(
        self,
        store: Path,
        seed: int,
        prefix: str = "s",
        *,
        calls: int = MAX_CALLS,
        point: Failpoint | None = None,
        nth: int = 1,
    ) -> None:
        command = [sys.executable, "-m", "mulligan.testing.crash", "--child", str(store)]
        command += ["--seed", str(seed), "--prefix", prefix, "--calls", str(calls)]
        if point is not None:
            command += ["--point", point.value, "--nth", str(nth)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._lines: list[bytes] = []
        self._errors: list[bytes] = []
        self._first = threading.Event()
        # Both pipes are read by threads: a full pipe would block the child between two calls.
        self._readers = [
            threading.Thread(target=self._read_lines),
            threading.Thread(target=self._read_errors),
        ]
        for reader in self._readers:
            reader.start()

    def kill(self) -> None:
        """Kill it; harmless if it is already dead."""
        self._process.kill()

    def wait_for_first_line(self, seconds: float) -> None:
        """Wait until the child has printed a line or ended."""
        self._first.wait(seconds)

    def finished(self, seconds: float) -> Killed:
        """Wait for its end and return what it printed; terminate it if that takes too long."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        for reader in self._readers:
            reader.join()
        return _killed(self._process.returncode, self._lines, b"".join(self._errors).decode())

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            self._first.set()
        self._first.set()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.append(self._process.stderr.read())


def _killed(status: int, lines: list[bytes], stderr: str) -> Killed:
    done: list[Done] = []
    pending: Intent | None = None
    for line in map(_decode, lines):
        if isinstance(line, Done):
            done.append(line)
            pending = None
        else:
            pending = line
    return Killed(status, done, pending, stderr)


class Ledger:
    """Everything that was ever acknowledged on one store, to check it against."""

    def __init__(self) -> None:
        self._heads: dict[str, Done] = {}
        self._older: list[Done] = []

    def check(self, directory: Path, ended: Sequence[Killed], rng: random.Random) -> list[str]:
        """Open and verify the store, compare it with all acknowledgements; return violations."""
        fresh = [line for killed in ended for line in killed.done]
        for line in fresh:
            self._heads[line.session] = line
        pending = {killed.pending.session: killed.pending for killed in ended if killed.pending}
        again = rng.sample(self._older, min(MAX_RECHECKED, len(self._older)))
        self._older += fresh
        try:
            with mulligan.open(directory) as store:
                return list(self._violations(store, fresh + again, pending))
        except MulliganError as error:
            return [f"the store raised {type(error).__name__}: {error}"]

    def _violations(
        self, store: Store, lines: list[Done], pending: dict[str, Intent]
    ) -> Iterator[str]:
        for problem in store.verify().problems:
            yield f"verify: {problem.what} at {problem.where}: {problem.detail}"
        sessions = {session.name: session for session in store.sessions()}
        for line in lines:
            if line.session not in sessions:
                yield f"{line.session} was acknowledged and is gone"
            else:
                yield from broken_promises(sessions[line.session], line)
        for name, session in sessions.items():
            yield from self._broken_head(session, pending.get(name))

    def _broken_head(self, session: Session, pending: Intent | None) -> Iterator[str]:
        """Check that an interrupted call happened completely or not at all, and adopt it."""
        seq = session.head.seq
        last = self._heads.get(session.name)
        state = fingerprint(session.state.get(""))
        if last is not None and seq == last.seq:
            if state != last.state:
                yield f"{session.name} #{seq} has another state than acknowledged"
            return
        if pending is None:
            yield f"{session.name} has events up to #{seq} that no call wrote"
        elif state != pending.state:
            yield f"{session.name} #{seq}: {pending.call} happened in part"
        event = list(session.events())[-1]
        if pending and pending.call == CHECKPOINTED_BATCH and event.kind != CHECKPOINT:
            yield f"{session.name} #{seq}: the state of a batch is there without its checkpoint"
        call = pending.call if pending else "unknown"
        adopted = Done(call, session.name, seq, event.hash.hex(), state)
        self._heads[session.name] = adopted
        self._older.append(adopted)


def broken_promises(session: Session, line: Done) -> Iterator[str]:
    """Yield what differs from the acknowledgement."""
    where = f"{line.session} #{line.seq} ({line.call})"
    head = session.head.seq
    if head < line.seq:
        yield f"{where} was acknowledged and is lost: the head is #{head}"
        return
    since = line.seq - 1 if line.seq > 1 else None
    event = next(iter(session.events(since=since, until=line.seq)))
    if event.hash.hex() != line.hash:
        yield f"{where} is another event than acknowledged"
    if fingerprint(session.state.at(line.seq).get()) != line.state:
        yield f"{where} has another state than acknowledged"
    if line.checkpoint is not None:
        yield from _broken_checkpoint(session, line, where)


def _broken_checkpoint(session: Session, line: Done, where: str) -> Iterator[str]:
    names = [name for name in (line.checkpoint, line.label) if name is not None]
    for name in names:
        try:
            found = session.checkpoints.at(name)
        except MulliganError as error:
            yield f"{where}: checkpoint {name} is not found: {error}"
            continue
        if (found.seq, found.id, found.label) != (line.seq, line.checkpoint, line.label):
            yield f"{where}: checkpoint {name} is another one: {found}"
    if line.key is None:
        return
    if (keyed := session.checkpoints.find(line.key)) != session.checkpoints.at(line.seq):
        yield f"{where}: the key {line.key} finds {keyed}"


class Loop:
    """Rounds of writing, killing and checking."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._rng = random.Random(seed)
        self._ledger = Ledger()
        self._stores = 0
        self.store = directory
        self.rounds = 0
        self.counts: Counter[str] = Counter()

    def round(self) -> list[str]:
        """Run one round and return the violations."""
        if self.rounds % ROUNDS_PER_STORE == 0:
            self._begin_store()
        self.rounds += 1
        children = [self._child(prefix) for prefix in "ab"[: self._rng.randint(1, 2)]]
        self._kill_some_time(children)
        ended = [child.finished(60) for child in children]
        violations = [
            f"a child was not killed but ended with {killed.status}: {killed.stderr[-2000:]}"
            for killed in ended
            if not killed.by_sigkill
        ]
        self._count(ended)
        return violations + self._ledger.check(self.store, ended, self._rng)

    def _begin_store(self) -> None:
        if self._stores:
            shutil.rmtree(self.store)
        self._stores += 1
        self.store = self._directory / f"store-{self._stores}"
        self.store.mkdir()
        self._ledger = Ledger()

    def _child(self, prefix: str) -> Child:
        seed = self._rng.randrange(2**32)
        if self._rng.random() < 0.5:
            return Child(self.store, seed, prefix)
        # Failpoints are the most delicate places, so half of the children die there.
        point = self._rng.choice(list(Failpoint))
        return Child(self.store, seed, prefix, point=point, nth=self._rng.randint(1, 40))

    def _kill_some_time(self, children: list[Child]) -> None:
        moments = sorted((self._rng.uniform(0, 0.4), n) for n in range(len(children)))
        for child in children:
            # Kill only children that are at work: most of an early kill would hit the interpreter's
            # start.
            child.wait_for_first_line(30)
        started = time.monotonic()
        for moment, n in moments:
            time.sleep(max(0.0, started + moment - time.monotonic()))
            children[n].kill()

    def _count(self, ended: Sequence[Killed]) -> None:
        for killed in ended:
            self.counts["kills"] += killed.by_sigkill
            self.counts["acknowledged"] += len(killed.done)
            self.counts["checkpoints"] += sum(line.checkpoint is not None for line in killed.done)
            self.counts["interrupted calls"] += killed.pending is not None


def run(rounds: int, seed: int, directory: Path, *, verbose: bool = True) -> list[str]:
    """Run the loop until its end or the first violation, and return the violations."""
    loop = Loop(directory, seed)
    violations: list[str] = []
    started = time.monotonic()
    while loop.rounds < rounds and not violations:
        violations = loop.round()
        if verbose and (loop.rounds % 20 == 0 or violations):
            print(f"round {loop.rounds}/{rounds}: {_summary(loop.counts)}", flush=True)
    if verbose:
        print(f"seed {seed}: {loop.rounds} rounds in {time.monotonic() - started:.0f} s")
        for violation in violations:
            print(f"VIOLATION in round {loop.rounds}: {violation}")
    return violations


def _summary(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def run_child(options: argparse.Namespace) -> int:
    """Run the workload in this process; the parent will kill it."""
    failpoint = kill_at(Failpoint(options.point), options.nth) if options.point else ignore
    with open_store(options.child, failpoint=failpoint) as store:
        rng = random.Random(options.seed)
        Workload(store, rng, report_to_pipe(sys.stdout.fileno()), options.prefix).run(options.calls)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the loop, or with ``--child`` the workload; exit 1 on a violation."""
    parser = argparse.ArgumentParser(prog="python -m mulligan.testing.crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    for name in ("--child", "--prefix", "--point"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    for name in ("--calls", "--nth"):
        parser.add_argument(name, type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    if options.child:
        return run_child(options)
    print(f"seed {seed}, {options.rounds} rounds", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="mulligan-crash-"))
    if run(options.rounds, seed, directory):
        print(f"The store is kept in {directory}. Run it again with --seed {seed}.")
        return 1
    shutil.rmtree(directory)
    print("every acknowledged event and checkpoint was there, and verify was clean")
    return 0


if __name__ == "__main__":
    sys.exit(main())
