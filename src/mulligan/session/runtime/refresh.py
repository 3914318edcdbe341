"""A refresh: an agent starts again with a clean context and a hand-over, maybe after a rollback.

The caller has taken a recovery checkpoint before, which holds the context as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mulligan.document import nodes
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import REFRESHED, STATE, Change, event_change
from mulligan.document.values import PathLike, freeze
from mulligan.drift.handover import handover
from mulligan.drift.ladder import ROLLBACK, Response
from mulligan.model import Path
from mulligan.session.components import AGENTS
from mulligan.session.runtime.drift_watch import read_record
from mulligan.session.runtime.rollback import others_at_work, own_parts, shared_parts

if TYPE_CHECKING:
    from mulligan.session.session import Session

CONVERSATION = "conversation"


def roll_back(session: Session, agent: str, response: Response) -> None:
    """Take an agent back to where a response says.

    Where it works alone, that is all of the shared state, and the files if this handle has them.
    While others are at work, only its own tasks go back: the rest is theirs, too.
    """
    if response.to is None:
        return
    point = session.checkpoints.at(response.to)
    parts: Sequence[PathLike]
    if others_at_work(session, agent):
        known = own_parts(session, agent, session.point(point))
        parts = [path for path in known if path[0] != AGENTS]
    else:
        parts = shared_parts(session, point, files=session.internal.has_files)
    if parts:
        # What the agent did outside after the point stays there: its state has to say so.
        session.internal.roll_back(point, parts, agent)


def hand_over(session: Session, agent: str, response: Response) -> str:
    """Record that an agent starts again, clean its context, and return what it is told.

    The hand-over is in the agent's record, and it is the first message of the clean conversation,
    or the last one of a conversation that was rolled back.
    """
    whys = dict.fromkeys(one.why for one in read_record(session, agent).responses)
    text = handover(session.state.get(), agent, response, list(whys) or [response.why])
    fields = {
        "state": "starting",
        "last_action": f"{response.rung}: {response.why}"[:500],
        "handover": text,
    }
    record = [[[AGENTS, agent, key], freeze(value)] for key, value in fields.items()]
    message = {"role": "user", "content": text}

    def decide(document: Document) -> Iterable[Change]:
        said = _conversation(document, agent, message, clean=response.rung != ROLLBACK)
        changes = [*record, *said]
        rung, why = response.rung, response.why
        return [event_change(REFRESHED, changes, agent=agent, rung=rung, why=why)]

    session.internal.commit_events(decide)
    return text


def _conversation(
    document: Document, agent: str, message: dict[str, Any], *, clean: bool
) -> list[list[Any]]:
    """Return the change of the agent's conversation, if there is one that is its own.

    That is ``conversation/AGENT``, or ``conversation`` itself if no other agent is known.
    """
    for path in ((CONVERSATION, agent), (CONVERSATION,)):
        found = document.find((*STATE, *path))
        node = None if found is MISSING else document.resolved(found)
        if node is None or not nodes.is_list(node) or not _is_own(document, agent, path):
            continue
        kept = [] if clean else document.items(node)
        return [[list(path), nodes.build_list([*kept, freeze(message)])]]
    return []


def _is_own(document: Document, agent: str, path: Path) -> bool:
    agents = document.find((*STATE, AGENTS))
    known = {} if agents is MISSING else document.entries(document.resolved(agents))
    return len(path) == 2 or set(known) <= {agent}
