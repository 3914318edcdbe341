"""Bisecting: run a command on the files of checkpoints until the first bad one is found."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from mulligan.errors import CannotBisect
from mulligan.model import Checkpoint, Verdict
from mulligan.session import Session
from mulligan.timeline.bisect import SKIP, first_bad
from mulligan.timeline.marks import BAD, GOOD
from mulligan.timeline.points import PointLike
from mulligan.timeline.undo import first_restore

STATE = "MULLIGAN_STATE"
"""The variable that says where the state of the checkpoint is, as JSON."""

CHECKPOINT = "MULLIGAN_CHECKPOINT"
"""The variable that says which checkpoint is judged."""

SKIPPED = 125
"""The exit status of a command that cannot judge a checkpoint."""

Encode = Callable[[Any], str]


class Trial(msgspec.Struct, frozen=True):
    """One run of the command: on which checkpoint, and with which result."""

    checkpoint: Checkpoint
    verdict: Verdict | Literal["skip"]
    exit_status: int
    seconds: float


class Bisected(msgspec.Struct, frozen=True):
    """What a search found: the first bad checkpoint is one of the suspects.

    There is one suspect, unless the command could not judge those in between.
    """

    last_good: Checkpoint
    suspects: tuple[Checkpoint, ...]
    trials: tuple[Trial, ...]

    @property
    def culprit(self) -> Checkpoint | None:
        """The first bad checkpoint, if only one is left."""
        return self.suspects[0] if len(self.suspects) == 1 else None


class Bench:
    """Runs one command in scratch directories; nothing of the session is touched."""

    def __init__(
        self,
        session: Session,
        command: Sequence[str],
        variables: Mapping[str, str],
        encode: Encode,
        output: int | None = subprocess.DEVNULL,
    ) -> None:
        self._session = session
        self._command = list(command)
        # The command must not find the session it is run for, whatever it does.
        self._variables = {k: v for k, v in variables.items() if not k.startswith("MULLIGAN_")}
        self._encode = encode
        self._output = output

    def try_on(self, checkpoint: Checkpoint) -> Trial:
        """Run the command on the files of a checkpoint."""
        clock = self._session.internal.clock
        began = clock.monotonic()
        # Files that a command left unwritable are no reason to fail.
        with tempfile.TemporaryDirectory("", "mulligan-", ignore_cleanup_errors=True) as scratch:
            status = self._run(checkpoint, Path(scratch))
        seconds = round(clock.monotonic() - began, 3)
        return Trial(checkpoint, _verdict(status), status, seconds)

    def _run(self, checkpoint: Checkpoint, scratch: Path) -> int:
        files, state = scratch / "files", scratch / "state.json"
        if self._session.files.copy(checkpoint, files):
            return SKIPPED  # an incomplete copy cannot be judged
        state.write_text(self._encode(self._session.state.at(checkpoint).get()))
        variables = {**self._variables, STATE: str(state), CHECKPOINT: checkpoint.id}
        try:
            done = subprocess.run(
                self._command,
                cwd=files,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                check=False,
            )
        except OSError as error:
            raise CannotBisect(
                f"{self._command[0]!r} could not be run: {os.strerror(error.errno or 0)}.",
                hint="Name a program, and its arguments after it: -- pytest -q.",
            ) from error
        return done.returncode


def bisect(
    session: Session,
    good: PointLike,
    bad: PointLike,
    bench: Bench,
    *,
    mark: bool = False,
    say: Callable[[Trial], None] = lambda _: None,
) -> Bisected:
    """Find the first bad checkpoint after a good point, up to a bad one.

    Only checkpoints that hold files are tried, the two ends first: if the command disagrees about
    these, the search ends. ``mark`` records the verdicts on those in between, all together after
    the search has succeeded. ``say`` is called with every run. Raises ``CannotBisect``.
    """
    row = candidates(session, good, bad)
    trials: list[Trial] = []

    def judge(checkpoint: Checkpoint) -> Trial:
        trial = bench.try_on(checkpoint)
        trials.append(trial)
        say(trial)
        return trial

    _check_ends(row, judge)
    ends = len(trials)
    found = first_bad(len(row), lambda index: judge(row[index]).verdict)
    between = trials[ends:]
    if between and all(trial.verdict == SKIP for trial in between):
        raise CannotBisect(
            f"The command judged none of the {len(between)} checkpoints in between.",
            hint=f"Exit 0 is good, {SKIPPED} skips, every other one is bad.",
        )
    if mark:
        _mark(session, between)
    return Bisected(
        row[found.last_good], tuple(row[index] for index in found.suspects), tuple(trials)
    )


def _check_ends(row: list[Checkpoint], judge: Callable[[Checkpoint], Trial]) -> None:
    """Check that the command tells the good end from the bad one, if they hold files."""
    for end, expected in ((row[0], GOOD), (row[-1], BAD)):
        if end.workspace is None:
            continue
        trial = judge(end)
        if trial.verdict not in (expected, SKIP):
            raise CannotBisect(
                f"The command ended with {trial.exit_status} at #{end.seq}, which was said to be "
                f"{expected}.",
                hint="Nothing was marked. It does not tell good from bad; does it find its "
                "programs there?",
            )


def _mark(session: Session, trials: Sequence[Trial]) -> None:
    """Write all verdicts in one transaction."""
    # All or none: verdicts of a search that failed halfway would mislead the next rollback.
    with session.batch():
        for trial in trials:
            if trial.verdict != SKIP:
                session.checkpoints.mark(
                    trial.checkpoint, trial.verdict, f"bisect: exit {trial.exit_status}"
                )


def candidates(session: Session, good: PointLike, bad: PointLike) -> list[Checkpoint]:
    """Return the good checkpoint, those with files after it, and the bad one.

    A good point between two checkpoints stands for the one before it, a bad one for the one
    after it.
    """
    known = session.checkpoints()
    first = _here(session, good, "good")
    last = _here(session, bad, "bad")
    before = [checkpoint for checkpoint in known if checkpoint.seq <= first]
    after = [checkpoint for checkpoint in known if checkpoint.seq >= last]
    if not before or not after:
        raise CannotBisect(
            f"There is no checkpoint at or {'before the good' if not before else 'after the bad'}"
            " point.",
            hint="`mulligan checkpoint` takes one of the present.",
        )
    one, other = before[-1], after[0]
    if session.internal.folds(one.seq + 1, first):
        raise CannotBisect(
            f"Events between the checkpoint #{one.seq} and the good point #{first} were folded "
            "away, so the checkpoint may hold something else.",
            hint="Give a checkpoint as the good point.",
        )
    if restored := first_restore(session.events(one, first)):
        raise CannotBisect(
            f"No checkpoint holds what was at the good point: the restore #{restored.seq} came "
            f"after the checkpoint #{one.seq}.",
            hint="Give a checkpoint as the good point.",
        )
    if one.seq >= other.seq:
        how = "are the same checkpoint" if one.seq == other.seq else "are in the wrong order"
        raise CannotBisect(
            f"The good point, #{one.seq}, and the bad one, #{other.seq}, {how}.",
            hint="Give a good point and a later bad one.",
        )
    between = [c for c in known if one.seq < c.seq < other.seq and c.workspace is not None]
    return [one, *between, other]


def _here(session: Session, point: PointLike, name: str) -> int:
    """Return the seq of a point on this timeline."""
    place = session.point(point)
    if place.session != session.name:
        raise CannotBisect(
            f"The {name} point is in session {place.session!r}, not on the timeline of "
            f"{session.name!r}.",
            hint="Both points have to be on one timeline; -s NAME chooses it.",
        )
    return place.seq


def _verdict(status: int) -> Verdict | Literal["skip"]:
    if status == SKIPPED:
        return SKIP
    return BAD if status else GOOD
