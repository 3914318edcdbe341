"""The real Codex, Gemini CLI and opencode, started by the tests with a home of their own."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import mulligan
from mulligan import Session
from tests.agents.limits import PATIENCE
from tests.agents.model_apis import Block
from tests.agents.model_server import ModelServer, Turn, tool

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


class OtherAgent:
    """An agent in a project, with a home of its own and hooks that were installed there."""

    name: str
    shell: str
    """Its tool that runs a command, and the name of the tool's argument."""
    argument: str
    resume_word: str
    """What is typed before the id of a session that is continued."""

    def __init__(
        self, agents: Path, home: Path, model: ModelServer, packages: Path | None = None
    ) -> None:
        self.packages, self.model = packages, model
        self._names = (f"script-{number}" for number in count(1))
        self.program = agents / "node_modules" / ".bin" / self.name
        self.home, self.url = home, model.url
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

    def keep_packages(self, place: Path) -> None:
        """Keep what it has installed for its plugins, for the next one of its kind."""

    def trust(self, directory: Path) -> None:
        """Let it run the hooks of a directory; most agents do without being told."""

    def command(self, prompt: str, resume: Sequence[str] = ()) -> list[str]:
        """Return how it is started with a prompt; ``resume`` is what follows its name."""
        raise NotImplementedError

    def prompt(self, said: str, *turns: Turn) -> str:
        """Return a prompt that chooses how the model answers."""
        return self.model.prompt(next(self._names), *turns, say=said)

    def run(self, said: str, *turns: Turn) -> str:
        """Run it with a prompt and the turns that answer it."""
        return self._run(self.command(self.prompt(said, *turns)))

    def resume(self, command: str, said: str, *turns: Turn) -> str:
        """Do what a person is told to type, without a terminal, and give it a prompt."""
        directory = self.project
        *first, last = (shlex.split(one) for one in command.split(" && "))
        for words in first:
            if words[0] == "cd":
                directory = Path(words[1])
            else:
                self._run([str(self.program), *words[1:]], directory)
        assert last[0] == self.name
        return self._run(self.command(self.prompt(said, *turns), last[1:]), directory)

    def start_resumed(self, command: str, said: str, *turns: Turn) -> subprocess.Popen[bytes]:
        """Start it with a prompt that it does not get to answer; the caller ends it."""
        words = self.command(self.prompt(said, *turns), shlex.split(command)[1:])
        return subprocess.Popen(
            words,
            cwd=self.project,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def resume_command(self, id: str) -> str:
        """Return what a person types to continue a session."""
        return f"{self.name} {self.resume_word} {id}"

    def mulligan(self, *args: str) -> Any:
        """Run a command of Mulligan in the project, and return what it says as JSON."""
        return json.loads(self._run([sys.executable, "-m", "mulligan", *args, "--json"]))

    def files(self, directory: Path | None = None) -> dict[str, str]:
        """Return the files of the project, without those of agents and of Mulligan."""
        found = (directory or self.project).iterdir()
        plain = (one for one in found if not one.name.startswith((".", "opencode.json")))
        return {one.name: one.read_text().strip() for one in plain}

    def shell_call(self, command: str) -> Block:
        """Return a turn's call of its shell."""
        return tool(self.shell, **{self.argument: command}, description="run it")

    def session(self) -> Session:
        """Open the session that its hooks recorded."""
        (session,) = self.store().sessions(prefix=f"{self.name}-")
        return session

    def store(self) -> mulligan.Store:
        """Open the store of the project."""
        return mulligan.open(self.mulligan("status")["store"], create=False)

    def notes(self) -> str:
        """Return what hooks noted that failed."""
        log = self.home / ".local/state/mulligan/hooks.log"
        return log.read_text() if log.exists() else ""

    def _run(self, command: list[str], directory: Path | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=directory or self.project,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class Codex(OtherAgent):
    name, shell, argument, resume_word = "codex", "exec_command", "cmd", "resume"

    def settle(self) -> None:
        self.variables["FAKE_KEY"] = "fake"
        (self.home / ".codex").mkdir()
        (self.home / ".codex" / "config.toml").write_text(CODEX_CONFIG.format(url=self.url))
        self.trust(self.project)

    def trust(self, directory: Path) -> None:
        with (self.home / ".codex" / "config.toml").open("a") as file:
            file.write(f'[projects."{directory}"]\ntrust_level = "trusted"\n')

    def command(self, prompt: str, resume: Sequence[str] = ()) -> list[str]:
        # The hooks were written by this test.
        trust = "--dangerously-bypass-hook-trust"
        return [str(self.program), "exec", trust, "--skip-git-repo-check", *resume, prompt]


class Gemini(OtherAgent):
    name, shell, argument = "gemini", "run_shell_command", "command"
    resume_word = "--resume"

    def settle(self) -> None:
        self.variables |= {
            "GEMINI_API_KEY": "fake",
            "GOOGLE_GEMINI_BASE_URL": self.url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
        (self.home / ".gemini").mkdir()
        # Its own clean-up takes a session that was resumed in another minute for an empty one.
        settings = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "general": {"sessionRetention": {"enabled": False}},
        }
        (self.home / ".gemini" / "settings.json").write_text(json.dumps(settings))

    def command(self, prompt: str, resume: Sequence[str] = ()) -> list[str]:
        return [str(self.program), "--yolo", "-m", "gemini-2.5-pro", *resume, "-p", prompt]


class OpenCode(OtherAgent):
    name, shell, argument, resume_word = "opencode", "bash", "command", "--session"

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
        for place in self._plugin_places():
            place.mkdir(parents=True)
            for found in self.packages.iterdir() if self.packages else ():
                (place / found.name).symlink_to(found)

    def keep_packages(self, place: Path) -> None:
        """Keep what it installs for plugins at its first start: that takes long."""
        if not any(place.iterdir()):
            for name in ("node_modules", "package.json", "package-lock.json"):
                made = self.project / ".opencode" / name
                if made.exists():
                    shutil.move(made, place / name)

    def _plugin_places(self) -> list[Path]:
        return [self.project / ".opencode", self.home / ".config/opencode"]

    def command(self, prompt: str, resume: Sequence[str] = ()) -> list[str]:
        return [str(self.program), "run", *resume, prompt]
