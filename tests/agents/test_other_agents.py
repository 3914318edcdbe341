"""The real Codex, Gemini CLI and opencode run real tools, and all of it is on the timeline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Session
from tests.agents.conftest import AGENTS, PATIENCE
from tests.children import end_processes_in

ROOT = Path(__file__).parents[2]

SERVER = ROOT.parent / "shared" / "agents" / "fakemodel.py"
"""A model server that speaks the protocols of these agents, beside the project."""

CODEX_CONFIG = """
model = "gpt-5"
model_provider = "fake"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
env_key = "FAKE_KEY"
wire_api = "responses"
"""

Turn = list[dict[str, Any]]


class OtherAgent:
    """An agent in a project, with a home of its own and hooks that were installed there."""

    name: str
    shell: str
    """Its tool that runs a command, and the name of the tool's argument."""
    argument: str

    def __init__(self, agents: Path, home: Path, url: str) -> None:
        self.program = agents / "node_modules" / ".bin" / self.name
        self.home, self.url = home, url
        self.project = home / "project"
        self.project.mkdir(parents=True)
        self.variables = {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
        }
        self.settle()
        self._run([sys.executable, "-m", "mulligan", "install", self.name])

    def settle(self) -> None:
        """Write the settings that lead the agent to the model."""

    def command(self, prompt: str) -> list[str]:
        """Return how it is started with a prompt."""
        raise NotImplementedError

    def run(self, said: str, *turns: Turn) -> str:
        """Run it with a prompt that says how the model answers."""
        return self._run(self.command(f"{said} @@{json.dumps(turns)}@@"))

    def shell_call(self, command: str) -> dict[str, Any]:
        """Return a turn's call of its shell."""
        return {"tool": self.shell, "input": {self.argument: command, "description": "run it"}}

    def session(self) -> Session:
        """Open the session that its hooks recorded."""
        found = json.loads(self._run([sys.executable, "-m", "mulligan", "status", "--json"]))
        store = mulligan.open(found["store"], create=False)
        (session,) = store.sessions(prefix=f"{self.name}-")
        return session

    def notes(self) -> str:
        """Return what hooks noted that failed."""
        log = self.home / ".local/state/mulligan/hooks.log"
        return log.read_text() if log.exists() else ""

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self.project,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class Codex(OtherAgent):
    name, shell, argument = "codex", "exec_command", "cmd"

    def settle(self) -> None:
        self.variables["FAKE_KEY"] = "fake"
        (self.home / ".codex").mkdir()
        text = CODEX_CONFIG.format(url=self.url)
        text += f'[projects."{self.project}"]\ntrust_level = "trusted"\n'
        (self.home / ".codex" / "config.toml").write_text(text)

    def command(self, prompt: str) -> list[str]:
        # The hooks were written by this test.
        trust = "--dangerously-bypass-hook-trust"
        return [str(self.program), "exec", trust, "--skip-git-repo-check", prompt]


class Gemini(OtherAgent):
    name, shell, argument = "gemini", "run_shell_command", "command"

    def settle(self) -> None:
        self.variables |= {
            "GEMINI_API_KEY": "fake",
            "GOOGLE_GEMINI_BASE_URL": self.url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
        (self.home / ".gemini").mkdir()
        settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
        (self.home / ".gemini" / "settings.json").write_text(json.dumps(settings))

    def command(self, prompt: str) -> list[str]:
        return [str(self.program), "--yolo", "-m", "gemini-2.5-pro", "-p", prompt]


class OpenCode(OtherAgent):
    name, shell, argument = "opencode", "bash", "command"

    def settle(self) -> None:
        self.variables |= {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        }
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{self.url}/v1", "apiKey": "fake"},
            "models": {"fake": {"name": "fake", "tool_call": True}},
        }
        settings = {
            "provider": {"fake": provider},
            "model": "fake/fake",
            "small_model": "fake/fake",
            "permission": {"*": "allow"},
        }
        (self.project / "opencode.json").write_text(json.dumps(settings))

    def command(self, prompt: str) -> list[str]:
        return [str(self.program), "run", prompt]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a model server on loopback, as long as the test runs."""
    if not SERVER.is_file():
        pytest.skip("The model server for these agents is NOT HERE, and they were not tested")
    port = tmp_path / "port"
    started = subprocess.Popen(
        [sys.executable, str(SERVER), "--port", "0", "--port-file", str(port)],
        stdout=subprocess.PIPE,
    )
    try:
        assert started.stdout is not None
        yield f"http://127.0.0.1:{int(started.stdout.readline())}"
    finally:
        started.kill()
        started.communicate()


@pytest.fixture(params=[Codex, Gemini, OpenCode])
def agent(request: pytest.FixtureRequest, tmp_path: Path, url: str) -> Iterator[OtherAgent]:
    """Each of the agents, with hooks in its project."""
    place = os.environ.get(AGENTS)
    if not place:
        pytest.skip(f"{AGENTS} is not set: `make test-agents` installs and runs the agents")
    kind: type[OtherAgent] = request.param
    if not (Path(place) / "node_modules" / ".bin" / kind.name).exists():
        pytest.skip(f"{kind.name} is NOT INSTALLED in {place}, and was not tested")
    yield kind(Path(place).absolute(), tmp_path / "home", url)
    end_processes_in(tmp_path)  # the helper of its hooks


def test_prompts_calls_and_files_are_recorded(agent: OtherAgent) -> None:
    calls = [agent.shell_call("echo one > one.txt"), agent.shell_call("echo two > two.txt")]
    more = [agent.shell_call("cat one.txt")]
    assert "all done" in agent.run("Make files", calls, more, [{"text": "all done"}])
    session = agent.session()
    first, *_, last = session.checkpoints()
    assert first.kind == "prompt"
    assert "Make files" in (first.note or "")
    assert session.files.read(last, "one.txt") == b"one\n"
    assert session.files.read(last, "two.txt") == b"two\n"
    assert [call.status for call in session.tools.list()] == ["returned"] * 3
    assert "all done" in json.dumps(session.state.get("conversation"))
    assert session.state.get(("agents", agent.name, "state")) == "done"
    assert agent.notes() == ""
    agent._run([sys.executable, "-m", "mulligan", "restore", "-s", session.name, first.id, "--yes"])
    assert not (agent.project / "one.txt").exists()


def test_a_rule_denies_a_call(agent: OtherAgent) -> None:
    store = agent.session().internal.engine.directory if agent.run("hello") else None
    assert store is not None
    rules = '[[effects.rules]]\nname = "*(rm *)"\napproval = "ask"\n'
    (store / "config.toml").write_text(rules)
    (agent.project / "precious").write_text("kept")
    agent.run("Remove it", [agent.shell_call("rm precious")], [{"text": "was not allowed"}])
    assert (agent.project / "precious").read_text() == "kept"
    assert agent.notes() == ""
