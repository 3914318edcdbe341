"""A model on loopback that answers from scripts, so that real agents run without a network.

It speaks the interfaces of Anthropic, OpenAI and Gemini, streamed or not. A script is a list of
turns; a turn is a list of ``text(...)`` and ``tool(...)``. It has a name, and the newest message of
the user that has ``@@NAME@@`` in it chooses it. Which turn is due is counted from the conversation:
the answers after that message. So the server keeps no state, and a conversation that was resumed,
forked or cut goes on exactly where it is.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.agents.model_apis import AGENT, APIS, COUNTS, USER, Api, Block, Json, Said

T = TypeVar("T")

Turn = Sequence[Block]
Script = Sequence[Turn]

_MARK = re.compile(r"@@([\w-]+)@@")


def text(said: str) -> Block:
    """Return a part of an answer that says something."""
    return {"type": "text", "text": said}


def tool(name: str, **given: Any) -> Block:
    """Return a part of an answer that calls a tool; several in a turn are parallel calls."""
    return {"type": "tool_use", "name": name, "input": given}


def refusal(said: str) -> Block:
    """Return the only part of an answer that is an error, which ends the agent's turn."""
    return {"type": "error", "error": {"type": "invalid_request_error", "message": said}}


class ModelServer:
    """Serves scripts; use it as a context manager."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.requests: list[Json] = []
        """Every request for an answer that offered tools, as it came."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def prompt(self, name: str, *turns: Turn, say: str = "do it") -> str:
        """Add a script, and return a prompt that chooses it."""
        self.scripts[name] = turns
        return f"{say} @@{name}@@"

    def last_request(self) -> str:
        """Return the last request that offered tools, as text."""
        return json.dumps(self.requests[-1])

    def seen(self) -> list[str]:
        """Return which prompts ("say NAME @@") the model saw in the last request."""
        return re.findall(r"say (\w+) @@", self.last_request())

    def answer(self, request: Json, api: Api) -> list[Block]:
        """Return the content of the answer to a request."""
        if not request.get("tools"):  # a title, a summary
            return [text("ok")]
        self.requests.append(request)
        name, done = self._due(api.conversation(request))
        script = self.scripts.get(name, ())
        if done >= len(script):
            return [text("ok")]
        return [
            {**block, "id": f"toolu_{name}_{done}_{number}"}
            if block["type"] == "tool_use"
            else dict(block)
            for number, block in enumerate(script[done])
        ]

    def chosen(self, said: str) -> str | None:
        """Return the name of the script that a message of the user chooses."""
        marks = _MARK.findall(said)
        return marks[-1] if marks else None

    def _due(self, conversation: Sequence[Said]) -> tuple[str, int]:
        """Return the script that the newest message with one chooses, and the turn of it."""
        done = 0
        for who, said in reversed(conversation):
            if who == USER and (name := self.chosen(said)) is not None:
                return name, done
            done += who == AGENT
        return "", 0

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", 0))
                request = json.loads(self.rfile.read(length) or b"{}")
                path = self.path.partition("?")[0]
                counted, api = _by_end(path, COUNTS), _by_end(path, APIS)
                if counted is not None:
                    self._send("application/json", json.dumps(counted).encode())
                elif api is None:
                    self._send("application/json", b"{}", 404)
                else:
                    is_streamed = request.get("stream") or path.endswith(":streamGenerateContent")
                    self._answer(api, request, server.answer(request, api), stream=is_streamed)

            def _answer(
                self, api: Api, request: Json, content: list[Block], *, stream: bool
            ) -> None:
                if content[0]["type"] == "error":
                    self._send("application/json", json.dumps(content[0]).encode(), 400)
                    return
                answer = api.answer(request, content)
                if stream:
                    self._send("text/event-stream", b"".join(api.events(answer)))
                else:
                    self._send("application/json", json.dumps(answer).encode())

            def do_GET(self) -> None:
                self._send("application/json", b"{}", 404)

            def do_HEAD(self) -> None:
                self._send("application/json", b"")

            def _send(self, kind: str, data: bytes, status: int = 200) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing."""

        return Handler


def _by_end(path: str, ends: Mapping[str, T]) -> T | None:
    """Return what stands for the end of a path."""
    return next((found for end, found in ends.items() if path.endswith(end)), None)
