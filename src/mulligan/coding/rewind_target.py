"""Where a rewind goes back to: prompts, their checkpoints, and the conversation at a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.coding import claude_transcript, transcript
from mulligan.coding.agent_session import (
    AGENT_SESSION,
    CONVERSATION,
    SUBAGENTS,
    AgentSession,
    agent_session,
)
from mulligan.coding.claude_transcript import Prompt
from mulligan.coding.hook_input import CLAUDE
from mulligan.errors import CannotRewind
from mulligan.model import Checkpoint, FileChange, Point

if TYPE_CHECKING:
    from mulligan.session import Session

PROMPT_KIND = "prompt"
"""The kind of the checkpoints that are taken before a prompt is acted on."""

PROMPT_EVENT = "UserPromptSubmit"


class RewindPrompt(msgspec.Struct, frozen=True):
    """A prompt of a conversation, and the checkpoint from just before it.

    ``number`` counts from 1. ``files`` is what changed until the next prompt, or until now for the
    last one. Without hooks at that time, there is neither a checkpoint nor files.
    """

    number: int
    prompt: Prompt
    checkpoint: Checkpoint | None = None
    files: tuple[FileChange, ...] | None = None


class Target(msgspec.Struct, frozen=True):
    """A point to go back to, and the entries of the conversation then.

    ``kept`` is how many prompts stay, and ``prompt`` the first one that is taken back, None if
    there is none.
    """

    point: Point
    entries: list[Any]
    subagents: dict[str, list[Any]]
    kept: int
    prompt: RewindPrompt | None
    has_files: bool


class Conversation:
    """All that is recorded of the conversation of a session, read once."""

    def __init__(self, session: Session) -> None:
        found = agent_session(session)
        if found is None:
            raise CannotRewind(
                f"The session {session.name!r} has no conversation of a coding agent.",
                hint="Nothing was changed. `mulligan install claude` records the next one.",
            )
        self.session = session
        self.agent: AgentSession = found
        self.entries = _entries(session, found)
        self._prompts: list[RewindPrompt] | None = None

    @property
    def has_transcript(self) -> bool:
        """Whether the agent's transcripts are understood: else only files can be taken back."""
        return self.agent.agent == CLAUDE

    @property
    def prompts(self) -> list[RewindPrompt]:
        """The prompts of the present conversation, oldest first, without what they changed."""
        if self._prompts is None:
            taken = self._checkpoints()
            if self.has_transcript:
                found = claude_transcript.prompts(self.entries, taken.keys())
                self._prompts = self._matched(found, taken)
            else:
                self._prompts = [
                    _noted(number, one) for number, one in enumerate(taken.values(), 1)
                ]
        return self._prompts

    def prompts_with_files(self) -> list[RewindPrompt]:
        """Return the prompts with what changed after each of them."""
        ends = [*(one.checkpoint for one in self.prompts), None][1:]
        return [
            msgspec.structs.replace(one, files=self._changes(one.checkpoint, end))
            for one, end in zip(self.prompts, ends, strict=True)
        ]

    def target(self, to: str) -> Target:
        """Return the target that a person named: the number of a prompt, or a point."""
        if to.isascii() and to.isdigit() and len(to) < 8:
            return self._before(int(to))
        return self._at(self.session.point(to))

    def _before(self, number: int) -> Target:
        """Return the moment before a prompt."""
        known = self.prompts
        if not 1 <= number <= len(known):
            there = f"there are {len(known)}" if len(known) != 1 else "there is one"
            raise CannotRewind(f"There is no prompt {number}; {there}.")
        found = known[number - 1]
        entries = self.entries[: found.prompt.entry]
        checkpoint = found.checkpoint
        point = _point(checkpoint) if checkpoint is not None else self.session.head
        subagents = self._subagents(point) if checkpoint is not None else {}
        return Target(point, entries, subagents, number - 1, found, checkpoint is not None)

    def _at(self, point: Point) -> Target:
        """Return a point, with entries that the agent wrote a little later than they happened."""
        if self.session.state.at(point).get(AGENT_SESSION) is None:
            raise CannotRewind(
                f"No conversation of a coding agent is recorded at #{point.seq} of "
                f"{point.session!r}.",
                hint="Nothing was changed. `mulligan restore` brings other states and files back.",
            )
        then = self._conversation_at(point)
        entries, checkpoint = then, self._checkpoint_at(point)
        if point.session == self.session.name and point.seq >= self.session.head.seq:
            # The present: after a crash, no hook has recorded the last lines of the transcript.
            entries = self.entries
        elif checkpoint is not None and self.entries[: len(then)] == then:
            entries = self.entries[: self._end(len(then), checkpoint)]
        kept = sum(one.prompt.entry < len(entries) for one in self.prompts)
        first = self.prompts[kept] if kept < len(self.prompts) else None
        return Target(point, entries, self._subagents(point), kept, first, True)

    def _conversation_at(self, point: Point) -> list[Any]:
        found = self.session.state.at(point).get(CONVERSATION, [])
        return claude_transcript.decoded(found) if isinstance(found, list) else []

    def _subagents(self, point: Point) -> dict[str, list[Any]]:
        found = self.session.state.at(point).get(SUBAGENTS, {})
        return found if isinstance(found, dict) else {}

    def _checkpoint_at(self, point: Point) -> Checkpoint | None:
        checkpoint = self.session.checkpoints.at(point)
        same = (checkpoint.session, checkpoint.seq) == (point.session, point.seq)
        return checkpoint if same else None

    def _end(self, length: int, checkpoint: Checkpoint) -> int:
        """Return how many entries had happened at a checkpoint, of which ``length`` were written.

        A prompt ends what came before it. The results of a batch of calls belong to its end.
        """
        data = checkpoint.data
        if data.get("event") == PROMPT_EVENT:
            named = data.get("prompt_id")
            at = (one.prompt.entry for one in self.prompts if self._id(one.prompt) == named)
            return next((entry for entry in at if entry >= length), length)
        calls = set(data.get("calls") or ())
        starts = {one.prompt.entry for one in self.prompts}
        for index in range(length, len(self.entries)):
            if index in starts:
                break
            entry = self.entries[index]
            if claude_transcript.is_main(entry) and calls.intersection(
                claude_transcript.results(entry)
            ):
                length = index + 1
        return length

    def _matched(
        self, prompts: Sequence[Prompt], taken: Mapping[str, Checkpoint]
    ) -> list[RewindPrompt]:
        # The program gives copies of a conversation one id for all prompts: the last one counts.
        last = {self._id(prompt): prompt.uuid for prompt in prompts}
        return [
            RewindPrompt(
                number,
                prompt,
                taken.get(self._id(prompt) or "")
                if last[self._id(prompt)] == prompt.uuid
                else None,
            )
            for number, prompt in enumerate(prompts, 1)
        ]

    def _checkpoints(self) -> dict[str, Checkpoint]:
        """Return the checkpoints before prompts, by the agent's ids of these, or their own."""
        return {
            str(one.data.get("prompt_id") or one.id): one
            for one in self.session.checkpoints(kind=PROMPT_KIND)
        }

    def _id(self, prompt: Prompt) -> str | None:
        found = self.entries[prompt.entry].get("promptId")
        return found if isinstance(found, str) else None

    def _changes(
        self, start: Checkpoint | None, end: Checkpoint | None
    ) -> tuple[FileChange, ...] | None:
        if start is None:
            return None
        until = self.session.head if end is None else _point(end)
        found = self.session.internal.file_changes(_point(start), until)
        return None if found is None else tuple(found)


def _entries(session: Session, agent: AgentSession) -> list[Any]:
    """Return the recorded entries, and those that the transcript has beyond them."""
    recorded = session.state.get(CONVERSATION, [])
    entries = claude_transcript.decoded(recorded) if isinstance(recorded, list) else []
    if agent.transcript is None:
        return entries
    found = transcript.read_new(agent.transcript, agent.progress)
    return entries if found.is_whole else [*entries, *claude_transcript.decoded(found.entries)]


def _noted(number: int, checkpoint: Checkpoint) -> RewindPrompt:
    """Return a prompt as its checkpoint tells of it."""
    text = checkpoint.note or ""
    return RewindPrompt(number, Prompt(0, "", checkpoint.time.isoformat(), text), checkpoint)


def _point(checkpoint: Checkpoint) -> Point:
    return Point(checkpoint.session, checkpoint.seq, checkpoint.id)
