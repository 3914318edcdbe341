"""What to type to continue the conversation of a coding agent."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mulligan.coding.agent_session import AgentSession
    from mulligan.coding.rewind.target import Conversation
    from mulligan.coding.transcripts.transcript_format import AgentFolder


def agent_folder(agent: AgentSession) -> AgentFolder | None:
    """Return where the agent keeps its transcripts; None if they are not understood."""
    from mulligan.coding.transcripts.transcript_formats import FORMATS

    format = FORMATS.get(agent.agent)
    return None if format is None else format.folder(agent.transcript, os.environ)


def continue_command(found: Conversation | None) -> str | None:
    """Return what to type to continue a conversation where it is; None if nothing is known."""
    folder = None if found is None else agent_folder(found.agent)
    if found is None or folder is None:
        return None
    agent = found.agent
    is_gone = agent.transcript is not None and not os.path.exists(agent.transcript)
    if is_gone or not found.started_in.is_dir():
        # Some agents delete conversations by themselves, and do not find those of a project that
        # was moved; the store has them.
        return f"mulligan rewind {shlex.quote(agent.id)} --to @latest --chat"
    # Not the directory that it was in last: the agent looks for its sessions by the first one.
    return typed_in(found.started_in, folder.resume_command(agent.id, None, is_new=False))


def typed_in(start: Path, command: str) -> str:
    """Return a command with the change to the directory in which it is typed."""
    is_here = Path(os.path.realpath(start)) == Path.cwd()
    return command if is_here else f"cd {shlex.quote(str(start))} && {command}"
