"""Daily work: what an agent does to a project in weeks, the same for the same seed.

A day has some hours of work. Each step says something and does one thing: it edits files, builds,
installs or upgrades a package, or only talks. Now and then a person labels a checkpoint or goes
back to an earlier one.
"""

from __future__ import annotations

import random
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmarks.messages import Message, text_messages
from benchmarks.timing import Spent, timed_with_cpu
from benchmarks.trees import Steps, generate, source_text, text_file

if TYPE_CHECKING:
    from mulligan import Session

STEPS_A_DAY, STEP_SECONDS = 200, 144.0
"""Eight hours of work a day."""

LABELLED, RESTORED = 5 * STEPS_A_DAY, 99
"""After how many steps one is labelled, and one is gone back from."""

FILES, PACKAGES, PACKAGE_FILES, ARTEFACTS = 300, 12, 40, 12
ARTEFACT_SIZE = 30_000

Act = Literal["edit", "build", "install", "talk"]
ACTS: tuple[Act, ...] = ("edit",) * 12 + ("build",) * 3 + ("install",) + ("talk",) * 4


class WorkClock:
    """Implements ``Clock``: real time, and the hours that are skipped between steps."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def skip(self, seconds: float) -> None:
        """Let time pass in which nothing happens."""
        self._skipped += seconds

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.now(UTC) + timedelta(seconds=self._skipped)

    def wall_ns(self) -> int:
        """Return the time of the file system, which skips nothing."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Return seconds, those that were skipped included."""
        return time.perf_counter() + self._skipped

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class DailyWork:
    """One project, and the steps in it."""

    def __init__(self, root: Path, seed: int, steps: int) -> None:
        self.root = root
        self._rng = random.Random(seed)
        self._text = source_text()
        self._said = iter(text_messages(2 * steps))
        generate(root, FILES)
        self._edits = Steps(root)
        for number in range(PACKAGES):
            self._install(number)

    def say(self) -> list[Message]:
        """Return what is said in a step: 1 KB by the agent, and often 1 KB by a tool."""
        return [next(self._said) for _ in range(self._rng.randrange(1, 3))]

    def act(self) -> Act:
        """Change the files as one step does."""
        act = self._rng.choice(ACTS)
        if act == "edit":
            self._edits.take()
        elif act == "build":
            self._build()
        elif act == "install":
            self._install(self._rng.randrange(PACKAGES))
        return act

    def step(self, step: int, session: Session) -> Spent:
        """Take one step with a checkpoint after it; return what the session took."""
        said = self.say()

        def speak() -> None:
            for message in said:
                session.state.append("conversation", message)

        spoken = timed_with_cpu(speak)
        act = self.act()
        label = f"day-{step // STEPS_A_DAY}" if step % LABELLED == LABELLED - 1 else None
        taken = timed_with_cpu(session.checkpoint, "routine", label=label)
        if act == "edit" and step % RESTORED == RESTORED - 1:
            session.restore("@latest~1")
            self._edits.forget()
        return Spent(spoken.wall + taken.wall, spoken.cpu + taken.cpu)

    def skip_to_next(self, step: int, clock: WorkClock) -> None:
        """Let time pass until the next step: minutes, or a night."""
        clock.skip(STEP_SECONDS)
        if step % STEPS_A_DAY == STEPS_A_DAY - 1:
            clock.skip(timedelta(days=1).total_seconds() - STEPS_A_DAY * STEP_SECONDS)

    def _build(self) -> None:
        """Write some artefacts anew: half of each is as before, as in linked programs."""
        place = self.root / "build"
        place.mkdir(exist_ok=True)
        for number in self._rng.sample(range(ARTEFACTS), 3):
            fixed = random.Random(number).randbytes(ARTEFACT_SIZE // 2)
            (place / f"{number}.o").write_bytes(fixed + self._rng.randbytes(ARTEFACT_SIZE // 2))

    def _install(self, number: int) -> None:
        """Replace a package by another version of it."""
        place = self.root / "packages" / f"p{number}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for file in range(PACKAGE_FILES):
            size = int(self._rng.lognormvariate(0, 1) * 3_000)
            (place / f"m{file}.py").write_bytes(text_file(self._rng, self._text, size))
