"""Child processes that stop at named places and go on when told, so that a race has one outcome."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Collection

from mulligan.failpoints import Failpoint, FailpointHook

END = "end"
FAILED = "failed: "
MAX_REPORT = 4000
"""Bytes of a report; longer ones are cut."""

Stop = Callable[[str], None]
"""Called in the child with the name of a place: reports it, and waits until told to go on."""


class SteppedProcess:
    """A child process; ``act`` runs in it, and calls the function that it is given to stop."""

    def __init__(self, act: Callable[[Stop], None]) -> None:
        self._here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._is_stopped = False
        self._ended: str | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._here.close()
            _run(act, there)
        there.close()

    def until(self, *places: str) -> str:
        """Let it run to the next of these places, or to its end; return where it is."""
        while self._ended is None:
            if self._is_stopped:
                self._here.send(b"\0")
            place = self._here.recv(MAX_REPORT).decode()
            self._is_stopped = bool(place) and place != END and not place.startswith(FAILED)
            if not self._is_stopped:
                self._ended = place or FAILED + "it was killed"
            elif place in places:
                return place
        return self._ended

    def kill(self) -> None:
        """End it with SIGKILL, wherever it is. Idempotent."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._here.close()
        self.pid = 0


def stop_at(points: Collection[Failpoint], stop: Stop) -> FailpointHook:
    """Return a hook that stops at failpoints, at each pass."""

    def hook(point: Failpoint) -> None:
        if point in points:
            stop(point)

    return hook


def _run(act: Callable[[Stop], None], parent: socket.socket) -> None:
    """Run the child, and never return."""

    def stop(place: str) -> None:
        parent.send(place.encode())
        if not parent.recv(1):
            os._exit(4)  # the parent is gone

    try:
        act(stop)
        parent.send(END.encode())
    except BaseException as error:
        # The parent reports it.
        parent.send(f"{FAILED}{error!r}".encode()[:MAX_REPORT])
    finally:
        os._exit(0)
