"""Where a rewind goes back to: prompts, their checkpoints, and the conversation at a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.coding.agent_session import (
    AGENT_SESSION,
    CONVERSATION,
    SUBAGENTS,
    TOOL_RESULTS,
    AgentSession,
    agent_session,
    one_line,
)
from mulligan.coding.transcripts import transcript
from mulligan.coding.transcripts.transcript_format import Prompt, TranscriptFormat
from mulligan.coding.transcripts.transcript_formats import FORMATS
from mulligan.errors import CannotRewind
from mulligan.model import Checkpoint, FileChange, Point

if TYPE_CHECKING:
    from mulligan.session import Session
    from mulligan.store import Store

PROMPT_KIND = "prompt"
"""The kind of the checkpoints that are taken before a prompt is acted on."""

RECOVERY_KIND = "recovery"
"""The kind of the checkpoint of what a crash left."""

INSTALL_HINT = (
    "Nothing was changed. `mulligan install AGENT` (claude, codex, gemini or opencode) records the "
    "next one; `mulligan doctor` says whether its hooks work."
)

SLACK = timedelta(minutes=1)
"""How long after a prompt the hook that tells of it may have made its session."""

UNNAMED_ENDS = {"AfterTool"}
"""The events that tell of the end of a call, without its id."""


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
    there is none. ``is_before_prompt`` says that it was asked right after the point, which is
    not in the middle of a turn, and not between two turns.
    """

    point: Point
    entries: list[Any]
    subagents: dict[str, list[Any]]
    kept: int
    prompt: RewindPrompt | None
    has_files: bool
    is_before_prompt: bool


