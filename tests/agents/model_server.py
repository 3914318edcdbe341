"""A model on loopback that answers from scripts, so that real agents run without a network.

A script is a list of turns; a turn is a list of ``text(...)`` and ``tool(...)``. It has a name, and
the newest message of the user that has ``@@NAME@@`` in it chooses it. Which turn is due is counted
from the conversation: the answers after that message. So the server keeps no state, and a
conversation that was resumed, forked or cut goes on exactly where it is.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Block = dict[str, Any]
Script = Sequence[Sequence[Block]]

_MARK = re.compile(r"@@([\w-]+)@@")


def text(said: str) -> Block:
    """Return a part of an answer that says something."""
    return {"type": "text", "text": said}


def tool(name: str, **given: Any) -> Block:
    """Return a part of an answer that calls a tool; several in a turn are parallel calls."""
    return {"type": "tool_use", "name": name, "input": given}


class ModelServer:
    """Serves scripts; use it as a context manager."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.requests: list[dict[str, Any]] = []
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

    def prompt(self, name: str, *turns: Sequence[Block], say: str = "do it") -> str:
        """Add a script, and return a prompt that chooses it."""
        self.scripts[name] = turns
        return f"{say} @@{name}@@"

    def answer(self, request: dict[str, Any]) -> list[Block]:
        """Return the content of the answer to a request in the protocol of Anthropic."""
        messages = request.get("messages", [])
        name, at = _chosen(messages)
        done = sum(message["role"] == "assistant" for message in messages[at:])
        script = self.scripts.get(name, ())
        if not request.get("tools") or done >= len(script):
            return [text("ok")]
        self.requests.append(request)
        return [
            {**block, "id": f"toolu_{name}_{done}_{number}"}
            if block["type"] == "tool_use"
            else dict(block)
            for number, block in enumerate(script[done])
        ]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", 0))
                request = json.loads(self.rfile.read(length) or b"{}")
                if self.path.partition("?")[0].endswith("/count_tokens"):
                    self._send("application/json", json.dumps({"input_tokens": 10}).encode())
                elif self.path.partition("?")[0] != "/v1/messages":
                    self._send("application/json", b"{}", 404)
                elif request.get("stream"):
                    events = _events(_message(request, server.answer(request)))
                    self._send("text/event-stream", b"".join(events))
                else:
                    message = _message(request, server.answer(request))
                    self._send("application/json", json.dumps(message).encode())

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


def _chosen(messages: Sequence[dict[str, Any]]) -> tuple[str, int]:
    """Return the script that the newest marked message of the user names, and its place."""
    for at in reversed(range(len(messages))):
        if messages[at]["role"] == "user" and (found := _MARK.findall(_said(messages[at]))):
            return found[-1], at
    return "", 0


def _said(message: dict[str, Any]) -> str:
    """Return what a message says itself; results of tools are not part of it."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part.get("type") == "text")


def _message(request: dict[str, Any], content: list[Block]) -> dict[str, Any]:
    calls = any(block["type"] == "tool_use" for block in content)
    return {
        "id": f"msg_{len(request.get('messages', []))}",
        "type": "message",
        "role": "assistant",
        "model": request.get("model", "fake"),
        "content": content,
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 10},
    }


def _events(message: dict[str, Any]) -> Iterator[bytes]:
    """Yield the events of a streamed answer."""
    start = {**message, "content": [], "stop_reason": None}
    yield _event("message_start", message=start)
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            given = json.dumps(block["input"])
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": given}
        yield _event("content_block_start", index=index, content_block=empty)
        yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", delta=ended, usage={"output_tokens": 10})
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
