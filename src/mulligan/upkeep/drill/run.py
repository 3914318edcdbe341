"""Drills: bring a point back in a scratch directory, and prove that everything is there.

A drill does what a recovery would do, beside the session and without touching its workspace. It
writes the files, reads them back and compares them with their digests; rebuilds the state from
keyframes and from the first event; runs the commands that it is given; and measures how long a
recovery takes (RTO) and what would be lost now (RPO). The result is an event.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mulligan.errors import DamageError, ReadOnlyStore, UnknownPoint, UnsafeName
from mulligan.failpoints import Failpoint
from mulligan.model import HeldFiles, Point, Problem
from mulligan.session import Session
from mulligan.timeline.points import PointLike
from mulligan.upkeep.drill.commands import COMMAND_TIMEOUT_SECONDS, CommandRunner, DrillCommand
from mulligan.upkeep.drill.files import (
    FILE,
    Expected,
    check_space,
    compare_files,
    expected_paths,
    write_files,
)
from mulligan.upkeep.drill.record import CommandRun, DrillResult, Loss, drill_change
from mulligan.upkeep.drill.scratch import ScratchDirectory, scratch_directory
from mulligan.upkeep.drill.state import StateDrill
from mulligan.workspace.entries import File, Link

Progress = Callable[[str], None]
"""Called with what a drill is doing."""

Encode = Callable[[Any], str]
"""Returns a state as the text that commands can read."""


def run_drill(
    session: Session,
    point: PointLike = "@latest",
    *,
    commands: Iterable[DrillCommand] = (),
    variables: Mapping[str, str] | None = None,
    timeout: float = COMMAND_TIMEOUT_SECONDS,
    scratch: str | os.PathLike[str] | None = None,
    output: int = subprocess.DEVNULL,
    encode: Encode | None = None,
    known: Iterable[Problem] = (),
    progress: Progress = lambda _: None,
) -> DrillResult:
    """Try out whether a point can be brought back, and record the result on the timeline.

    The files are written into a directory that is made in ``scratch`` (in the store by default)
    and removed afterwards; nothing else is touched. ``commands`` run there with ``variables``,
    one after the other, each for at most ``timeout`` seconds; they print to the descriptor
    ``output``, and with ``encode`` the variable MULLIGAN_STATE names a file with the state.
    ``known`` are problems that the caller has found already. A failed drill is a result, not an
    error. Raises ``DiskFull``, with nothing recorded, if the files do not fit.
    """
    engine = session.internal.engine
    if engine.read_only:
        raise ReadOnlyStore("The result of a drill cannot be recorded in this store.")
    where = None if scratch is None else Path(scratch)
    # Pinned: a drill must not fail because upkeep removes the point meanwhile.
    with engine.pin(), scratch_directory(engine, where) as directory:
        drill = _Drill(session, session.point(point), progress)
        drill.problems += known
        files = drill.restore_files(directory.path)
        drill.restore_state()
        drill.compare(files)
        state = drill.write_state(directory.path, encode)
        runner = CommandRunner(files, state, variables or {}, timeout, output, engine.clock)
        drill.run_commands(runner, commands)
    # After the removal: the event needs space, and on a full disk the files took it.
    result = drill.result(directory)
    session.internal.commit_events(lambda _: [drill_change(result)])
    return result


class _Drill:
    """One drill, step by step."""

    def __init__(self, session: Session, point: Point, progress: Progress) -> None:
        self._session = session
        self._point = point
        self._progress = progress
        self._engine = session.internal.engine
        self._clock = session.internal.clock
        self._began = self._clock.monotonic()
        self._recovery_seconds = 0.0
        self._state = StateDrill(self._engine, point)
        self._expected: list[Expected] = []
        self._runs: list[CommandRun] = []
        self.problems: list[Problem] = []

    def restore_files(self, scratch: Path) -> Path:
        """Write the files of the point, and return their directory; it is empty without any."""
        self._progress("restoring the files")
        files = scratch / "files"
        try:
            held = self._session.internal.files_at(self._point)
            with self._counted():
                self._write(held, scratch, files)
        except (DamageError, UnsafeName) as error:
            self.problems.append(Problem(FILE, f"#{self._point.seq}", str(error)))
        files.mkdir(mode=0o700, exist_ok=True)
        self._engine.failpoint(Failpoint.DRILL_WRITTEN)
        return files

    def _write(self, held: HeldFiles | None, scratch: Path, files: Path) -> None:
        if held is None:
            return
        self._expected = expected_paths(self._engine, held.tree)
        check_space(self._expected, scratch)
        self.problems += write_files(self._engine, held.tree, files)

    def restore_state(self) -> None:
        """Rebuild the state as a recovery does."""
        self._progress("rebuilding the state")
        with self._counted():
            self._state.rebuild()

    def compare(self, files: Path) -> None:
        """Compare the files with their digests, and the state with a replay of all events."""
        self._progress("comparing the files")
        failed = {problem.where for problem in self.problems if problem.what == FILE}
        found = compare_files(self._engine, self._expected, files)
        self.problems += [problem for problem in found if problem.where not in failed]
        self._progress("replaying all events")
        self._state.replay()
        self.problems += self._state.problems

    def write_state(self, scratch: Path, encode: Encode | None) -> Path | None:
        """Write the state for the commands; None if it cannot be read, which is a problem."""
        if encode is None or self._state.problems:
            return None
        file = scratch / "state.json"
        file.write_text(encode(self._session.state.at(self._point).get()))
        return file

    def run_commands(self, runner: CommandRunner, commands: Iterable[DrillCommand]) -> None:
        """Run the commands on the files."""
        for command in commands:
            self._progress(f"running the {command.kind} command of {command.agent}")
            with self._counted():
                made, problem = runner.run(command)
            self._runs.append(made)
            self.problems += [problem] if problem else []

    def result(self, directory: ScratchDirectory) -> DrillResult:
        """Return how it went, and what would be lost now."""
        files = [entry for _, entry in self._expected if isinstance(entry, File | Link)]
        return DrillResult(
            session=self._point.session,
            seq=self._point.seq,
            checkpoint=self._checkpoint(),
            at=self._clock.now(),
            files=len(files),
            file_bytes=sum(entry.size for entry in files if isinstance(entry, File)),
            events=self._state.events,
            keyframes=self._state.keyframes,
            commands=tuple(self._runs),
            recovery_seconds=round(self._recovery_seconds, 3),
            seconds=round(self._clock.monotonic() - self._began, 3),
            loss=_loss(self._session),
            problem_count=len(self.problems),
            problems=tuple(self.problems),
            leftover=directory.leftover,
        )

    def _checkpoint(self) -> str | None:
        try:
            return self._session.checkpoints.at(self._point).id
        except UnknownPoint:
            return None

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the time of a step that a recovery takes, too; comparisons are not counted."""
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self._recovery_seconds += self._clock.monotonic() - began


def _loss(session: Session) -> Loss:
    """Return what is newer than the newest checkpoint."""
    try:
        newest = session.checkpoints.at("@latest")
    except UnknownPoint:
        return Loss(None, None, session.head.seq, None)
    age = (session.internal.clock.now() - newest.time).total_seconds()
    paths = len(session.diff(newest).files) if session.internal.has_files else None
    # A checkpoint from the future was taken by a clock that ran ahead.
    return Loss(newest.id, max(0.0, round(age, 3)), session.head.seq - newest.seq, paths)
