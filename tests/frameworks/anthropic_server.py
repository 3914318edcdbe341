"""A model server for tests: speaks the Messages protocol on loopback and answers from a script.

The script is a list of turns, each a list of content blocks; all but the last call tools. Which is
due is counted from the conversation in the request, so that the server has no state: a program that
was killed and started again gets the turn that it did not get to.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Turn = list[dict[str, Any]]


def text(said: str) -> dict[str, Any]:
    """Return a block of text."""
    return {"type": "text", "text": said}


def tool(name: str, **input: Any) -> dict[str, Any]:
    """Return a call of a tool."""
    return {"type": "tool_use", "name": name, "input": input}


@contextmanager
def serving(turns: list[Turn]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Run the server; yield its address and the requests that it got with tools."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if not self.path.startswith("/v1/messages") or "count_tokens" in self.path:
                self._send("application/json", json.dumps({"input_tokens": 1}).encode())
                return
            answer = [text("ok")]
            if body.get("tools"):
                requests.append(body)
                number = sum(map(_calls_tools, body["messages"]))
                answer = turns[number] if number < len(turns) else [text("done")]
            if body.get("stream"):
                self._send("text/event-stream", b"".join(_events(answer)))
            else:
                message = {**_message(answer), "content": answer, "stop_reason": _reason(answer)}
                self._send("application/json", json.dumps(message).encode())

        def do_GET(self) -> None:
            self._send("application/json", b"{}")

        do_HEAD = do_GET

        def _send(self, kind: str, data: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


def _calls_tools(message: dict[str, Any]) -> bool:
    """Whether a message is one of the script's turns: a resumed program adds others of its own."""
    content = message["content"] if isinstance(message["content"], list) else []
    return any(block.get("type") == "tool_use" for block in content)


def _reason(answer: Turn) -> str:
    return "tool_use" if any(block["type"] == "tool_use" for block in answer) else "end_turn"


def _message(answer: Turn) -> dict[str, Any]:
    number = abs(hash(json.dumps(answer))) % 10**9
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _events(answer: Turn) -> Iterator[bytes]:
    yield _event("message_start", message=_message(answer))
    for index, block in enumerate(answer):
        if block["type"] == "text":
            start: dict[str, Any] = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            id = f"toolu_{abs(hash(json.dumps(block))) % 10**9}_{index}"
            start = {"type": "tool_use", "id": id, "name": block["name"], "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield _event("content_block_start", index=index, content_block=start)
        yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    ended = {"stop_reason": _reason(answer), "stop_sequence": None}
    yield _event("message_delta", delta=ended, usage={"output_tokens": 1})
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
