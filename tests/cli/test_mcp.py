"""`mulligan mcp` as a process: standard output is the protocol's alone."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mulligan

PATIENCE = 60
Start = Callable[..., subprocess.Popen[str]]


def ask(server: subprocess.Popen[str], id: int, method: str, **params: Any) -> Any:
    """Send a request, and return the next line of the server."""
    assert server.stdin is not None
    assert server.stdout is not None
    message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    server.stdin.write(json.dumps(message) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


@pytest.fixture
def server(store: Any, process: Start) -> subprocess.Popen[str]:
    return process("mcp", stdin=subprocess.PIPE)


def test_a_session_from_the_handshake_to_the_end(
    server: subprocess.Popen[str], place: Path
) -> None:
    agreed = ask(server, 1, "initialize", protocolVersion="2025-06-18", capabilities={})
    assert agreed["result"]["protocolVersion"] == "2025-06-18"
    (place / "a.txt").write_text("one\n")
    taken = ask(server, 2, "tools/call", name="checkpoint", arguments={"label": "start"})
    assert taken["result"]["structuredContent"]["files"] == 1
    out, err = server.communicate(timeout=PATIENCE)
    assert (server.returncode, out, err) == (0, "", "")
    with mulligan.open(place) as opened:
        assert opened.session("main").files.read("start", "a.txt") == b"one\n"


def test_what_else_prints_goes_to_standard_error(place: Path, store: Any) -> None:
    noisy = """
import sys
from mulligan.mcp import tools
was = tools.Tools.tasks
def tasks(self, given):
    import os
    print("from python")
    sys.stdout.flush()
    os.system("echo from a child")
    return was(self, given)
tools.Tools.tasks = tasks
from mulligan.cli.main import main
main()
"""
    started = subprocess.Popen(
        [sys.executable, "-c", noisy, "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
    )
    assert ask(started, 1, "tools/call", name="tasks")["id"] == 1
    out, err = started.communicate(timeout=PATIENCE)
    assert out == ""
    assert "from python" in err
    assert "from a child" in err


def test_a_person_who_starts_it_learns_what_it_waits_for(store: Any, process: Start) -> None:
    ours, theirs = pty.openpty()
    server = process("mcp", stdin=theirs)
    assert server.stderr is not None
    assert "waits for an agent's messages" in server.stderr.readline()
    os.write(ours, b"\x04")  # Ctrl-D
    assert server.wait(PATIENCE) == 0
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_server(server: subprocess.Popen[str], number: int) -> None:
    assert ask(server, 1, "ping")["result"] == {}
    server.send_signal(number)
    assert server.wait(PATIENCE) == 128 + number


def test_a_server_that_is_killed_leaves_a_store_that_verifies(
    server: subprocess.Popen[str], store: Any
) -> None:
    ask(server, 1, "tools/call", name="checkpoint", arguments={"label": "kept"})
    server.kill()
    server.wait(PATIENCE)
    assert store("verify", "--full").code == 0
    assert store("log", "--json").json["entries"][0]["label"] == "kept"


def test_directory_names_the_project(place: Path, store: Any, process: Start) -> None:
    elsewhere = place.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    server = process("mcp", "--directory", str(place), stdin=subprocess.PIPE)
    status = ask(server, 1, "tools/call", name="status")["result"]["structuredContent"]
    assert os.path.samefile(status["directory"], place)
    server.communicate(timeout=PATIENCE)


def test_the_named_session_is_used(place: Path, store: Any, process: Start) -> None:
    assert store("checkpoint", "-s", "other", "--create").code == 0
    server = process("mcp", "-s", "other", stdin=subprocess.PIPE)
    logged = ask(server, 1, "tools/call", name="log")["result"]["structuredContent"]
    assert logged["session"] == "other"
    server.communicate(timeout=PATIENCE)
