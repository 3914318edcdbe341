"""What the state of a session holds of a coding agent: the layout, and the names in it.

===================  ======================================================================
path                 value
===================  ======================================================================
``conversation``     the entries of the main transcript, in order: parsed, or text if a line
                     is no JSON
``subagents/ID``     the same of the transcript of a subagent
``tool_results/N``   the content of a file beside the main transcript, with a result of a tool
                     that was too large for it
``agent_session``    an ``AgentSession``: whose session it is, and how far its transcripts
                     were read
===================  ======================================================================

A restore brings all of them back together, so the next hook continues to read where that point was.
The data of a checkpoint that a hook takes has ``event`` (the agent's name of it) and ``prompt``:
the number of the prompt that is acted on, from 0, or None before the first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.coding.transcripts.transcript import Progress
from mulligan.decoding import ready

if TYPE_CHECKING:
    from mulligan.session import Session

CONVERSATION = "conversation"
SUBAGENTS = "subagents"
TOOL_RESULTS = "tool_results"
AGENT_SESSION = "agent_session"


class Transcript(msgspec.Struct, frozen=True, omit_defaults=True):
    """A transcript: its path, and how far it was read; ``stamp`` is that of the file before."""

    path: str
    offset: int = 0
    digest: str = ""
    entries: int = 0
    stamp: list[int] = []

    @property
    def progress(self) -> Progress:
        """How far it was read."""
        return Progress(self.offset, self.digest, self.entries)


class AgentSession(msgspec.Struct, frozen=True):
    """The session of a coding agent: ``id`` is the agent's own of it.

    ``prompts`` counts the prompts, and ``prompt_id`` is the agent's id of the last one.
    ``subagents`` are the transcripts of subagents by their ids. ``handled`` are the ids of the last
    events: one that comes again, because its hook got no answer, is not recorded twice.
    ``tool_results`` are the sizes of the files with large results that were read.
    """

    agent: str
    id: str
    cwd: str
    transcript: str | None = None
    offset: int = 0
    digest: str = ""
    entries: int = 0
    prompts: int = 0
    prompt_id: str | None = None
    subagents: dict[str, Transcript] = {}
    handled: list[str] = []
    tool_results: dict[str, int] = {}

    @property
    def handled_ids(self) -> frozenset[str]:
        """The ids of events that are recorded already."""
        return frozenset(self.handled)

    @property
    def progress(self) -> Progress:
        """How far the main transcript was read."""
        return Progress(self.offset, self.digest, self.entries)


def read_agent_session(value: Any) -> AgentSession | None:
    """Return what a session's state holds at ``agent_session``; None if it is nothing of ours."""
    try:
        return msgspec.convert(value, ready(AgentSession))
    except msgspec.ValidationError:
        return None


def agent_session(session: Session) -> AgentSession | None:
    """Return the coding agent's session that is recorded in a session; None if there is none."""
    return read_agent_session(session.state.get(AGENT_SESSION))


def one_line(text: str) -> str:
    """Return a text as one line, as the notes of checkpoints have it."""
    return " ".join(text.split())
