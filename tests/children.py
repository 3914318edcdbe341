"""Pieces of a test in processes of their own, which may be killed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

Tell = Callable[[str], None]


class Killed:
    """How a child ended, and the lines that it had told by then."""

    def __init__(self, status: int, told: list[str]) -> None:
        self.by_sigkill = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        self.finished = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        self.told = told


def run_child(body: Callable[[Tell], None], seconds: float | None = None) -> Killed:
    """Run a function in a process of its own, and kill it after some time if one is given.

    The time begins with the first line that the child tells.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            body(lambda line: os.write(writing, line.encode() + b"\n") and None)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    told = _listen(reading, pid, seconds)
    _, status = os.waitpid(pid, 0)
    return Killed(status, told)


def _listen(reading: int, pid: int, seconds: float | None) -> list[str]:
    heard = b""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        heard += pipe.read(1 << 16) or b""
        if seconds is not None:
            poll = select.poll()
            poll.register(pipe, select.POLLHUP)
            poll.poll(seconds * 1000)  # ends early only if the child does
            os.kill(pid, signal.SIGKILL)
        while data := pipe.read(1 << 16):
            heard += data
    return heard.decode().splitlines()


def processes_in(directory: Path) -> list[int]:
    """Return the processes that work in a directory or below it, but for this one."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cwd").readlink().is_relative_to(directory):
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def end_processes_in(directory: Path) -> None:
    """Kill the processes that work in a directory or below it."""
    # Again until there are none: a supervisor may start an agent before its turn comes.
    while found := processes_in(directory):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
