"""What an event of a coding agent does to its session.

================  ===============================================================================
event             does
================  ===============================================================================
prompt            a checkpoint of the files before the prompt is acted on
tool called       the call is durable before it runs: in doubt if the agent dies in it
tool returned     the call ends, with its result
batch end         new transcript lines and, if files changed, a checkpoint, in one transaction
compaction        a checkpoint of the whole conversation before it
end of a turn     the same as the end of a batch; the agent waits for its next prompt
end of a session  the same; the agent is done, and a death of its process is no interruption
================  ===============================================================================

Several hooks of an agent may run at the same time, for parallel calls and subagents. What is read
from a transcript is written only if the recorded progress is still the one that it was read from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.coding import claude
from mulligan.coding.agent_session import (
    AGENT_SESSION,
    CONVERSATION,
    SUBAGENTS,
    TOOL_RESULTS,
    AgentSession,
    Transcript,
    one_line,
    read_agent_session,
)
from mulligan.coding.hook_input import CLAUDE, HookEvent, HookKind, ToolUse, is_of
from mulligan.coding.tool_policy import about
from mulligan.coding.transcripts import transcript
from mulligan.coding.transcripts.transcript import NewEntries
from mulligan.document.document import MISSING
from mulligan.errors import Conflict, UnknownEffect

if TYPE_CHECKING:
    from mulligan.model import AgentState, Checkpoint
    from mulligan.session import Session

PROMPT = "prompt"
"""The kind of checkpoints that are taken before a prompt is acted on."""

TOOLS = "tools"
"""The kind of checkpoints that hold what the tools of a turn have changed."""

TRIES = 8
"""How often new lines are read again because another hook has recorded some meanwhile."""

RECENT_ENTRIES = 200
"""How many recorded entries are searched for the results of a batch."""

MAX_NOTE = 80

MAX_HANDLED = 16
"""How many ids of events are kept: those that parallel hooks may send again."""

_KINDS = {
    HookKind.PROMPT: PROMPT,
    HookKind.BATCH_END: TOOLS,
    # A subagent, or a command in the background, changes files after the last batch, too. A batch
    # that finds them in one of these takes none of its own, so these are kept for as long.
    HookKind.SUBAGENT_END: TOOLS,
    HookKind.TURN_END: TOOLS,
    HookKind.TURN_FAILED: TOOLS,
    HookKind.BEFORE_COMPACTION: "pre_operation",
    HookKind.SESSION_END: "routine",
}
"""The kinds of the checkpoints that events take; other events take none."""

_ALWAYS = {HookKind.PROMPT, HookKind.BEFORE_COMPACTION}
"""The events whose checkpoint is taken even if no file has changed: people go back to them."""

_GOES_ON = {HookKind.BATCH_END, HookKind.TURN_END, HookKind.TURN_FAILED}
"""The events by which the agent has gone on after a prompt."""

_STATES: dict[HookKind, AgentState] = {
    HookKind.SESSION_START: "waiting",
    HookKind.PROMPT: "working",
    HookKind.TURN_END: "waiting",
    HookKind.TURN_FAILED: "waiting",
    HookKind.SESSION_END: "done",
}
"""What the agent does after an event; a dead agent that was at work is found as interrupted."""

_DETAILS = {
    HookKind.SESSION_START: "session_start",
    HookKind.TURN_FAILED: "turn_failure",
    HookKind.SESSION_END: "session_end",
}
"""Where the agent's record has how its session started last, why a turn failed, why it ended."""


def record(session: Session, event: HookEvent) -> Checkpoint | None:
    """Record an event in the agent's session; durable when this returns.

    Returns the checkpoint that was taken for it, if any.
    """
    if event.kind is HookKind.TOOL_CALLED:
        _begin(session, event)
    elif event.kind in (HookKind.TOOL_RETURNED, HookKind.TOOL_FAILED):
        _settle(session, [event.tool] if event.tool else [], create=True)
    else:
        return _catch_up(session, event)
    return None


def _begin(session: Session, event: HookEvent) -> None:
    tool = event.tool
    if tool is not None:
        # The call is known already if the agent repeats a hook, such as after a retry.
        with suppress(Conflict):
            session.tools.begin(tool.name, tool.input, id=tool.id or event.id)


def deny(session: Session, tool: ToolUse, why: str) -> None:
    """Record that a call which was about to begin is not made."""
    _settle(session, [msgspec.structs.replace(tool, error=why)], create=True)


def _settle(session: Session, uses: Iterable[ToolUse], *, create: bool) -> None:
    """Record the results of calls that have none yet; ``create`` also those that did not begin."""
    for use in uses:
        id = use.id or _open_call(session, use)
        known = _status(session, id)
        if known in ("called", "in_doubt") or (known is None and create):
            # Another hook may record the same result at the same moment.
            with suppress(Conflict):
                session.tools.record(
                    use.name, use.input, result=use.response, error=use.error, id=id
                )


