"""The real Claude Code under `mulligan run`, on a terminal, killed and started again."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.agents.conftest import TOOLS, ClaudeCode, Terminal
from tests.agents.model_server import ModelServer, text, tool

Until = Callable[[Callable[[], Any]], Any]


def test_it_has_the_terminal_and_goes_on_after_a_kill(
    claude: ClaudeCode, model: ModelServer, until: Until
) -> None:
    claude.install()
    again = shlex.join([str(claude.program), "--continue", "--allowedTools", TOOLS])
    under = [sys.executable, "-m", "mulligan", "run", "--again", again, "--"]

    def prompt(name: str) -> str:
        call = tool("Bash", command=f"echo {name} > {name}", description="run it")
        return model.prompt(name, [call], [text(f"done {name}")], say=f"say {name}")

    def transcripts() -> Iterator[Path]:
        return claude.home.glob(".claude/projects/*/*.jsonl")

    with Terminal(claude, "--", prompt("one"), under=under) as terminal:

        def enter(typed: str) -> None:
            terminal.type(typed)
            until(lambda: terminal.shows(typed))
            terminal.type("\r")

        def sees(look: Callable[[], Any]) -> None:
            # Its output is read meanwhile: a program that cannot print does not go on.
            until(lambda: terminal.shows("") and look())

        # What it would continue with is in its transcript, which lags behind the screen.
        sees(lambda: any("done one" in one.read_text() for one in transcripts()))
        terminal.type("")  # forget what was shown
        with claude.store() as store:
            process = store.session("main").state.get("agents/agent/process_id")
        os.kill(process, signal.SIGKILL)
        until(lambda: terminal.shows("agent was ended by SIGKILL"))
        until(lambda: terminal.shows("done one"))
        enter(prompt("two"))
        until(lambda: terminal.shows("done two"))
        enter("/exit")
        sees(lambda: terminal.process.poll() is not None)
    assert terminal.process.returncode == 0
    (id,) = claude.ids()
    kinds = [one.kind for one in claude.session().checkpoints()]
    assert kinds == ["prompt", "tools", "prompt", "tools"], id
    with claude.store() as store:
        assert store.session("main").state.get("agents/agent/restarts") == 1
    assert claude.notes() == ""
