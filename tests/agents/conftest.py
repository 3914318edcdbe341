"""Real coding agents, started by the tests with a home of their own and a model on loopback."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

import mulligan
from mulligan import Session
from mulligan.coding.hooks import session_of
from tests.agents.limits import AGENTS, PATIENCE
from tests.agents.model_server import ModelServer
from tests.agents.other_agents import Codex, Gemini, OpenCode, OtherAgent
from tests.children import end_processes_in

CLAUDE = "node_modules/@anthropic-ai/claude-code-linux-x64/claude"

TOOLS = "Bash Write Edit Read Glob Grep Task"
"""What the agent may use without asking."""

ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?<>=]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()].|.)")
"""What a terminal does not show as text."""


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """A model that answers from scripts."""
    with ModelServer() as server:
        yield server


class ClaudeCode:
    """Claude Code in a project, with a home and a model of its own."""

    def __init__(self, program: Path, home: Path, url: str) -> None:
        self.program, self.home = program, home
        self.project = home / "project"
        self.project.mkdir(parents=True)
        self.variables = {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "SHELL": "/bin/bash",
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "fake",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        self._started: list[subprocess.Popen[str]] = []

    def mulligan(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Mulligan in the project."""
        return subprocess.run(
            [sys.executable, "-m", "mulligan", *args],
            cwd=self.project,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def install(self, *args: str) -> None:
        """Install the hooks."""
        done = self.mulligan("install", "claude", *args)
        assert done.returncode == 0, done.stderr

    def add_server(self) -> None:
        """Install Mulligan's MCP server, as its guide says."""
        server = [str(Path(sys.executable).with_name("mulligan")), "mcp"]
        done = subprocess.run(
            [self.program, "mcp", "add", "mulligan", "--", *server],
            cwd=self.project,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr

    def start(
        self, prompt: str, *args: str, directory: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start it with a prompt, without a terminal; it ends when it has answered."""
        started = subprocess.Popen(
            [self.program, "--allowedTools", TOOLS, *args, "-p", prompt],
            cwd=directory or self.project,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(started)
        return started

    def run(self, prompt: str, *args: str, directory: Path | None = None) -> str:
        """Run it with a prompt until it has answered, and return the answer."""
        started = self.start(prompt, *args, directory=directory)
        out, err = started.communicate(timeout=PATIENCE)
        assert started.returncode == 0, err + out
        return out

    def accept_all(self) -> None:
        """Answer in advance what it asks at its first start on a terminal."""
        settings = self.home / ".claude.json"
        known = json.loads(settings.read_text()) if settings.exists() else {}
        known |= {"hasCompletedOnboarding": True, "theme": "dark"}
        known["customApiKeyResponses"] = {"approved": ["fake"], "rejected": []}
        trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        known.setdefault("projects", {}).setdefault(str(self.project), {}).update(trusted)
        settings.write_text(json.dumps(known))

    def ids(self) -> list[str]:
        """Return the ids of its sessions, as recorded by hooks, oldest first."""
        with self.store() as store:
            prefix = session_of("claude", "")
            names = [s.name for s in store.sessions() if s.name.startswith(prefix)]
        return [name.removeprefix(prefix) for name in names]

    def store(self) -> mulligan.Store:
        """Open the store of the project."""
        return mulligan.open(self._store_path(), create=False)

    def _store_path(self) -> str:
        found = self.mulligan("status", "--json")
        assert found.returncode == 0, found.stderr
        return str(json.loads(found.stdout)["store"])

    def session(self, number: int = 0) -> Session:
        """Open the session that records one of its sessions."""
        return self.store().session(session_of("claude", self.ids()[number]), create=False)

    def transcript(self, number: int = 0) -> Path:
        """Return the file of a session's transcript."""
        (found,) = self.home.glob(f".claude/projects/*/{self.ids()[number]}.jsonl")
        return found

    def notes(self) -> str:
        """Return what hooks noted that failed."""
        log = self.home / ".local/state/mulligan/hooks.log"
        return log.read_text() if log.exists() else ""

    def close(self) -> None:
        """End what still runs."""
        for started in self._started:
            started.kill()
            started.communicate()
        end_processes_in(self.home)  # the helper of its hooks


class Terminal:
    """Claude Code on a terminal of its own; use it as a context manager.

    ``under`` is the command that runs it, if that is another one.
    """

    def __init__(self, claude: ClaudeCode, *args: str, under: Sequence[str] = ()) -> None:
        claude.accept_all()
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.process = subprocess.Popen(
            [*under, claude.program, "--allowedTools", TOOLS, *args],
            cwd=claude.project,
            env=claude.variables,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            # A terminal window controls the processes in it: Ctrl-C, and who may read.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        os.set_blocking(self._ours, False)
        self._shown = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def shows(self, wanted: str) -> bool:
        """Whether a text was on the screen since something was typed; spaces do not count."""
        with suppress(BlockingIOError, OSError):  # nothing new, or the program has ended
            self._shown.extend(os.read(self._ours, 1 << 16))
        seen = ESCAPES.sub(b"", bytes(self._shown)).replace(b" ", b"")
        return wanted.replace(" ", "").encode() in seen

    def type(self, keys: str) -> None:
        """Type something."""
        self._shown.clear()
        os.write(self._ours, keys.encode())


@pytest.fixture
def claude(tmp_path: Path, model: ModelServer) -> Iterator[ClaudeCode]:
    """Claude Code with the hooks installed in its project."""
    place = os.environ.get(AGENTS)
    if not place:
        pytest.skip(f"{AGENTS} is not set: `make test-agents` installs and runs the agents")
    program = Path(place).absolute() / CLAUDE
    if not program.is_file():
        pytest.skip(f"Claude Code is NOT INSTALLED in {place}, and was not tested")
    made = ClaudeCode(program, tmp_path / "home", model.url)
    yield made
    made.close()


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Any]:
    """Wait until a function returns something; it must, sooner or later."""

    def wait(look: Callable[[], Any]) -> Any:
        limit = time.monotonic() + PATIENCE
        while not (found := look()):
            assert time.monotonic() < limit, "this never came"
            time.sleep(0.05)
        return found

    return wait


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place for what agents install for their plugins, once for all tests."""
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(params=[Codex, Gemini, OpenCode])
def agent(
    request: pytest.FixtureRequest, tmp_path: Path, model: ModelServer, packages: Path
) -> Iterator[OtherAgent]:
    """Each of the other agents, with hooks in its project."""
    place = os.environ.get(AGENTS)
    if not place:
        pytest.skip(f"{AGENTS} is not set: `make test-agents` installs and runs the agents")
    kind: type[OtherAgent] = request.param
    if not (Path(place) / "node_modules" / ".bin" / kind.name).exists():
        pytest.skip(f"{kind.name} is NOT INSTALLED in {place}, and was not tested")
    made = kind(Path(place).absolute(), tmp_path / "home", model, packages)
    yield made
    end_processes_in(tmp_path)  # the helper of its hooks
    made.keep_packages(packages)