def _status(session: Session, id: str | None) -> str | None:
    try:
        return None if id is None else session.tools.get(id).status
    except UnknownEffect:
        return None


def _open_call(session: Session, use: ToolUse) -> str | None:
    """Return the call that a result without an id is of: the oldest open one that is equal."""
    calls = session.tools.list(name=use.name, in_doubt=True) or session.tools.list(name=use.name)
    return next((c.id for c in calls if c.status == "called" and c.args == use.input), None)


def _catch_up(session: Session, event: HookEvent) -> Checkpoint | None:
    """Record all that the transcripts have by now, and what the event itself does."""
    for left in reversed(range(TRIES)):
        before = session.state.get(AGENT_SESSION, MISSING)
        known = _known(session, before) or _first(event)
        if not known.handled_ids.isdisjoint(event.ids):
            # Recorded by a process that did not live to say so, nor, maybe, to end the calls.
            _end_calls(session, event, [])
            return None
        new = _News(known, event)
        try:
            taken = _write(session, event, before, new)
            break
        except Conflict:
            if not left:
                raise
    _end_calls(session, event, list(new.results()))
    return taken


def _end_calls(session: Session, event: HookEvent, told: list[ToolUse]) -> None:
    """Record the results of a batch, and those that the transcripts have told of.

    The end of a batch of Claude Code does not tell calls that were refused from others; its
    transcript does, and may lag. So a call that neither a hook nor the transcript has ended stays
    open, and the next hook, which reads on, ends it.
    """
    calls = list(event.calls)
    # Named, not there: at the first batch, the file may not have been written yet.
    if event.agent == CLAUDE and event.transcript is not None:
        told = [*told, *_told_before(session, event, told)]
        known = {one.id for one in told}
        for call in calls:
            if call.id not in known and _status(session, call.id) is None:
                # Its first hook was missed; without a record, the transcript could not end it.
                with suppress(Conflict):
                    session.tools.begin(call.name, call.input, id=call.id)
        calls = [call for call in calls if call.id in known]
    _settle(session, [one for one in told if one.error is not None], create=False)
    _settle(session, calls, create=True)
    _settle(session, told, create=False)


def _told_before(session: Session, event: HookEvent, told: list[ToolUse]) -> list[ToolUse]:
    """Return results of a batch in entries that are recorded already.

    A hook that was killed may have recorded them without ending the calls.
    """
    known = {one.id for one in told}
    left = {one.id for one in event.calls if one.id not in known}
    if all(_status(session, id) in ("returned", "failed") for id in left):
        return []
    path = (SUBAGENTS, event.subagent) if event.subagent else (CONVERSATION,)
    if not session.state.length(path):
        return []
    recorded = session.state.tail(path, RECENT_ENTRIES)
    return [one for one in claude.tool_results(recorded) if one.id in left]


def _known(session: Session, recorded: Any) -> AgentSession | None:
    """Return what is known of the agent's session; its transcript is read again if need be.

    The progress is of no use if the conversation was restored, or written, without it.
    """
    found = read_agent_session(recorded)
    if found is None or found.entries == session.state.length(CONVERSATION):
        return found
    # No file continues after such a digest, so all of it counts as new.
    return msgspec.structs.replace(found, digest="", offset=max(1, found.offset))


def _first(event: HookEvent) -> AgentSession:
    return AgentSession(event.agent, event.session_id, event.cwd)


class _News:
    """What is new in an agent's transcripts, and how far they are read after it."""

    def __init__(self, known: AgentSession, event: HookEvent) -> None:
        path = event.transcript or known.transcript
        since = known.progress if path == known.transcript else transcript.START
        self.conversation = NewEntries([], since)
        self.subagents: dict[str, NewEntries] = {}
        files: dict[str, str] = {}
        self.tool_results: dict[str, bytes] = {}
        if path is not None:
            self.tool_results = claude.large_results(path, known.tool_results)
            self.conversation = transcript.read_new(path, since)
            files = claude.subagent_files(path)
        if event.subagent and event.subagent_transcript:
            files[event.subagent] = event.subagent_transcript
        self.known = msgspec.structs.replace(
            known,
            **msgspec.structs.asdict(self.conversation.progress),
            cwd=event.cwd,
            transcript=path,
            subagents=dict(self._read(known.subagents, files)),
            tool_results=known.tool_results
            | {name: len(data) for name, data in self.tool_results.items()},
        )

    def _read(
        self, known: dict[str, Transcript], files: dict[str, str]
    ) -> Iterator[tuple[str, Transcript]]:
        for id, path in files.items():
            before = known.get(id, Transcript(path))
            # Before it is read: what is written meanwhile makes it another one the next time.
            stamp = list(transcript.stamp(path) or ())
            if stamp and stamp == before.stamp:
                yield id, before  # most of them have ended; reading hundreds takes long
                continue
            found = transcript.read_new(path, before.progress)
            if found.entries or found.is_whole:
                self.subagents[id] = found
            read = [] if found.has_more else stamp
            yield id, Transcript(path, **msgspec.structs.asdict(found.progress), stamp=read)
        # A file that is gone was read before, and stays known.
        yield from ((id, before) for id, before in known.items() if id not in files)

    def results(self) -> Iterator[ToolUse]:
        """Yield the results of tool calls that the new entries tell of."""
        for found in (self.conversation, *self.subagents.values()):
            yield from claude.tool_results(found.entries)