class Conversation:
    """All that is recorded of the conversation of a session, read once."""

    def __init__(self, session: Session, store: Store | None = None) -> None:
        """Read the conversation of a session.

        With ``store``, prompts that the agent has copied from another conversation have the
        checkpoints that were taken there.
        """
        found = agent_session(session)
        if found is None:
            raise CannotRewind(
                f"The session {session.name!r} has no conversation of a coding agent.",
                hint=INSTALL_HINT,
            )
        self.session = session
        self._store = store
        self.agent: AgentSession = found
        self.format = FORMATS.get(found.agent)
        """How its transcripts are read; None if they are not: then only files can be taken back."""
        self.entries = _entries(session, found, self.format)
        self._prompts: list[RewindPrompt] | None = None

    @property
    def started_in(self) -> Path:
        """The directory in which the agent was started; it may have changed to others since."""
        if self.format is None:
            return Path(self.agent.cwd)
        return self.format.started_in(self.entries, self.agent.transcript, self.agent.cwd)

    @property
    def prompts(self) -> list[RewindPrompt]:
        """The prompts of the present conversation, oldest first, without what they changed."""
        if self._prompts is None:
            taken = self._checkpoints()
            known = self.format.prompts(self.entries, taken.keys()) if self.format else []
            # An agent, or a version of one, whose entries are not understood: its hooks are.
            found = self._with_queued(_matched(known, taken))
            self._prompts = self._with_copied(found) or [
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
        if is_prompt_number(to):
            return self._before(int(to))
        return self._at(self.session.point(to))

    def tool_result(self, name: str) -> bytes | None:
        """Return a large result of a tool that was kept beside the conversation."""
        found = self.session.state.get((TOOL_RESULTS, name), None)
        return found if isinstance(found, bytes) else None

    def _before(self, number: int) -> Target:
        """Return the moment before a prompt."""
        known = self.prompts
        if not 1 <= number <= len(known):
            there = f"there are {len(known)}" if len(known) != 1 else "there is one"
            raise CannotRewind(f"There is no prompt {number}; {there}.")
        found = known[number - 1]
        checkpoint = found.checkpoint
        point = _point(checkpoint) if checkpoint is not None else self.session.head
        entries = self.entries[: found.prompt.entry]
        if not found.prompt.uuid:
            entries = self._conversation_at(point)
        subagents = self._subagents(point) if checkpoint is not None else {}
        return Target(point, entries, subagents, number - 1, found, checkpoint is not None, True)

    def _at(self, point: Point) -> Target:
        """Return a point, with entries that the agent wrote a little later than they happened."""
        if self.session.state.at(point).get(AGENT_SESSION) is None:
            raise CannotRewind(
                f"No conversation of a coding agent is recorded at #{point.seq} of "
                f"{point.session!r}.",
                hint="Nothing was changed. `mulligan restore` brings other states and files back.",
            )
        entries, checkpoint = self._conversation_at(point), self._checkpoint_at(point)
        if point.session == self.session.name and point.seq >= self.session.head.seq:
            # The present: after a crash, no hook has recorded the last lines of the transcript.
            entries = self.entries
        elif checkpoint is not None and self.format is not None:
            entries = self._completed(entries, checkpoint, self.format)
        kept = sum(one.prompt.entry < len(entries) for one in self.prompts)
        first = self.prompts[kept] if kept < len(self.prompts) else None
        taken = first.checkpoint if first else None
        is_before = taken is not None and (taken.session, taken.seq) == (point.session, point.seq)
        return Target(point, entries, self._subagents(point), kept, first, True, is_before)

    def _conversation_at(self, point: Point) -> list[Any]:
        found = self.session.state.at(point).get(CONVERSATION, [])
        return _parsed(found, self.format)

    def _subagents(self, point: Point) -> dict[str, list[Any]]:
        found = self.session.state.at(point).get(SUBAGENTS, {})
        return found if isinstance(found, dict) else {}

    def _checkpoint_at(self, point: Point) -> Checkpoint | None:
        checkpoint = self.session.checkpoints.at(point)
        same = (checkpoint.session, checkpoint.seq) == (point.session, point.seq)
        return checkpoint if same else None

    def _completed(
        self, then: list[Any], checkpoint: Checkpoint, format: TranscriptFormat
    ) -> list[Any]:
        """Return the entries of a checkpoint: a prompt ends what came before it."""
        if checkpoint.kind == RECOVERY_KIND:
            return self._until_crash(then, checkpoint)
        if checkpoint.kind == PROMPT_KIND:
            ends = (one.prompt.entry for one in self.prompts if _is_before(checkpoint, one))
            end = next((entry for entry in ends if entry >= len(then)), len(then))
            return self.entries[:end] if self.entries[: len(then)] == then else then
        starts = (one.prompt.entry for one in self.prompts)
        until = next((entry for entry in starts if entry >= len(then)), len(self.entries))
        # The results of a batch of calls belong to its end.
        calls = checkpoint.data.get("calls")
        is_batch = checkpoint.data.get("event") in UNNAMED_ENDS
        ended = None if is_batch and not calls else set(calls or ())
        return format.completed(then, self.entries, until, ended)

    def _until_crash(self, then: list[Any], checkpoint: Checkpoint) -> list[Any]:
        """Return what an agent that died had written, although no hook has recorded it."""
        taken = ((one.checkpoint, one.prompt.entry) for one in self.prompts)
        later = (at for known, at in taken if known is not None and known.time > checkpoint.time)
        end = next(later, len(self.entries))
        return self.entries[:end] if self.entries[: len(then)] == then else then

    def _checkpoints(self) -> dict[str, Checkpoint]:
        """Return the checkpoints before prompts, by the agent's ids of these, or their own."""
        taken: dict[str, Checkpoint] = {}
        for one in self.session.checkpoints(kind=PROMPT_KIND):
            # What is typed during a turn has the id of its prompt, too: the first one counts.
            taken.setdefault(str(one.data.get("prompt_id") or one.id), one)
        return taken

    def _with_queued(self, prompts: list[RewindPrompt]) -> list[RewindPrompt]:
        """Return prompts with the checkpoints of those that waited for the end of a turn.

        Their hooks ran when they were typed, with the id of that turn, and not when it had ended.
        """
        if not any(one.prompt.is_queued for one in prompts):
            return prompts
        taken, since = list(self.session.checkpoints()), None
        found: list[RewindPrompt] = []
        for one in prompts:
            if one.prompt.is_queued:
                checkpoint = _before_queued(taken, one.prompt, since) or one.checkpoint
                found.append(msgspec.structs.replace(one, checkpoint=checkpoint))
            else:
                since = _time(one.prompt.time)
                found.append(one)
        return found

    def _with_copied(self, prompts: list[RewindPrompt]) -> list[RewindPrompt]:
        """Return prompts with the checkpoints of the conversation that they were copied from."""
        if self._store is None:
            return prompts
        for session in self._store.sessions(f"{self.agent.agent}-"):
            missing = [one.prompt for one in prompts if one.checkpoint is None]
            if session.name == self.session.name or not _was_there(session, missing):
                continue
            # A copy has the ids of its entries, but not those by which hooks know its prompts.
            there = {one.prompt.uuid: one.checkpoint for one in Conversation(session).prompts}
            prompts = [
                msgspec.structs.replace(
                    one, checkpoint=one.checkpoint or there.get(one.prompt.uuid)
                )
                for one in prompts
            ]
        return prompts

    def _changes(
        self, start: Checkpoint | None, end: Checkpoint | None
    ) -> tuple[FileChange, ...] | None:
        if start is None:
            return None
        until = self.session.head if end is None else _point(end)
        found = self.session.internal.file_changes(_point(start), until)
        return None if found is None else tuple(found)


def is_prompt_number(text: str) -> bool:
    """Whether a person who typed this means a prompt by its number."""
    return text.isascii() and text.isdigit() and len(text) < 8


def _entries(session: Session, agent: AgentSession, format: TranscriptFormat | None) -> list[Any]:
    """Return the recorded entries, and those that the transcript has beyond them."""
    recorded = _parsed(session.state.get(CONVERSATION, []), format)
    if agent.transcript is None:
        return recorded
    found = transcript.read_new(agent.transcript, agent.progress)
    return recorded if found.is_whole else [*recorded, *_parsed(found.entries, format)]


def _parsed(entries: Any, format: TranscriptFormat | None) -> list[Any]:
    if not isinstance(entries, list):
        return []
    return entries if format is None else format.parsed(entries)


def _matched(prompts: Sequence[Prompt], taken: Mapping[str, Checkpoint]) -> list[RewindPrompt]:
    """Return prompts with their checkpoints: by the agent's id of them, or by what they say."""
    # The program gives copies of a conversation one id for all prompts: the last one counts.
    last = {prompt.asked: prompt.uuid for prompt in prompts}
    unnamed = [one for one in taken.values() if "prompt_id" not in one.data]
    found: list[RewindPrompt] = []
    for number, prompt in reversed(list(enumerate(prompts, 1))):
        if prompt.asked is None:
            checkpoint = _pop_same(unnamed, prompt.text)
        else:
            is_last = last[prompt.asked] == prompt.uuid
            checkpoint = taken.get(prompt.asked) if is_last else None
            if prompt.is_queued and checkpoint and not _is_about(checkpoint, prompt.text):
                checkpoint = None  # of one that was typed during its turn
        found.append(RewindPrompt(number, prompt, checkpoint))
    return found[::-1]


def _was_there(session: Session, prompts: Sequence[Prompt]) -> bool:
    """Whether a session of a coding agent may have the checkpoint of one of these prompts."""
    if not prompts or agent_session(session) is None:
        return False
    times = (_time(one.time) for one in prompts)
    first = session.created - SLACK
    return any(time is not None and first <= time <= session.updated for time in times)


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None


def _before_queued(
    taken: Sequence[Checkpoint], prompt: Prompt, since: datetime | None
) -> Checkpoint | None:
    """Return the last checkpoint of the turn during which a prompt was typed.

    That turn began at ``since``. None if no hook heard of the prompt, or if the checkpoint was
    removed since: an earlier one may lack what the turn changed.
    """
    time = _time(prompt.time)
    if time is None or since is None:
        return None
    before = [one for one in taken if since <= one.time <= time]
    if not any(one.kind == PROMPT_KIND and _is_about(one, prompt.text) for one in before):
        return None
    after = next((one for one in taken if one.time > time), None)
    return before[-1] if after is None or after.parent == before[-1].id else None


def _is_about(checkpoint: Checkpoint, text: str) -> bool:
    """Whether a prompt began as the note of a checkpoint says."""
    noted = checkpoint.note
    return bool(noted) and one_line(text).startswith(str(noted).removesuffix("…"))


def _pop_same(taken: list[Checkpoint], text: str) -> Checkpoint | None:
    """Return the newest checkpoint whose prompt began like this; older ones are left over."""
    for at in reversed(range(len(taken))):
        checkpoint = taken[at]
        if _is_about(checkpoint, text):
            del taken[at:]
            return checkpoint
    return None


def _is_before(checkpoint: Checkpoint, prompt: RewindPrompt) -> bool:
    """Whether a checkpoint was taken before a prompt."""
    named = checkpoint.data.get("prompt_id")
    if named is not None:
        return prompt.prompt.asked == str(named)
    return (prompt.checkpoint and prompt.checkpoint.id) == checkpoint.id


def _noted(number: int, checkpoint: Checkpoint) -> RewindPrompt:
    """Return a prompt as its checkpoint tells of it; it has no id, and no place."""
    text = checkpoint.note or ""
    return RewindPrompt(number, Prompt(0, "", checkpoint.time.isoformat(), text), checkpoint)


def _point(checkpoint: Checkpoint) -> Point:
    return Point(checkpoint.session, checkpoint.seq, checkpoint.id)
