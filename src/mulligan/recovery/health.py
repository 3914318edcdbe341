"""Health: a command that says whether a session is well, and so marks its checkpoints."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from mulligan.model import Checkpoint
from mulligan.session import Session
from mulligan.timeline.marks import BAD, GOOD

TIMEOUT = 60.0
"""Seconds that a health command may take, unless told otherwise."""


def health(
    session: Session,
    command: Sequence[str],
    directory: str | os.PathLike[str] | None,
    timeout: float = TIMEOUT,
    *,
    checkpoint: Checkpoint | None = None,
    variables: Mapping[str, str] | None = None,
) -> bool:
    """Run a health command and mark a checkpoint, the latest by default, good or bad.

    Exit status 0 is good; another one, and taking too long, are bad. A command that cannot be run
    at all says nothing about the checkpoint: it stays unmarked, and the answer is no.
    """
    taken = checkpoint or session.checkpoints()[-1]
    ended = run_command(command, directory, timeout, variables)
    if isinstance(ended, OSError):
        return False
    note = f"the health command took longer than {timeout:g} s" if ended is None else None
    if ended:
        note = f"the health command ended with status {ended}"
    session.mark(taken, GOOD if ended == 0 else BAD, note or "the health command succeeded")
    return ended == 0


def run_command(
    command: Sequence[str],
    directory: str | os.PathLike[str] | None,
    timeout: float,
    variables: Mapping[str, str] | None = None,
) -> int | OSError | None:
    """Return the exit status of a command, None if it took too long, or why it cannot be run.

    It ends with everything it started.
    """
    try:
        process = subprocess.Popen(
            list(command),
            cwd=None if directory is None else Path(directory),
            env=None if variables is None else dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return error
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a command's group; the number is its own until it is waited for."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
