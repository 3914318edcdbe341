"""The sink: lets agents continue to print after their supervisor was killed.

They print into pipes that the supervisor reads. If these were closed with it, the next output would
kill an agent (SIGPIPE) that could have continued to a safe point. So a small process holds the
pipes open as well, and reads them once the supervisor is gone; it ends with the last agent.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_PROGRAM = Path(__file__).with_name("sink_main.py")
_START_SECONDS = 1.0


class Sink:
    """The process that holds the reading ends of the agents' output."""

    def __init__(self) -> None:
        """Start the process; raises ``OSError`` if that fails."""
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)  # one that was stopped must not stop its supervisor
        with theirs:
            self._process = subprocess.Popen(
                (sys.executable, "-I", "-S", os.fspath(_PROGRAM)),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,  # so that it outlives a terminal
            )

    def hold(self, handle: int) -> None:
        """Keep a read end open for as long as a process can write to it."""
        with suppress(OSError):  # it is gone or stopped; then only the supervisor holds the pipe
            socket.send_fds(self._channel, [b"+"], [handle])

    def close(self) -> None:
        """Release the sink; it ends with the last writer, such as a daemon of an agent."""
        # The sink ends by itself when this closes; it is not killed, because agents may still
        # print.
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_START_SECONDS)
