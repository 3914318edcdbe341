"""Health commands: run regularly on a new checkpoint, which gets their result as its verdict."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from mulligan.errors import LeaseError, MulliganError
from mulligan.supervisor.checkpoint_thread import CheckpointThread
from mulligan.supervisor.process import Ending, start
from mulligan.supervisor.records import Records
from mulligan.supervisor.stimuli import Health
from mulligan.supervisor.team import Team
from mulligan.supervisor.workflow import AgentSpec, Workflow

HEALTH_TIMEOUT_SECONDS = 60.0
"""Seconds after which a health command has failed."""


class HealthChecker:
    """Runs the health commands of a team; ``wake`` is called when one has ended."""

    def __init__(
        self,
        workflow: Workflow,
        checkpoint_thread: CheckpointThread,
        records: Records,
        wake: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._workflow = workflow
        self._checkpoint_thread = checkpoint_thread
        self._records = records
        self._wake = wake
        self._say = say
        self._said: dict[str, str] = {}
        self._due: dict[str, float] = {}
        self._running: dict[str, asyncio.Task[bool | None]] = {}

    def expect(self, name: str, now: float) -> None:
        """Schedule the first check of a started agent, if it has a health command."""
        if self._workflow.agents[name].health:
            self._due[name] = now + self._health_interval(name)

    def forget(self, name: str) -> None:
        """Cancel the checks of an agent that has ended."""
        self._due.pop(name, None)
        if task := self._running.pop(name, None):
            task.cancel()

    def stop(self) -> None:
        """Stop all checks."""
        for name in list(self._running):
            self.forget(name)

    def look(self, now: float, team: Team) -> Iterator[Health]:
        """Start the commands that are due, and yield the results of earlier ones."""
        for name, task in list(self._running.items()):
            if task.done():
                del self._running[name]
                if (ok := task.result()) is not None:
                    yield Health(name, ok)
        for name, due in list(self._due.items()):
            if now >= due and name not in self._running:
                self._due[name] = now + self._health_interval(name)
                variables = team.variables(name, 0, Path(os.devnull), None)
                task = asyncio.create_task(self._examine(name, variables))
                task.add_done_callback(lambda _: self._wake())
                self._running[name] = task

    async def _examine(self, name: str, variables: dict[str, str]) -> bool | None:
        spec = self._workflow.agents[name]
        try:
            # Before the command runs: the verdict is on this checkpoint, and the agent works on
            # meanwhile.
            checkpoint = await self._checkpoint_thread.take("routine", f"health of {name}")
            ok = await _succeeds(spec, self._workflow.workspace, variables)
            self._records.mark(checkpoint, ok, f"health of {name}")
        except LeaseError:
            raise
        except (MulliganError, OSError) as error:
            self._tell(name, f"the health of {name} cannot be looked at: {error}")
            return None  # so there is no verdict
        return ok

    def _tell(self, name: str, what: str) -> None:
        """Report what is wrong with a health command, once."""
        if self._said.get(name) != what:
            self._said[name] = what
            self._say(what)

    def _health_interval(self, name: str) -> float:
        return self._workflow.agents[name].health_interval or self._workflow.checkpoint_interval_of(
            name
        )


async def _succeeds(spec: AgentSpec, workspace: str | None, variables: dict[str, str]) -> bool:
    """Run a health command; one that takes too long has failed. Its output is discarded."""
    ended = asyncio.Event()
    endings: list[Ending] = []

    def gone(ending: Ending) -> None:
        endings.append(ending)
        ended.set()

    place = spec.directory or workspace
    directory = None if place is None else Path(place)
    process = start(spec.health or (), directory, variables, gone, show=lambda _: None)
    try:
        # A command that hangs is a failure: without a limit, it would stop all later checks.
        await asyncio.wait_for(ended.wait(), HEALTH_TIMEOUT_SECONDS)
        return endings[0].status == 0
    except TimeoutError:
        return False
    finally:
        # Also when the check is cancelled because the agent has ended: the command must not outlive
        # it.
        process.kill(signal.SIGKILL)
