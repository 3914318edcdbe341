"""A coding agent as its hooks see it: a process, a transcript, and JSON for every event."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mulligan
from mulligan import Session
from mulligan.coding.hooks import HookRunner, session_of
from mulligan.make_store import make_store


class CodingAgent:
    """Writes a transcript and sends hook JSON, as Claude Code does.

    ``process`` is the agent's process: this one, unless ``own_process`` was asked for.
    """

    def __init__(self, home: Path, id: str = "s-1", *, own_process: bool = False) -> None:
        self.home, self.id = home, id
        self.project = home / "project"
        self.transcript = home / "transcripts" / f"{id}.jsonl"
        self.child: subprocess.Popen[bytes] | None = None
        if own_process:
            wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
            self.child = subprocess.Popen(wait, stdin=subprocess.PIPE)
        process = self.child.pid if self.child else os.getpid()
        self.variables = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "XDG_STATE_HOME": str(home / "state"),
            "CLAUDE_PROJECT_DIR": str(self.project),
            "CLAUDE_PID": str(process),
        }
        self.project.mkdir(parents=True, exist_ok=True)
        self.transcript.parent.mkdir(exist_ok=True)

    def make_store(self) -> Path:
        """Make the store of the project, as `mulligan install` does."""
        return make_store(self.project, self.variables).store

    def json(self, event: str, **fields: Any) -> bytes:
        """Return the JSON of an event."""
        base = {
            "session_id": self.id,
            "transcript_path": str(self.transcript),
            "cwd": str(self.project),
            "hook_event_name": event,
        }
        return json.dumps(base | fields).encode()

    def hook(self, event: str, **fields: Any) -> bytes:
        """Run a hook as a fresh process would, and return its reply."""
        with HookRunner(self.variables) as runner:
            return runner.handle(self.json(event, **fields))

    def say(self, *entries: Any, subagent: str | None = None) -> None:
        """Append entries to the transcript, or to that of a subagent."""
        file = self.transcript
        if subagent:
            file = file.with_suffix("") / "subagents" / f"agent-{subagent}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as opened:
            opened.writelines(json.dumps(entry) + "\n" for entry in entries)

    def call(self, id: str, tool: str = "Bash", **fields: Any) -> bytes:
        """Run the hook before a call of a tool."""
        given = {"tool_input": {"command": "make"}, **fields}
        return self.hook("PreToolUse", tool_name=tool, tool_use_id=id, **given)

    def returned(self, id: str, tool: str = "Bash", **fields: Any) -> bytes:
        """Run the hook after a call of a tool."""
        given = {"tool_input": {"command": "make"}, "tool_response": {"stdout": "ok"}, **fields}
        return self.hook("PostToolUse", tool_name=tool, tool_use_id=id, **given)

    def batch(self, *ids: str, **fields: Any) -> bytes:
        """Run the hook after a batch of calls."""
        calls = [
            {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": id}
            for id in ids
        ]
        return self.hook("PostToolBatch", tool_calls=calls, **fields)

    def session(self) -> Session:
        """Open the session that its hooks record."""
        store = mulligan.open(self.make_store(), create=False)
        return store.session(session_of("claude", self.id), create=False)

    def notes(self) -> str:
        """Return the log of hooks."""
        log = self.home / "state" / "mulligan" / "hooks.log"
        return log.read_text() if log.exists() else ""

    def kill(self) -> None:
        """Kill the agent's process."""
        assert self.child is not None
        self.child.kill()
        self.child.wait()

    def close(self) -> None:
        """End the agent's process, if it has one of its own."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            assert self.child.stdin is not None
            self.child.stdin.close()
