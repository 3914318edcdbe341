"""The commands of a drill: dry starts of agents and health commands, in the scratch directory."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from mulligan.clock import Clock
from mulligan.model import Problem
from mulligan.upkeep.drill.record import CommandKind, CommandRun

DRILL_VARIABLE = "MULLIGAN_DRILL"
"""The variable that tells a command that it runs in a drill."""

STATE_VARIABLE = "MULLIGAN_STATE"
"""The variable that says where the state of the point is, as JSON."""

COMMAND_TIMEOUT_SECONDS = 60.0
"""Seconds after which a command has failed, by default."""


class DrillCommand(msgspec.Struct, frozen=True):
    """A command to run: ``directory`` is its place below the top of the workspace."""

    agent: str
    kind: CommandKind
    command: tuple[str, ...]
    directory: str = ""
    env: dict[str, str] = {}


class CommandRunner:
    """Runs commands on the files of a drill, each as a process group that is ended with it."""

    def __init__(
        self,
        files: Path,
        state: Path | None,
        variables: Mapping[str, str],
        timeout: float,
        output: int,
        clock: Clock,
    ) -> None:
        self._files = files
        # Whatever a command does, it is not to find the session that it is run for.
        inherited = {k: v for k, v in variables.items() if not k.startswith("MULLIGAN_")}
        self._variables = {**inherited, DRILL_VARIABLE: "1"}
        if state is not None:
            self._variables[STATE_VARIABLE] = str(state)
        self._timeout = timeout
        self._output = output
        self._clock = clock

    def run(self, command: DrillCommand) -> tuple[CommandRun, Problem | None]:
        """Run a command, and return how it went and what is wrong with that."""
        began = self._clock.monotonic()
        status, detail = self._status(command)
        seconds = round(self._clock.monotonic() - began, 3)
        made = CommandRun(command.agent, command.kind, status, seconds)
        if status == 0:
            return made, None
        words = "its health command" if command.kind == "health" else "its drill command"
        return made, Problem("agent", command.agent, f"{words} {detail}")

    def _status(self, command: DrillCommand) -> tuple[int | None, str]:
        popen, is_done = None, False
        try:
            with _interrupts_deferred():
                popen = self._start(command)
            is_done = _ends_within(popen, self._timeout)
        except (OSError, ValueError) as error:  # such as a NUL in an argument
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            return None, f"could not be started: {why}"
        finally:
            if popen is not None:
                _end_group(popen)
        status = popen.returncode
        if not is_done:
            return None, f"was ended after {self._timeout:g} s"
        return status, f"was ended by signal {-status}" if status < 0 else f"exited with {status}"

    def _start(self, command: DrillCommand) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command.command,
            cwd=self._files / command.directory,
            env={**self._variables, **command.env},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )


def _end_group(popen: subprocess.Popen[bytes]) -> None:
    """End a process with everything that it started in its group, and reap it."""
    # Before the process is waited for, so that its number cannot be another group's.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(popen.pid, signal.SIGKILL)
    popen.wait()


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` at the end of the block instead of inside it.

    Raised while a process is being started, it would leave one that is never ended.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before is not signal.default_int_handler:
        yield  # nothing is raised here
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt


def _ends_within(popen: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait until a child has ended, if possible without reaping it; False if it takes too long."""
    if not hasattr(os, "pidfd_open"):
        try:
            popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True
    # Not reaped: its pid is also that of its group, and must not be reused before that is ended.
    handle = os.pidfd_open(popen.pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(handle)
