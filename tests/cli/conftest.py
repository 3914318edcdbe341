"""Running commands: in this process where that shows the same, as a process where it matters."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan.cli.main import run
from tests.children import end_processes_in

PATIENCE = 60
"""Seconds to wait for what has to come, on however busy a machine."""


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The result on standard output."""
        return json.loads(self.out)

    @property
    def words(self) -> str:
        """Standard output in one line, wherever its lines were broken."""
        return " ".join(self.out.split())

    @property
    def error(self) -> Any:
        """The failure on standard error."""
        return json.loads(self.err)


Cli = Callable[..., Result]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory to stand in, without settings from outside.

    Whatever still runs in it is ended at last.
    """
    for name in [n for n in os.environ if n.startswith("MULLIGAN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    end_processes_in(tmp_path)


@pytest.fixture
def cli(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command in this process; ``stdin`` is what it can read."""

    def call(*args: str, stdin: str = "") -> Result:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = run(args)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def store(cli: Cli) -> Cli:
    """A store with a session ``main`` around the directory; returns how to run commands."""
    assert cli("init").code == 0
    return cli


@pytest.fixture
def write() -> Callable[[str, object], None]:
    """Write a component that commands do not write, as the supervisor or an older store has it."""

    def set_(path: str, value: object) -> None:
        with mulligan.open(".") as opened:
            opened.session("main").internal.state.set(path, value)

    return set_


@pytest.fixture
def process(place: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a command as a process of its own."""

    def start(*args: str, **settings: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from mulligan.cli.main import main; main()", *args]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
        return subprocess.Popen(command, text=True, cwd=place, **pipes)

    return start


@pytest.fixture
def on_terminal(place: Path) -> Callable[..., tuple[int, str]]:
    """Run a command on a terminal of its own; return its exit code and what it showed.

    ``answer`` is typed once it has asked something, so that Ctrl-C meets the question.
    """

    def call(*args: str, answer: str = "", **environment: str) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-c", "from mulligan.cli.main import main; main()", *args]
        started = subprocess.Popen(
            command,
            cwd=place,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", **environment},
            preexec_fn=_take_terminal,  # so that Ctrl-C reaches it
        )
        os.close(theirs)
        shown = _read_all(ours, answer, started.pid)
        os.close(ours)
        return started.wait(PATIENCE), shown

    return call


def _take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_all(terminal: int, answer: str, pid: int) -> str:
    data = b""
    while select.select([terminal], [], [], PATIENCE)[0]:
        try:
            more = os.read(terminal, 65536)
        except OSError:
            break
        if not more:
            break
        data += more
        if answer and b"? [" in data:
            _wait_until_it_reads(pid)
            os.write(terminal, answer.encode())
            answer = ""
    return data.decode()


def _wait_until_it_reads(pid: int) -> None:
    """Wait until a process that has asked sleeps: a Ctrl-C before that may be lost on it."""
    until = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def path_with_mulligan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH on which ``mulligan`` is this one, installed or not."""
    directory = tmp_path_factory.mktemp("bin")
    script = directory / "mulligan"
    script.write_text(f"#!{sys.executable}\nfrom mulligan.cli.main import main\nmain()\n")
    script.chmod(0o755)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"
