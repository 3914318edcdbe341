"""The team of the demo: three agents under a supervisor, which is killed as well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mulligan.cli.demo.worker import APPROVED

if TYPE_CHECKING:
    from mulligan import Session, Store

SESSION = "demo-team"
AGENTS = ("planner", "coder", "tester")
PLAN = (
    "read the issue",
    "sketch the schema",
    "write the migration",
    "change the model",
    "change the queries",
    "change the forms",
    "write unit tests",
    "write an end to end test",
    "run the tests",
    "measure the queries",
    "update the guide",
    "write the changelog",
    "prepare the release",
    "announce it",
)
PATIENCE = 60.0
"""Seconds after which what is waited for is given up."""

_WORKFLOW = """session = "{session}"

"""
_AGENT = """[agents.{name}]
command = ["{python}", "-m", "mulligan.cli.demo.worker"]
backoff = {{ initial = "20ms" }}

"""


class Team:
    """The processes of a team, and what their session says of them."""

    def __init__(self, store: Store, directory: Path) -> None:
        self.session: Session = store.session(SESSION, actor="demo")
        self._store = store
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        """Write the plan and the workflow, and start the supervisor."""
        self.session.tasks.plan(PLAN)
        file = self._directory / "team.toml"
        agents = [_AGENT.format(name=name, python=sys.executable) for name in AGENTS]
        file.write_text(_WORKFLOW.format(session=SESSION) + "".join(agents))
        self._start("up", str(file))

    def resume(self) -> None:
        """Bring the team back with one command."""
        self._start("resume", SESSION)

    def kill_agent(self, name: str) -> tuple[int, str]:
        """Kill an agent at work; return its process and the task it was working on."""
        task = self._wait(lambda: self._in_progress(name))
        pid: int = self.session.state.get(("agents", name, "process_id"))
        os.kill(pid, signal.SIGKILL)
        return pid, task

    def kill_supervisor(self) -> int:
        """Kill the supervisor; its agents are left alone."""
        process = self._processes[-1]
        process.kill()
        process.wait()
        return process.pid

    def wait_for_claim(self, task: str, attempts: int) -> str:
        """Wait until a task has been claimed that often; return by whom."""

        def claimed() -> str | None:
            found = self.session.tasks.get(task)
            return found.owner if found.attempts >= attempts else None

        return self._wait(claimed)

    def wait_for_completed(self, count: int) -> None:
        """Wait until so many tasks are done."""
        self._wait(lambda: "yes" if self.completed().total() >= count else None)

    def approve(self) -> None:
        """Say that the team may end once its work is done; until then it stays."""
        self.session.state.set(APPROVED, True)

    def finish(self) -> int:
        """Wait for the end of the newest supervisor and return its exit status."""
        return self._processes[-1].wait(PATIENCE)

    def completed(self) -> Counter[str]:
        """Return how often each task was completed, by the events of the journal."""
        events = self.session.events()
        return Counter(e.payload["task"] for e in events if e.kind == "task.completed")

    def writers(self) -> bool:
        """Whether every agent's events have epochs that never go back."""
        newest: dict[str, int] = {}
        for event in self.session.events():
            if event.epoch < newest.get(event.actor, 0):
                return False
            newest[event.actor] = event.epoch
        return True

    def end(self) -> None:
        """Make sure that all are gone."""
        for process in self._processes:
            process.kill()
            process.wait()
        for name in AGENTS:
            lease = self.session.internal.lease_of(name)
            if lease is not None and self.session.internal.is_held(name):
                os.kill(lease.holder.process, signal.SIGKILL)

    def _in_progress(self, name: str) -> str | None:
        mine = (t for t in self.session.tasks if t.owner == name and t.status == "in_progress")
        return next((task.id for task in mine), None)

    def _start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "mulligan", "--store", str(self._store.path), *arguments]
        quiet = subprocess.DEVNULL
        log = (self._directory / "team.log").open("ab")
        with log:
            process = subprocess.Popen(
                command, stdin=quiet, stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)

    def _wait(self, look: Callable[[], str | None]) -> str:
        until = time.monotonic() + PATIENCE
        while (found := look()) is None:
            if time.monotonic() > until:
                raise TimeoutError("the team of the demo does not get on")
            time.sleep(0.01)
        return found
