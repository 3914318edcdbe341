"""Sessions: how they stand, their agents, and the store around them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mulligan.errors import UnknownPoint
from mulligan.layout import read_format
from mulligan.recovery.detect import is_alive, reason
from mulligan.recovery.plan import gave_up
from mulligan.session.parts.tasks import health
from mulligan.views.checkpoints import checkpoint_view, verdicts
from mulligan.views.points import place_view
from mulligan.views.restores import pending_view
from mulligan.views.stores import size_on_disk
from mulligan.views.tasks import task_counts

if TYPE_CHECKING:
    from mulligan.model import Checkpoint
    from mulligan.session import Session
    from mulligan.store import Store

INTERRUPTED = "interrupted"
AGENT_FIELDS = (
    "state",
    "working_on",
    "last_action",
    "current_prompt",
    "process_id",
    "exit_status",
)


def status_view(store: Store, sessions: Iterable[Session]) -> dict[str, Any]:
    """Return a store with the named ones of its sessions."""
    return {**store_summary(store), "sessions": [session_view(session) for session in sessions]}


def store_summary(store: Store) -> dict[str, Any]:
    """Return where a store is, its format and its size."""
    directory = Path(store.path or ".")
    return {
        "store": str(directory),
        "format": read_format(directory).format,
        "size_bytes": size_on_disk(directory),
    }


def session_view(session: Session) -> dict[str, Any]:
    """Return how a session stands."""
    taken, parent = latest_checkpoint(session), session.parent
    return {
        "name": session.name,
        "seq": session.head.seq,
        "created": session.created,
        "updated": session.updated,
        "parent": parent and place_view(parent),
        "checkpoint": taken and checkpoint_view(taken, verdicts(session).get(taken.id)),
        "status": session_status(session),
        "interrupted": reason(session),
        "gave_up": gave_up_view(session),
        "pending": pending_view(session),
        "health": health(session.tasks),
        "tasks": task_counts(session),
        "agents": agent_views(session),
    }


def session_status(session: Session) -> str | None:
    """Return running, paused, done, failed or interrupted; None if it was never run."""
    known: str | None = session.internal.control("status")
    return INTERRUPTED if reason(session) is not None else known


def latest_checkpoint(session: Session) -> Checkpoint | None:
    """Return the latest checkpoint of a session, if it has one."""
    try:
        return session.find_checkpoint("@latest")
    except UnknownPoint:
        return None


def gave_up_view(session: Session) -> dict[str, Any] | None:
    """Return that the ladder of recovery came to its end; None if it did not."""
    end = gave_up(session)
    return None if end is None else {"at": end.at, "why": end.why, "tried": end.tried}


def agent_views(session: Session) -> list[dict[str, Any]]:
    """Return the agents of a session."""
    agents = session.state.get("agents")
    known = agents if isinstance(agents, dict) else {}
    return [_agent_view(session, name, a) for name, a in known.items() if isinstance(a, dict)]


def _agent_view(session: Session, name: str, record: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        **{field: record.get(field) for field in AGENT_FIELDS},
        "restarts": record.get("restarts") or 0,
        "is_alive": is_alive(session, name, record),
    }


def fork_view(made: Session, directory: Path | None) -> dict[str, Any]:
    """Return a session that was forked, and the directory that it was given."""
    return {
        "session": made.name,
        "parent": made.parent and place_view(made.parent),
        "seq": made.head.seq,
        "directory": directory and str(directory),
    }
