"""The sink: lets agents print on after their supervisor was killed.

They print into pipes that the supervisor reads. Were they closed with it, the next word would end
an agent that could have gone on to a safe point. So a small process beside has the pipes open as
well, and reads them once the supervisor is gone; it ends with the last agent.
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
        """Start it; raises ``OSError`` if that fails."""
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
        with suppress(OSError):  # it is gone or stands still; it is up to the supervisor then
            socket.send_fds(self._channel, [b"+"], [handle])

    def close(self) -> None:
        """Let the sink go; it ends when the last writer does, such as a daemon of an agent."""
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_START_SECONDS)
