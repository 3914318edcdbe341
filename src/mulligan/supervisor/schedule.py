"""Drills and checks of the store on a schedule, beside a team that runs.

Each is a separate process with a low priority. It writes its result to the journal; the
supervisor reads it there when the process exits.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime

from mulligan.errors import DamagedObject, DrillFailed
from mulligan.session import Session
from mulligan.supervisor.process import Ending, Process, start
from mulligan.supervisor.workflow import Workflow
from mulligan.upkeep.drill.record import last_drill
from mulligan.upkeep.recorded import first_problem
from mulligan.upkeep.verify.record import last_verify
from mulligan.upkeep.verify.settings import VerifySettings, verify_command
from mulligan.workspace.workers import is_possible

STOP_SECONDS = 5.0
"""Seconds that a process has to clean up when its supervisor ends."""


SETTLED_SECONDS = 600.0
"""A run that ends sooner than this is not checked."""


class Schedule(ABC):
    """Runs a command beside a team when it is due; ``wake`` is called when one has ended.

    No failure of it stops the team; ``say`` is called with it.
    """

    noun: str

    def __init__(
        self,
        workflow: Workflow,
        session: Session,
        store: str,
        variables: Mapping[str, str],
        wake: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._workflow = workflow
        self._session = session
        self._store = store
        self._variables = variables
        self._wake = wake
        self._say = say
        self._due: float | None = None
        self._process: Process | None = None
        self._ending: Ending | None = None
        self._ended = asyncio.Event()
        self._lines: list[bytes] = []

    def look(self, now: float) -> None:
        """Report a run that has ended, and start one that is due."""
        every = self._every()
        if every is None:
            return
        if self._ending is not None:
            if (said := self._outcome(self._ending.status)) is not None:
                self._say(said)
            self._process = self._ending = None
        if self._due is None:
            self._due = now + self._remaining(every)
        if now >= self._due and self._process is None:
            self._due = now + every
            self._start()

    async def stop(self) -> None:
        """End a run that is under way; it removes its files."""
        if (process := self._process) is None or process.is_gone:
            return
        # SIGINT, not SIGKILL: it lets a drill remove its scratch directory.
        process.kill(signal.SIGINT)
        try:
            await asyncio.wait_for(self._ended.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill(signal.SIGKILL)  # the next run removes what it left

    @abstractmethod
    def _every(self) -> float | None:
        """Return the seconds between two runs; None for no runs."""

    @abstractmethod
    def _last(self) -> datetime | None:
        """Return when the last run ended."""

    @abstractmethod
    def _arguments(self) -> list[str]:
        """Return what follows ``mulligan`` on the command line."""

    @abstractmethod
    def _result(self, status: int) -> str | None:
        """Return what to say of a run that was completed, None if it was not; "" for nothing."""

    def _remaining(self, every: float) -> float:
        """Return the seconds until the next run; a session without one gets it now."""
        last = self._last()
        if last is None:
            return 0.0
        age = (self._session.internal.clock.now() - last).total_seconds()
        # A result from the future was recorded by a clock that ran ahead: its age is unknown.
        return 0.0 if age < 0 else max(0.0, every - age)

    def _start(self) -> None:
        if not is_possible():
            self._say(
                f"NO {self.noun} WAS RUN: this program has no Python interpreter to start one with"
            )
            return
        self._lines, self._ended = [], asyncio.Event()
        command = [sys.executable, "-m", "mulligan", *self._arguments()]
        try:
            self._process = start(command, None, self._variables, self._over, self._lines.append)
        except OSError as error:
            self._say(f"NO {self.noun} WAS RUN: {error.strerror}")

    def _over(self, ending: Ending) -> None:
        """Note how a run ended; it has written its result."""
        self._ending = ending
        self._ended.set()
        self._wake()

    def _outcome(self, status: int) -> str | None:
        if (said := self._result(status)) is not None:
            return said or None
        lines = [line.decode(errors="replace") for line in self._lines]
        why = next((line for line in lines if line.startswith("Error:")), f"exit status {status}")
        return f"THE {self.noun} WAS NOT COMPLETED: {why.removeprefix('Error:').strip()}"


class DrillSchedule(Schedule):
    """Runs the drills of a team."""

    noun = "DRILL"

    def _every(self) -> float | None:
        return self._workflow.drill.every

    def _last(self) -> datetime | None:
        last = last_drill(self._session)
        return None if last is None else last.at

    def _arguments(self) -> list[str]:
        options = ["--no-files"] if self._workflow.workspace is None else []
        return [
            *("drill", "--background", "--quiet", *options),
            *("--store", self._store, "--session", self._session.name),
        ]

    def _result(self, status: int) -> str | None:
        last = last_drill(self._session)
        if status == 0 and last is not None:
            return f"the drill passed: a recovery takes {last.recovery_seconds:.1f} s"
        if status == DrillFailed.exit_code and last is not None:
            return f"THE DRILL FAILED: {first_problem(last)}; `mulligan status` shows it"
        return None


class VerifySchedule(Schedule):
    """Checks the store of a team; without ``[verify]`` in its workflow, as the store says."""

    noun = "VERIFY"

    def __init__(
        self,
        workflow: Workflow,
        session: Session,
        store: str,
        variables: Mapping[str, str],
        wake: Callable[[], None],
        say: Callable[[str], None],
        settings: VerifySettings,
    ) -> None:
        super().__init__(workflow, session, store, variables, wake, say)
        self._settings = workflow.verify or settings

    def _every(self) -> float | None:
        return self._settings.every

    def _last(self) -> datetime | None:
        last = last_verify(self._session)
        return None if last is None else last.at

    def _remaining(self, every: float) -> float:
        # Not at once: most runs are short, and a check would take what their agents start with.
        return max(super()._remaining(every), min(every, SETTLED_SECONDS))

    def _arguments(self) -> list[str]:
        return [*verify_command(self._settings, self._store), "--session", self._session.name]

    def _result(self, status: int) -> str | None:
        if status == 0:
            return ""  # as it should be: `mulligan status` shows its age
        last = last_verify(self._session)
        if status != DamagedObject.exit_code:
            return None
        if last is None or last.ok:  # the journal itself may be damaged
            return "VERIFY FOUND DAMAGE and could not record it; `mulligan verify --full` lists it"
        return f"VERIFY FOUND DAMAGE: {first_problem(last)}; `mulligan status` shows it"
