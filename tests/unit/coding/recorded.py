"""A session of Claude Code as hooks record it, for tests that need no agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

import mulligan
from mulligan.coding.agent_session import AGENT_SESSION, CONVERSATION, AgentSession
from mulligan.coding.transcripts import transcript
from mulligan.coding.transcripts.claude_folder import ClaudeFolder
from mulligan.coding.transcripts.transcript_format import NewSession, encode
from mulligan.store import Store
from tests.unit.coding.claude_entries import OLD, Transcript


class Recorded:
    """An agent at work in a directory, and what its hooks keep of it."""

    def __init__(self, place: Path, store: Store | None = None, id: str = OLD) -> None:
        self.work = place / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.folder = ClaudeFolder(place / "config")
        self.store = store or mulligan.open(place / "store")
        self.session = self.store.session(f"claude-{id}", actor="claude", workspace=self.work)
        self.said = Transcript(id, cwd=str(self.work))
        self.path = self.transcript(self.work, id)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._prompts = 0
        self._known = AgentSession("claude", id, str(self.work), str(self.path))

    def transcript(self, directory: Path, id: str) -> Path:
        """Return where the transcript of a session is."""
        return self.folder.transcript(directory, NewSession(id, ""))

    def start_in(self, directory: Path) -> None:
        """Be an agent that was started in another directory than the project's."""
        directory.mkdir(parents=True, exist_ok=True)
        self.said.entries = [{**one, "cwd": str(directory)} for one in self.said.entries]
        self.path = self.transcript(directory, self._known.id)
        self.path.parent.mkdir(exist_ok=True)
        self._known = msgspec.structs.replace(self._known, transcript=str(self.path), digest="")

    def write(self, name: str, text: str) -> None:
        (self.work / name).write_text(text)

    def prompt(self, text: str) -> None:
        """A prompt: its hook runs before the transcript has it."""
        self.hook("UserPromptSubmit", "prompt", is_prompt=True)
        self.said.prompt(text, promptId=f"p{self._prompts - 1}")

    def turn(self, text: str, name: str, content: str) -> None:
        """A prompt that has a tool write a file, and the end of its turn."""
        self.prompt(text)
        call = f"call-{self._prompts}"
        self.said.call(call, f"answer-{call}")
        self.write(name, content)
        self.said.result(call)
        self.hook("PostToolBatch", "tools", calls=[call])
        self.said.say(f"done: {text}")
        self.hook("Stop", "tools")

    def hook(
        self,
        event: str,
        kind: str,
        *,
        is_prompt: bool = False,
        lag: int = 0,
        note: str | None = None,
        **data: Any,
    ) -> mulligan.Checkpoint:
        """Record what is new; the last ``lag`` entries are not in the file yet."""
        shown = self.said.entries[: len(self.said.entries) - lag]
        self.path.write_bytes(encode(shown))
        found = transcript.read_new(self.path, self._known.progress)
        self._prompts += is_prompt
        self._known = msgspec.structs.replace(
            self._known, prompts=self._prompts, **msgspec.structs.asdict(found.progress)
        )
        with self.session.batch() as batch:
            if found.entries:
                self.session.state.extend(CONVERSATION, found.entries)
            self.session.state.set(AGENT_SESSION, msgspec.to_builtins(self._known))
            self.session.agent.update(state="waiting" if event == "Stop" else "working")
            number = self._prompts - 1
            about = {"event": event, "prompt": number, "prompt_id": f"p{number}", **data}
            batch.checkpoint(kind, note=note, data=about)
        assert batch.result is not None
        return batch.result
