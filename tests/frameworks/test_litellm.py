"""The loop of the page on frameworks with the real litellm, killed while it waits for an answer.

litellm does not fit into the environment of the other frameworks: it needs versions that they
exclude. So ``make test-frameworks`` gives it one of its own, and a variable names its interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.killed import HANG_SECONDS, ROOT
from tests.frameworks.test_plain_loop import LOOP

PYTHON = os.environ.get("MULLIGAN_TEST_LITELLM")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="LITELLM IS MISSING: MULLIGAN_TEST_LITELLM names no interpreter with it"
)


class Model:
    """Answers by the number of results that it sees; waits once, when there are ``wait``."""

    def __init__(self, wait: int) -> None:
        self._wait = wait
        self.asked: list[int] = []
        self.is_waiting = threading.Event()
        self.go = threading.Event()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["tools"][0]["function"]["name"] == "charge"
        results = sum(message["role"] == "tool" for message in body["messages"])
        self.asked.append(results)
        if results == self._wait and not self.go.is_set():
            self.is_waiting.set()
            self.go.wait(HANG_SECONDS)
        call = {
            "id": f"call_{results}",
            "type": "function",
            "function": {"name": "charge", "arguments": json.dumps({"amount": results})},
        }
        said = {"role": "assistant", "content": "done" if results == 2 else None}
        message = said if results == 2 else {**said, "tool_calls": [call]}
        reason = "stop" if results == 2 else "tool_calls"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        named = {"id": "1", "object": "chat.completion", "created": 1, "model": "gpt-5"}
        return {**named, "choices": [choice], "usage": usage}


@contextmanager
def serving(model: Model) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            data = json.dumps(model.answer(body)).encode()
            try:
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except BrokenPipeError:
                return  # the program was killed

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("wait", [0, 1, 2])
def test_it_repeats_nothing_that_was_recorded(tmp_path: Path, wait: int) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    model = Model(wait)
    with serving(model) as address:
        known = {"OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        env = {**os.environ, **known, "OPENAI_API_BASE": address, "PYTHONPATH": str(ROOT / "src")}
        words = [str(PYTHON), "loop.py"]
        killed = subprocess.Popen(words, cwd=tmp_path, env=env)
        until = time.monotonic() + HANG_SECONDS
        while not model.is_waiting.wait(0.1):
            assert killed.poll() is None, "it ended before it asked"
            assert time.monotonic() < until, "it asked nothing"
        killed.kill()
        killed.wait()
        model.go.set()
        again = subprocess.run(
            words, cwd=tmp_path, env=env, check=True, capture_output=True, text=True
        )
    assert again.stdout == "done\n"
    assert model.asked == [n for n in (0, 1, 2) for _ in range(1 + (n == wait))]
    assert (tmp_path / "charges.txt").read_text().split() == ["0", "1"]
