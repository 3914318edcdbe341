"""Checks of the store beside a program that has it open for long.

Each is a process of its own: a check in a thread would hold up the program's other threads.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event

import msgspec

from mulligan.engine import Engine
from mulligan.upkeep.record import replace_file
from mulligan.upkeep.verify.settings import VerifySettings, read_verify, verify_command
from mulligan.workspace.workers import is_possible

STARTED = "verify"
"""The file in ``tmp/`` that says when the last check was started; a cache, as all there."""

POLL_SECONDS = 0.2
"""How often a check that runs is looked at."""

END_SECONDS = 1.0
"""How long a check has to end when the program closes the store."""


def verify_if_due(engine: Engine, stop: Event) -> int | None:
    """Check the store in another process if that is due; return its exit status.

    ``stop`` ends it. Its result is on the timeline; errors are those of the settings.
    """
    directory = engine.directory
    if directory is None or engine.read_only or not is_possible():
        return None
    settings = read_verify(directory)
    if not _is_due(engine, directory, settings):
        return None
    # Before it: another process that looks must not start one as well.
    replace_file(engine, directory / "tmp" / STARTED, msgspec.json.encode(engine.clock.now()))
    command = [sys.executable, "-m", "mulligan", *verify_command(settings, str(directory))]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        # Polled, because two things end it: the check itself, and the end of the team beside it.
        while process.poll() is None:
            if stop.wait(POLL_SECONDS):
                _end(process)
                # Not checked after all: the next process tries, or a store that is only used for
                # minutes at a time would never be.
                (directory / "tmp" / STARTED).unlink(missing_ok=True)
    return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()  # it holds nothing that its end does not release


def _is_due(engine: Engine, directory: Path, settings: VerifySettings) -> bool:
    if settings.every is None:
        return False
    try:
        data = (directory / "tmp" / STARTED).read_bytes()
        last = msgspec.json.decode(data, type=datetime)
    except (OSError, msgspec.DecodeError):
        return True
    now = engine.clock.now()
    # A time in the future was written under a clock that was wrong: it counts for nothing.
    return not last <= now < last + timedelta(seconds=settings.every)
