"""The processes of agents: each a group of its own, watched by its pidfd, ended as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mulligan.session.write.leases import identity

Gone = Callable[["Ending"], None]
"""Is told how a process ended, once."""

Show = Callable[[bytes], None]
"""Is handed what a process printed, line by line."""

_CHUNK_BYTES = 65536

_MAX_PIPE_CHUNKS = 16
"""How many chunks a pipe can hold at most, unless a privileged process made it larger."""


class Ending(msgspec.Struct, frozen=True):
    """How a process ended, and what it had used."""

    status: int
    resources: dict[str, Any]


class Process:
    """One running process of an agent, with everything that it started."""

    def __init__(self, popen: subprocess.Popen[bytes], gone: Gone, show: Show | None) -> None:
        self._popen = popen
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._output = _Lines(popen, show) if show is not None else None
        self.pid = popen.pid
        self.identity = identity(popen.pid)
        self._watch()

    @property
    def output(self) -> int | None:
        """The handle from which what it prints is read, if it is."""
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
        if number != signal.SIGKILL:
            _signal_group(self.pid, signal.SIGCONT)

    def _watch(self) -> None:
        if hasattr(os, "pidfd_open"):
            handle = os.pidfd_open(self.pid)
            self._loop.add_reader(handle, self._ended, handle)
        else:
            threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        """Wait in a thread, where the system has no pidfd."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed, there is nothing to report to
            self._loop.call_soon_threadsafe(self._ended, None)

    def _ended(self, handle: int | None) -> None:
        if handle is not None:
            self._loop.remove_reader(handle)
            os.close(handle)
        # Before the process is waited for, so that its number cannot be another group's by now.
        _signal_group(self.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        if self._output is not None:
            self._output.drain()
        resources = {
            "user_seconds": round(usage.ru_utime, 3),
            "system_seconds": round(usage.ru_stime, 3),
            "max_rss_bytes": usage.ru_maxrss * 1024,
        }
        self._gone(Ending(self._popen.returncode, resources))


def start(
    command: Sequence[str],
    directory: Path | None,
    variables: Mapping[str, str],
    gone: Gone,
    show: Show | None = None,
    output: int | None = None,
) -> Process:
    """Start a process and watch it; raises ``OSError`` when the system refuses.

    Without ``show`` it prints where its supervisor does, or to the handle ``output``.
    """
    popen = subprocess.Popen(
        command,
        cwd=directory,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if show is not None else output,
        stderr=subprocess.STDOUT if show is not None else None,
        start_new_session=True,
    )
    try:
        return Process(popen, gone, show)
    except BaseException:
        # Its exit would go unnoticed.
        _signal_group(popen.pid, signal.SIGKILL)
        popen.wait()
        raise


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


class _Lines:
    """Hands on what a process prints, in whole lines, and what it left running prints after it.

    That is read on, for it would wait for a reader when the pipe is full: a sink has it open, too.
    """

    def __init__(self, popen: subprocess.Popen[bytes], show: Show) -> None:
        assert popen.stdout is not None  # noqa: S101 -- a pipe was asked for
        self._pipe = popen.stdout
        self._show = show
        self._rest = b""
        self._is_open = True
        os.set_blocking(self._pipe.fileno(), False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pipe.fileno(), self._read)

    def drain(self) -> None:
        """Hand on what is left, for the process is gone."""
        for _ in range(
            _MAX_PIPE_CHUNKS
        ):  # not as long as there is more: another may print without end
            if not self._is_open or not self._read():
                break
        self._show_rest()

    def _read(self) -> bool:
        """Hand on what there is; False when there is nothing more for now."""
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
