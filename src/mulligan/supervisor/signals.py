"""Signals while a team runs: taken over from the program, and returned to it afterwards.

Python delivers signals to the main thread only; in other threads nothing here does anything.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def requests_ignored() -> Iterator[None]:
    """Ignore SIGUSR1 in a block, except where ``SignalHandlers`` listens for it.

    It is sent to the holder of the supervisor's lease, and by default would end the process. A
    requester that sees it ignored waits.
    """
    if not _is_main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        yield
    finally:
        # After the lease was released: from then on no request is sent to this process.
        _give_back(signal.SIGUSR1, before)


class SignalHandlers:
    """Callbacks of an event loop for signals, in place of the program's handlers.

    Not ``loop.add_signal_handler``: when it removes a handler, the default action holds for a
    moment, and a signal that arrives then ends the process.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._before: dict[int, Any] = {}
        self._wakeup = -1
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)

    def add(self, number: int, callback: Callable[[], object]) -> None:
        """Call back in the loop when a signal arrives."""
        if not _is_main_thread():
            return
        if not self._before:
            self._loop.add_reader(self._read, self._arrived)
            # Python writes the numbers of signals to it, also of those that another thread gets:
            # without it, the loop would sleep on until its next timeout.
            self._wakeup = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._callbacks[number] = callback
        self._before[number] = signal.signal(number, _ignore)

    def give_back(self) -> None:
        """Put the handlers of the program back."""
        for number, before in self._before.items():
            _give_back(number, before)
        if self._before:
            signal.set_wakeup_fd(self._wakeup)
            self._loop.remove_reader(self._read)
        self._before.clear()
        self._read.close()
        self._write.close()

    def _arrived(self) -> None:
        for number in self._read.recv(4096):
            if number in self._callbacks:
                self._callbacks[number]()


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal's number is in the socket already."""


def _give_back(number: int, before: Any) -> None:
    if before is not None:  # None: not installed from Python, which cannot put it back
        signal.signal(number, before)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
