"""The processes of agents: each in its own group, watched by its pidfd, ended as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mulligan.session.write.leases import identity
from mulligan.supervisor.terminal import Terminal

Gone = Callable[["Ending"], None]
"""Called once, with how a process ended."""

Show = Callable[[bytes], None]
"""Called with what a process printed, line by line."""

STDOUT = 1

_CHUNK_BYTES = 65536

_MAX_PIPE_CHUNKS = 16
"""How many chunks a pipe can hold at most, unless a privileged process made it larger."""


class Ending(msgspec.Struct, frozen=True):
    """How a process ended, and its resource usage.

    ``had_terminal`` is whether it had the terminal until then, ``output_closed`` whether nothing
    reads its output any more.
    """

    status: int
    resources: dict[str, Any]
    had_terminal: bool = False
    output_closed: bool = False


class Process:
    """One running process of an agent, with everything that it started."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        gone: Gone,
        show: Show | None,
        terminal: Terminal | None = None,
        prints_to: int | None = None,
    ) -> None:
        self._popen = popen
        self._prints_to = prints_to
        self._gone = gone
        self._terminal = terminal
        self._loop = asyncio.get_running_loop()
        self._output = _Lines(popen, show) if show is not None else None
        self.pid = popen.pid
        self.identity = identity(popen.pid)
        self._watch()

    @property
    def output(self) -> int | None:
        """The handle from which its output is read, if it is."""
        pipe = self._popen.stdout
        return None if pipe is None or pipe.closed else pipe.fileno()

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended and was waited for."""
        return self._popen.returncode is not None

    def kill(self, number: int) -> None:
        """Send a signal to the process and its group; a stopped one is woken to receive it."""
        if self.is_gone:
            return
        _signal_group(self.pid, number)
        # A stopped process handles no signal until it is continued; SIGKILL needs no handler.
        if number != signal.SIGKILL:
            _signal_group(self.pid, signal.SIGCONT)

    def look_for_stop(self) -> None:
        """Lend the terminal to the process if it was stopped because it wants it."""
        if self._terminal is None or self.is_gone:
            return
        # Without WEXITED: an exit is for `_ended` to collect. Until it has, the system answers that
        # there is no child, since a process that has ended cannot stop any more.
        try:
            found = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:
            return
        if found is not None:
            self._terminal.stopped(self.pid, found.si_status)

    def _watch(self) -> None:
        # By pidfd, not by SIGCHLD: a handler of the program stays in place, and no exit is missed.
        if hasattr(os, "pidfd_open"):
            handle = os.pidfd_open(self.pid)
            self._loop.add_reader(handle, self._ended, handle)
        else:
            # A daemon: it must not keep the supervisor alive after an error.
            threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        """Wait in a thread, on a system without pidfds."""
        # WNOWAIT: it stays a zombie, so that its group can be signalled before it is reaped.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed, so there is no receiver
            self._loop.call_soon_threadsafe(self._ended, None)

    def _ended(self, handle: int | None) -> None:
        if handle is not None:
            self._loop.remove_reader(handle)
            os.close(handle)
        # Before the process is reaped, so that its pid cannot belong to another group by now.
        _signal_group(self.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        status = self._popen.returncode
        had_terminal = self._terminal is not None and self._terminal.is_lent
        if self._terminal is not None:
            self._terminal.take_back(self.pid, reset=status != 0)
        if self._output is not None:
            self._output.drain()
        resources = {
            "user_seconds": round(usage.ru_utime, 3),
            "system_seconds": round(usage.ru_stime, 3),
            "max_rss_bytes": usage.ru_maxrss * 1024,
        }
        output_closed = self._prints_to is not None and _has_no_reader(self._prints_to)
        self._gone(Ending(status, resources, had_terminal, output_closed))


def start(
    command: Sequence[str],
    directory: Path | None,
    variables: Mapping[str, str],
    gone: Gone,
    show: Show | None = None,
    output: int | None = None,
    stdin: int | None = None,
    terminal: Terminal | None = None,
) -> Process:
    """Start a process and watch it; raises ``OSError`` when the system refuses.

    Without ``show``, it prints where its supervisor prints, or to the handle ``output``. It reads
    from ``stdin``, or from the ``terminal`` that it may borrow.
    """
    if terminal is not None:
        stdin = terminal.descriptor
    popen = subprocess.Popen(
        command,
        cwd=directory,
        env=variables,
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=subprocess.PIPE if show is not None else output,
        stderr=subprocess.STDOUT if show is not None else None,
        # Its own group, so that it can be ended with everything it started, and Ctrl-C reaches only
        # the supervisor, which pauses the team. A group of a new session cannot use the terminal.
        start_new_session=terminal is None,
        process_group=0 if terminal is not None else None,
    )
    try:
        prints_to = (STDOUT if output is None else output) if show is None else None
        return Process(popen, gone, show, terminal, prints_to)
    except BaseException:
        # Its exit would go unnoticed.
        _signal_group(popen.pid, signal.SIGKILL)
        popen.wait()
        raise


def _has_no_reader(descriptor: int) -> bool:
    """Whether what is printed to a pipe, socket or terminal goes nowhere: its reader is gone."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(mask & (select.POLLERR | select.POLLHUP) for _, mask in poll.poll(0))


def _signal_group(pid: int, number: int) -> None:
    # The group may have ended meanwhile, or a process in it may have changed its user.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


class _Lines:
    """Passes on the output of a process in whole lines, and that of processes it left running.

    Those are read too: a sink has the pipe open as well, so they would block when it is full.
    """

    def __init__(self, popen: subprocess.Popen[bytes], show: Show) -> None:
        assert popen.stdout is not None  # noqa: S101 -- a pipe was asked for
        self._pipe = popen.stdout
        self._show = show
        self._rest = b""
        self._is_open = True
        # The event loop reads it, and must never wait for one agent.
        os.set_blocking(self._pipe.fileno(), False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pipe.fileno(), self._read)

    def drain(self) -> None:
        """Pass on what is left after the process ended."""
        # Bounded: a process that it left running may print without end.
        for _ in range(_MAX_PIPE_CHUNKS):
            if not self._is_open or not self._read():
                break
        self._show_rest()

    def _read(self) -> bool:
        """Pass on the available output; False if there is nothing more for now."""
        try:
            data = os.read(self._pipe.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._end()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._show(line)
        # A program that prints no line ends must not fill the memory of the supervisor.
        if len(self._rest) > _CHUNK_BYTES:
            self._show(self._rest)
            self._rest = b""
        return True

    def _end(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()
        self._show_rest()

    def _show_rest(self) -> None:
        if self._rest:
            self._show(self._rest)
            self._rest = b""
