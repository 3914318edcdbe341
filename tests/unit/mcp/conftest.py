"""A server over pipes, and a project for it to work for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

import mulligan
from mulligan.mcp.hooks import Hook, HookReply
from mulligan.mcp.messages import Lines, Output
from mulligan.mcp.project import Settings
from mulligan.mcp.server import Server

PATIENCE = 60


class Handler:
    """A hook that is a function."""

    def __init__(self, function: Callable[[dict[str, Any]], HookReply]) -> None:
        self._function = function
        self.said: list[str] = []
        """What the server told it besides events, in order."""

    def handle(self, arguments: dict[str, Any]) -> HookReply:
        """Call the function."""
        return self._function(arguments)

    def serve(self) -> None:
        """Remember it."""
        self.said.append("serve")

    def retire(self) -> None:
        """Remember it."""
        self.said.append("retire")

    def close(self) -> None:
        """Remember it."""
        self.said.append("close")


class Connection:
    """The client's end of a server that runs in a thread."""

    def __init__(self, settings: Settings, hook: Hook | None = None, limit: int = 1 << 20) -> None:
        theirs, self._to = os.pipe()
        self._from, ours = os.pipe()
        self.server = Server(settings, Output(ours), "1.2.3", hook)
        self._descriptors = [theirs, ours]
        self._thread = Thread(target=self.server.run, args=(Lines(theirs, limit),), daemon=True)
        self._thread.start()
        self._replies = os.fdopen(self._from, "rb")
        self._number = 0

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._to, view) :]

    def send(self, message: Any) -> None:
        """Write one message."""
        self.write(msgspec.json.encode(message) + b"\n")

    def read(self) -> Any:
        """Return the next message of the server."""
        return msgspec.json.decode(self._replies.readline())

    def ask(self, method: str, **params: Any) -> Any:
        """Return the answer to a request."""
        self._number += 1
        about = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self.send(about)
        reply = self.read()
        assert reply["id"] == self._number
        return reply

    def call(self, tool: str, **given: Any) -> Any:
        """Return the structured result of a tool; its text if it failed."""
        result = self.ask("tools/call", name=tool, arguments=given)["result"]
        if result["isError"]:
            return result["content"][0]["text"]
        return result["structuredContent"]

    def end(self) -> list[bytes]:
        """Close the input, wait for the server, and return what it still wrote."""
        if self._to >= 0:
            os.close(self._to)
            self._to = -1
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []
        return [] if self._replies.closed else self._replies.readlines()

    def stop_reading(self) -> None:
        """Close the end that answers come from."""
        self._replies.close()

    @property
    def is_open(self) -> bool:
        """Whether :meth:`end` has not been called."""
        return bool(self._descriptors)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a file, and a store inside it."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "a.txt").write_text("one\n")
    with mulligan.open(directory) as store:
        store.session("main")
    return directory


@pytest.fixture
def connect(project: Path, tmp_path: Path) -> Iterator[Callable[..., Connection]]:
    """Start servers for the project; they are ended at last."""
    made: list[Connection] = []

    def start(**options: Any) -> Connection:
        settings = Settings(project, tmp_path / "state")
        made.append(Connection(settings, **options))
        return made[-1]

    yield start
    for one in made:
        if one.is_open:
            one.end()


@pytest.fixture
def client(connect: Callable[..., Connection]) -> Connection:
    """A connection to a server of the project."""
    return connect()
