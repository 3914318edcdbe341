"""The server: methods, cancellation, and the loop over standard input."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import msgspec

from mulligan.errors import MulliganError
from mulligan.mcp import resources, toolbox, versions
from mulligan.mcp.hooks import Hook
from mulligan.mcp.instructions import INSTRUCTIONS
from mulligan.mcp.lanes import Lane
from mulligan.mcp.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Id,
    Lines,
    Notification,
    Output,
    Reply,
    Request,
    RpcError,
    TooLong,
    answer,
    failure,
    id_of,
    message_of,
    parse,
)
from mulligan.mcp.project import Project, Settings
from mulligan.mcp.tools import Tools
from mulligan.views.encoding import to_json

HOOK = "hook"
"""The tool that hooks of the agent call; ``tools/list`` does not show it."""

END_SECONDS = 10.0
"""How long the server goes on with requests that it has, once its client is gone."""

Send = Callable[[Reply], None]


class Batch:
    """The answers to messages that came together, sent together."""

    def __init__(self, count: int, send: Callable[[list[Reply]], None]) -> None:
        self._missing = count
        self._send = send
        self._replies: list[Reply] = []
        # Answers come from both lanes: only one of them may be the last.
        self._lock = Lock()

    def done(self, reply: Reply | None) -> None:
        """Take the answer to one of them; None where there is none to give."""
        with self._lock:
            self._missing -= 1
            if reply is not None:
                self._replies.append(reply)
            complete = self._missing == 0
        if complete and self._replies:
            self._send(self._replies)


class Server:
    """Answers requests until its input ends.

    Requests that only concern the connection are answered by the thread that reads. Tools and
    resources share a thread, and hooks have one of their own: a long comparison must not make the
    agent wait for its hook.
    """

    def __init__(
        self, settings: Settings, output: Output, version: str, hook: Hook | None = None
    ) -> None:
        self._tell = settings.tell
        self._output = output
        self._version = version
        self._hook = hook
        self._project = Project(settings)
        self._tools = Tools(self._project)
        self._work = Lane("mcp-tools")
        self._hooks = Lane("mcp-hooks")
        self._waiting: set[Id] = set()
        self._cancelled: set[Id] = set()
        # Cancellations are read in the thread that reads lines, requests run in the lanes.
        self._lock = Lock()

    def run(self, lines: Lines) -> None:
        """Answer the requests of a client until it closes its end."""
        try:
            for line in lines:
                self.receive(line)
        finally:
            # What was asked for is completed: a checkpoint that a client did not wait for is taken.
            if self._hook is not None:
                # At once, not when that is done: an agent that goes on runs commands from now on.
                self._hook.retire()
                # Through the lanes: what was queued before is done first, by the thread that has
                # the stores open.
                self._hooks.add(self._hook.close)
            self._hooks.finish(END_SECONDS)
            self._work.add(self._project.close)
            self._work.finish(END_SECONDS)

    def receive(self, line: bytes | TooLong) -> None:
        """Take one line; whatever is in it, the server goes on."""
        if isinstance(line, TooLong):
            self._send(failure(None, RpcError(INVALID_REQUEST, "The message is too long.")))
            return
        try:
            value = parse(line)
        except RpcError as error:
            self._send(failure(None, error))
            return
        if not isinstance(value, list):
            self._receive(value, self._send_if_any)
        elif not value:
            self._send(failure(None, RpcError(INVALID_REQUEST, "A batch has messages in it.")))
        else:
            batch = Batch(len(value), self._send)
            for message in value:
                self._receive(message, batch.done)

    def _receive(self, value: Any, done: Callable[[Reply | None], Any]) -> None:
        """Answer one message at once, or queue it for a thread."""
        try:
            request = message_of(value)
        except RpcError as error:
            done(failure(id_of(value), error))
            return
        if not isinstance(request, Request):
            if request is not None:
                self._note(request)
            done(None)
            return
        lane = self._lane(request)
        if lane is None:
            done(self._answered(request))
            return
        if lane is self._hooks and self._hook is not None:
            # Not at the handshake: a client that connects need not send its events here. And with
            # every event: another server of the agent may have ended meanwhile.
            self._hook.serve()
        with self._lock:
            # Before it is queued: a cancellation may come while it waits there.
            self._waiting.add(request.id)
        lane.add(lambda: done(self._performed(request)))

    def _note(self, note: Notification) -> None:
        """Take a notification.

        A request that has not started yet can be cancelled. One that runs is completed, since half
        of a checkpoint is of no use; its answer is dropped.
        """
        if note.method != "notifications/cancelled":
            return
        id = note.params.get("requestId")
        with self._lock:
            if isinstance(id, str | int | float) and id in self._waiting:
                self._cancelled.add(id)

    def _lane(self, request: Request) -> Lane | None:
        if request.method == "tools/call":
            is_hook = request.params.get("name") == HOOK and self._hook is not None
            return self._hooks if is_hook else self._work
        return self._work if request.method in ("resources/list", "resources/read") else None

    def _performed(self, request: Request) -> Reply | None:
        """Answer a queued request, unless it was cancelled before or meanwhile."""
        with self._lock:
            # Looked up twice: before it starts, which saves the work, and after it, because a
            # client expects no answer to what it has cancelled.
            is_cancelled = request.id in self._cancelled
        reply = None if is_cancelled else self._answered(request)
        with self._lock:
            is_cancelled = request.id in self._cancelled
            self._waiting.discard(request.id)
            self._cancelled.discard(request.id)
        return None if is_cancelled else reply

    def _answered(self, request: Request) -> Reply:
        try:
            names_version = versions.names_version(request)
            result = self._result(request)
        except RpcError as error:
            return failure(request.id, error)
        except MulliganError as error:
            said = f"{error} {error.hint}".strip()
            return failure(request.id, RpcError(INTERNAL_ERROR, said))
        except Exception as error:  # the server goes on, and the client learns of it
            self._tell(f"{request.method} failed: {type(error).__name__}: {error}")
            said = f"This is a bug in Mulligan ({type(error).__name__}: {error})."
            return failure(request.id, RpcError(INTERNAL_ERROR, said))
        if names_version:
            result = versions.completed(request.method, result, self._version)
        return answer(request.id, result)

    def _result(self, request: Request) -> dict[str, Any]:
        params = request.params
        match request.method:
            case "initialize":
                return versions.initialized(params, self._version, INSTRUCTIONS)
            case "server/discover":
                return versions.discovered(INSTRUCTIONS)
            case "ping":
                return {}
            case "tools/list":
                return {"tools": toolbox.listing()}
            case "tools/call":
                return self._called(params)
            case "resources/list":
                return resources.checkpoint_page(self._project, params.get("cursor"))
            case "resources/templates/list":
                return {"resourceTemplates": resources.TEMPLATES}
            case "resources/read":
                return resources.read_resource(self._project, params.get("uri"))
        raise RpcError(METHOD_NOT_FOUND, f"There is no method {request.method[:100]!r} here.")

    def _called(self, params: dict[str, Any]) -> dict[str, Any]:
        name, given = params.get("name"), params.get("arguments")
        if name == HOOK and self._hook is not None:
            return self._hooked(self._hook, given)
        tool = toolbox.BY_NAME.get(name) if isinstance(name, str) else None
        if tool is None:
            raise RpcError(INVALID_PARAMS, f"There is no tool {str(name)[:100]!r} here.")
        try:
            done = tool.run(self._tools, toolbox.arguments_of(tool, given))
        except MulliganError as error:
            hint = f"\nHint: {error.hint}" if error.hint else ""
            return _text(f"{type(error).__name__}: {error}{hint}", is_error=True)
        except OSError as error:
            return _text(f"The system refused: {error}", is_error=True)
        found = msgspec.to_builtins(done)
        return {**_text(to_json(found, indent=None)), "structuredContent": found}

    def _hooked(self, hook: Hook, given: Any) -> dict[str, Any]:
        reply = hook.handle(given if isinstance(given, dict) else {})
        if reply.session is not None:
            self._project.current = reply.session
        return _text(reply.text)

    def _send_if_any(self, reply: Reply | None) -> None:
        if reply is not None:
            self._send(reply)

    def _send(self, message: Reply | list[Reply]) -> None:
        try:
            self._output.send(message)
        except OSError:
            # The client is gone. Its requests are still completed; then its input ends.
            self._tell("The client does not read answers any more.")


def _text(said: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], "isError": is_error}
