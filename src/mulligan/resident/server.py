"""The helper itself: it answers one client after the other, until it is not needed any more."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from mulligan.clock import Clock
from mulligan.coding.agent_process import agent_above
from mulligan.coding.claude import PROCESS
from mulligan.coding.hook_input import CLAUDE
from mulligan.errors import InvalidHook
from mulligan.resident import messages
from mulligan.resident.messages import HookRequest, decode_request
from mulligan.resident.place import LOCK, SOCKET, check_directory

IDLE_SECONDS = 600.0
"""After how long without an event the helper ends."""

LOOK_SECONDS = 30.0
"""How often it looks whether it is idle, or was replaced."""

CLIENT_SECONDS = 5.0
"""How long a client may take to send its request, or to read the reply."""

ANSWER_SECONDS = 20.0
"""How long a client waits for its reply; the same in ``client.py`` and ``client.c``."""

MAX_RUNNERS = 8
"""For how many different environments of agents stores stay open."""

_PEER = struct.Struct("3i")
"""What the system knows of the other end: process, user, group."""
_BACKLOG = 64


class Runner(Protocol):
    """Handles the hooks of agents with one environment; see ``coding.hooks.HookRunner``."""

    def handle(self, data: bytes, agent: str, id: str | None = None) -> bytes:
        """Record an event, and return the reply; raises nothing."""

    def close(self) -> None:
        """Close what is open."""


class Settings(msgspec.Struct, frozen=True):
    """What a helper works with; ``changed`` says whether the program was replaced on disk."""

    directory: Path
    version: str
    make_runner: Callable[[HookRequest], Runner]
    clock: Clock
    changed: Callable[[], bool] = lambda: False
    idle: float = IDLE_SECONDS
    note: Callable[[str], None] = lambda said: None


class Helper:
    """Serves hooks over a unix socket. At most one serves in a directory.

    It can be killed at any moment: what was acknowledged is durable, the lock is released by the
    system, and a client without a reply handles its event itself.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runners: OrderedDict[tuple[tuple[str, str], ...], Runner] = OrderedDict()
        self._lock: int | None = None
        self._listener: socket.socket | None = None
        self._identity: tuple[int, int] | None = None
        self._ended = False
        self._last = settings.clock.monotonic()

    def open(self) -> bool:
        """Take the lock and listen; return False if another helper serves here."""
        directory = self._settings.directory
        check_directory(directory)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._lock = os.open(directory / LOCK, flags, 0o600)
        try:
            # Held until the end, and released by the system if the helper is killed. A helper that
            # comes second has nothing to wait for.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            return False
        # A relative path: an absolute one may be too long for the address of a socket.
        os.chdir(directory)
        # Under the lock, so the socket of a helper that serves is never removed.
        Path(SOCKET).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Set before the socket exists: ``chmod`` afterwards would leave a moment in which other
        # users could connect.
        before = os.umask(0o177)
        try:
            listener.bind(SOCKET)
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
        found = os.stat(SOCKET)
        self._identity = found.st_dev, found.st_ino
        self._listener = listener
        return True

    def serve(self) -> None:
        """Answer clients until the helper is idle, replaced, or of another version."""
        while not self._ended and not self.is_unneeded():
            self.serve_one(LOOK_SECONDS)

    def serve_one(self, seconds: float) -> bool:
        """Answer the next client, if one comes within this time; return whether one came."""
        if self._listener is None:
            return False
        self._listener.settimeout(seconds)
        try:
            client, _ = self._listener.accept()
        except TimeoutError:
            return False
        with client:
            # One client is served at a time; one that sends nothing must not stop all hooks.
            client.settimeout(CLIENT_SECONDS)
            try:
                self._answer(client)
            except OSError:
                # The client died, or took too long. It does without this helper.
                return True
            finally:
                self._last = self._settings.clock.monotonic()
        return True

    def is_unneeded(self) -> bool:
        """Whether there was no event for long, or the socket is not this helper's any more."""
        idle = self._settings.clock.monotonic() - self._last
        return idle >= self._settings.idle or not self._is_in_place()

    @property
    def ended(self) -> bool:
        """Whether a client made the helper end."""
        return self._ended

    def close(self) -> None:
        """Stop listening and close all stores. Idempotent."""
        if self._listener is not None:
            # The name first: a client that comes now handles its event itself.
            if self._is_in_place():
                Path(SOCKET).unlink(missing_ok=True)
            self._listener.close()
            self._listener = None
        while self._runners:
            self._runners.popitem()[1].close()
        # The lock last: the next helper opens stores that this one has closed.
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _is_in_place(self) -> bool:
        try:
            found = os.stat(SOCKET)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def _answer(self, client: socket.socket) -> None:
        if peer(client)[1] != os.geteuid():
            return  # the socket is 0600, but its directory may have been opened to others
        data = self._received(client)
        try:
            request = decode_request(data)
        except InvalidHook:
            client.sendall(messages.FAILED)
            return
        if request.version != self._settings.version or self._settings.changed():
            # Not handled: the client does so itself, and starts a helper of its own version.
            self._ended = True
            client.sendall(messages.OTHER_VERSION)
            return
        if request.agent != CLAUDE and (process := agent_above(peer(client)[0])) is not None:
            # The client waits, so it still has its parent: the agent.
            request.variables[PROCESS] = str(process)
        started = self._settings.clock.monotonic()
        reply = self._runner(request).handle(request.data, request.agent, request.id)
        took = self._settings.clock.monotonic() - started
        if took >= ANSWER_SECONDS:
            said = f"An event of {request.agent} took {took:.0f} s; its hook did not wait for it."
            self._settings.note(said)
        client.sendall(messages.ANSWERED + reply)

    def _received(self, client: socket.socket) -> bytes:
        parts, size = [], 0
        while data := client.recv(1 << 16):
            parts.append(data)
            size += len(data)
            if size > messages.MAX_BYTES:
                return b""
        return b"".join(parts)

    def _runner(self, request: HookRequest) -> Runner:
        key = (("", request.options), *sorted(request.variables.items()))
        known = self._runners.get(key)
        if known is None:
            while len(self._runners) >= MAX_RUNNERS:
                self._runners.popitem(last=False)[1].close()
            known = self._runners[key] = self._settings.make_runner(request)
        self._runners.move_to_end(key)
        return known


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end of a unix socket."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    process, user, _ = _PEER.unpack(found)
    return process, user
