"""The chaos run: a team works while its processes are killed, stopped and continued at random.

``python -m mulligan.testing.chaos --tasks 2000 --signals 100 [--seed N]``, part of ``make crash``.
Agents claim counted tasks. Agents and the supervisor are killed with SIGKILL, or stopped and
continued, and ``mulligan resume`` is killed during recovery. At the end every task must have been
completed exactly once in the journal, no replaced writer may have been accepted, and the store must
verify clean.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import mulligan
from mulligan.failpoints import Failpoint
from mulligan.session import Session

AGENTS = 5
SESSION = "chaos"

WORKFLOW = """
session = "chaos"
checkpoint_interval = "10s"
"""

AGENT = """
[agents.{name}]
command = [{python}, "-m", "mulligan.testing.chaos", "--agent", "{pace}"]
max_restarts = 100000
quarantine_after = 100000
heartbeat = "5s"
backoff = {{ initial = "10ms", max = "50ms" }}
"""

SECONDS_BETWEEN_SIGNALS = (0.15, 0.6)
"""Seconds between two signals."""

STOPPED_SECONDS = (0.05, 1.5)
"""How long a process is stopped, in seconds."""

KILLED_RESUMES_FRACTION = 0.5
"""Fraction of resumes that are killed on the way."""

WRITE_FAILPOINTS = tuple(
    point for point in Failpoint if point.name.startswith(("JOURNAL_", "PACK_"))
)
"""Failpoints at which resumes are killed: those that every write passes."""

MAX_RUN_SECONDS = 600.0
"""The run fails if it has not ended after this many seconds."""


def work(pace: float) -> None:
    """Act as an agent: claim tasks and complete them, counting each in the same transaction."""
    session = mulligan.attach()
    source = random.Random()
    for cycle in session.loop(checkpoint_interval=5):
        with cycle:
            task = session.tasks.claim()
            if task is None:
                break
            time.sleep(source.uniform(0, 2 * pace))
            # One transaction: no kill may count a task without completing it.
            with session.batch():
                session.state.append(("counted", task.id), session.actor)
                session.tasks.complete(task.id)
    session.agent.update(state="done")
    session.close()


class Chaos:
    """One run: a store, a team on it, and signals from a seeded source."""

    def __init__(self, directory: Path, seed: int, tasks: int, signals: int, pace: float) -> None:
        self._directory = directory
        self._random = random.Random(seed)
        self._tasks = tasks
        self._signals = signals
        self._pace = pace
        self._workflow = str(directory / "team.toml")
        self._store = mulligan.open(directory)
        self._session = self._store.session(SESSION, actor="driver")
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._log = (directory / "supervisor.log").open("ab")
        self.sent: Counter[str] = Counter()

    def run(self) -> list[str]:
        """Let the team complete everything; return what is wrong at the end."""
        self._session.tasks.plan([f"t{number}" for number in range(self._tasks)])
        self._write_workflow()
        self._start("up", self._workflow)
        until = time.monotonic() + MAX_RUN_SECONDS
        while not self._is_done():
            if time.monotonic() > until:
                return [f"the team did not end within {MAX_RUN_SECONDS:.0f} seconds", *self._end()]
            time.sleep(self._random.uniform(*SECONDS_BETWEEN_SIGNALS))
            if sum(self.sent.values()) < self._signals:
                self._disrupt()
            self._keep_supervised()
        return self._end()

    def _write_workflow(self) -> None:
        python = repr(sys.executable).replace("'", '"')
        agents = [
            AGENT.format(name=f"a{number}", python=python, pace=self._pace)
            for number in range(AGENTS)
        ]
        Path(self._workflow).write_text(WORKFLOW + "".join(agents))

    def _start(self, *arguments: str, program: Sequence[str] = ("mulligan",)) -> None:
        command = [sys.executable, "-m", *program, "--store", str(self._directory), *arguments]
        self._supervisor = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )

    def _keep_supervised(self) -> None:
        """Resume the session if its supervisor is gone, as an operator would."""
        is_gone = self._supervisor is None or self._supervisor.poll() is not None
        if not is_gone or self._is_done():
            return
        if self._session.internal.control("status") is None:  # it died before it started
            self._start("up", self._workflow)
            return
        program = ["mulligan"]
        if (
            sum(self.sent.values()) < self._signals
            and self._random.random() < KILLED_RESUMES_FRACTION
        ):
            # Recovery is the most delicate part, so it is killed midway as well.
            point = self._random.choice(WRITE_FAILPOINTS)
            program = ["mulligan.testing.dying", point.value, str(self._random.randint(1, 20))]
            self.sent["resumes that die"] += 1
        self._start("resume", SESSION, program=program)

    def _disrupt(self) -> None:
        disruptions = [self._kill_agent] * 4 + [self._kill_supervisor, self._stop] * 2
        self._random.choice(disruptions)()

    def _kill_agent(self) -> None:
        if (pid := self._agent_process()) is not None:
            self._send(pid, signal.SIGKILL, "agents killed")

    def _kill_supervisor(self) -> None:
        if self._supervisor is not None and self._supervisor.poll() is None:
            self._supervisor.kill()
            self._supervisor.wait()
            self.sent["supervisors killed"] += 1

    def _stop(self) -> None:
        """Stop an agent or the supervisor, and continue it after a while."""
        pid = self._agent_process()
        if self._random.random() < 0.3 and self._supervisor is not None:
            pid = self._supervisor.pid if self._supervisor.poll() is None else pid
        if pid is not None and self._send(pid, signal.SIGSTOP, "processes stopped"):
            time.sleep(self._random.uniform(*STOPPED_SECONDS))
            self._send(pid, signal.SIGCONT, "processes continued")

    def _send(self, pid: int, number: signal.Signals, what: str) -> bool:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        self.sent[what] += 1
        return True

    def _agent_process(self) -> int | None:
        """Return the process of a running agent, as recorded in the session."""
        agents = self._session.state.get("agents") or {}
        alive = [
            agent["process_id"]
            for name, agent in sorted(agents.items())
            if agent.get("process_id") and self._session.internal.is_held(name)
        ]
        return self._random.choice(alive) if alive else None

    def _is_done(self) -> bool:
        return all(task.status == "completed" for task in self._session.tasks)

    def _end(self) -> list[str]:
        """Wait for the supervisor to end, then check everything."""
        if self._supervisor is not None:
            try:
                self._supervisor.wait(30)
            except subprocess.TimeoutExpired:
                self._supervisor.terminate()
                self._supervisor.wait(60)
        wrong = [*_tasks_wrong(self._session, self._tasks), *_writers_wrong(self._session)]
        report = self._store.verify()
        wrong += [f"{p.what} {p.where}: {p.detail}" for p in report.problems]
        self._store.close()
        self._log.close()
        return wrong


def _tasks_wrong(session: Session, tasks: int) -> list[str]:
    """Return the tasks that were not completed exactly once in the journal."""
    done = Counter(e.payload["task"] for e in session.events() if e.kind == "task.completed")
    counted = session.state.get("counted") or {}
    names = [f"t{number}" for number in range(tasks)]
    wrong = [f"{name} was completed {done[name]} times" for name in names if done[name] != 1]
    wrong += [
        f"{n} was counted {len(counted.get(n, ()))} times"
        for n in names
        if len(counted.get(n, ())) != 1
    ]
    return wrong


def _writers_wrong(session: Session) -> list[str]:
    """Return where an event of an agent has a lower epoch than an earlier one."""
    newest: dict[str, int] = {}
    wrong = []
    for event in session.events():
        if event.epoch and event.epoch < newest.get(event.actor, 0):
            wrong.append(f"#{event.seq}: {event.actor} wrote with the epoch {event.epoch}")
        newest[event.actor] = max(newest.get(event.actor, 0), event.epoch)
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; exit 1 if something is wrong, and keep the store."""
    parser = argparse.ArgumentParser(prog="python -m mulligan.testing.chaos")
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--signals", type=int, default=100)
    parser.add_argument("--pace", type=float, default=0.15, help="seconds a task takes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--agent", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.agent is not None:
        work(options.agent)
        return 0
    print(
        f"chaos: seed {options.seed}, {options.tasks} tasks, {options.signals} signals", flush=True
    )
    directory = Path(tempfile.mkdtemp(prefix="mulligan-chaos-"))
    began = time.monotonic()
    chaos = Chaos(directory, options.seed, options.tasks, options.signals, options.pace)
    wrong = chaos.run()
    sent = ", ".join(f"{count} {what}" for what, count in sorted(chaos.sent.items()))
    print(f"chaos: {sent}; {time.monotonic() - began:.0f} s", flush=True)
    for line in wrong[:50]:
        print(f"WRONG: {line}")
    if wrong:
        print(f"the store is kept in {directory}; --seed {options.seed} draws the same signals")
        return 1
    shutil.rmtree(directory)
    print("chaos: every task completed once, no stale writer accepted, verified clean")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