def _write(session: Session, event: HookEvent, before: Any, new: _News) -> Checkpoint | None:
    """Write the new entries, the progress and the checkpoint in one transaction; return that.

    Raises ``Conflict`` if another hook has recorded further progress meanwhile.
    """
    known, is_new_prompt = _handled(new.known, event), _is_prompt(event)
    if is_new_prompt:
        known = msgspec.structs.replace(known, prompts=known.prompts + 1, prompt_id=event.prompt_id)
    with session.batch() as batch:
        after = msgspec.to_builtins(known)
        if after != before:
            session.state.set(AGENT_SESSION, after, expected=before)
        _add(session, (CONVERSATION,), new.conversation)
        for id, found in new.subagents.items():
            _add(session, (SUBAGENTS, id), found)
        for name, data in new.tool_results.items():
            session.state.set((TOOL_RESULTS, name), data)
        if event.kind in _STATES:
            prompt = event.prompt if is_new_prompt else None
            details = _agent_details(event)
            session.agent.update(state=_agent_state(event), prompt=prompt, **details)
            if session.agent.get().get("last_action") is not None:
                # A recovery wrote there that the agent was interrupted; it has gone on since.
                session.agent.record("agent.updated", {"last_action": None})
        if (kind := _KINDS.get(event.kind)) is not None:
            batch.checkpoint(
                kind,
                note=_note(event),
                data=_data(event, known),
                if_files_changed=event.kind not in _ALWAYS,
            )
    return batch.result


def _agent_state(event: HookEvent) -> AgentState | None:
    """Return what the agent does now; None for a compaction, which may come in the middle of it."""
    is_compaction = event.kind is HookKind.SESSION_START and event.detail == claude.COMPACTED
    return None if is_compaction else _STATES[event.kind]


def _agent_details(event: HookEvent) -> dict[str, str]:
    """Return what else the agent's record says after an event."""
    name, found = _DETAILS.get(event.kind), {"directory": event.cwd}
    return found if name is None or event.detail is None else {**found, name: event.detail}


def _handled(known: AgentSession, event: HookEvent) -> AgentSession:
    handled = known.handled
    if event.kind in _GOES_ON:
        # All hooks of a prompt, or of a compaction, have ended by now. The same text in the same
        # turn is another one, and a long turn is compacted many times.
        handled = [id for id in handled if not is_of(id, event.subagent)]
    return msgspec.structs.replace(known, handled=[*handled, *event.ids][-MAX_HANDLED:])


def _add(session: Session, path: tuple[str, ...], found: NewEntries) -> None:
    if found.is_whole:
        # The transcript is another one than before; what both have in common is stored once.
        session.state.put(path, found.entries)
    elif found.entries:
        session.state.extend(path, found.entries)


def _is_prompt(event: HookEvent) -> bool:
    """Whether an event is a prompt of a person, not a note of the agent to itself."""
    given = event.prompt or ""
    return event.kind is HookKind.PROMPT and not given.startswith(claude.NOTIFICATION)


def _data(event: HookEvent, known: AgentSession) -> dict[str, Any]:
    """Return the data of a checkpoint: which prompt is acted on, and which calls have ended.

    The transcript lags: entries of these calls may be in the conversation of the next checkpoint
    only.
    """
    calls = [call.id for call in event.calls if call.id is not None]
    found = {
        "event": event.name,
        "prompt": known.prompts - 1 if known.prompts else None,
        "prompt_id": event.prompt_id or known.prompt_id,
        "detail": event.detail,
        "subagent": event.subagent,
        "calls": calls[:100] or None,
    }
    needed = {"event", "prompt"}
    return {key: value for key, value in found.items() if key in needed or value is not None}


def _note(event: HookEvent) -> str:
    """Return what a checkpoint is about, in one line of the log."""
    if event.kind is HookKind.PROMPT:
        said = event.prompt or ""
        said = said if _is_prompt(event) else "a task in the background ended"
    elif event.kind is HookKind.BATCH_END:
        said = ", ".join(_call_note(call, event.cwd) for call in event.calls[:5])
    else:
        said = f"{event.kind} ({event.detail})" if event.detail else str(event.kind)
    line = one_line(said) or str(event.kind)
    return line if len(line) <= MAX_NOTE else line[: MAX_NOTE - 1] + "…"


def _call_note(call: ToolUse, cwd: str) -> str:
    """Return a call with what it is about; a file below the agent's directory by its path there."""
    return f"{call.name} {about(call).removeprefix(f'{cwd}/')}".strip()
