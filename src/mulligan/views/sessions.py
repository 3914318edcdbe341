"""Sessions: their status, their agents, and their store."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mulligan.errors import UnknownPoint
from mulligan.layout import NAME, read_format
from mulligan.locate.project import project_of
from mulligan.recovery.detect import gave_up, is_alive, reason
from mulligan.session.parts.tasks import health
from mulligan.store import engine_of
from mulligan.views.checkpoints import checkpoint_view, verdicts
from mulligan.views.drift import drift_status
from mulligan.views.effects import acts_view
from mulligan.views.stores import size_on_disk
from mulligan.views.tasks import task_counts
from mulligan.views.upkeep import upkeep_view

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


def status_view(
    store: Store, sessions: Iterable[Session], current: str | None = None
) -> dict[str, Any]:
    """Return a store with the named ones of its sessions.

    ``current`` is the session that a call without a name uses.
    """
    from mulligan.views.verify import last_verify_view  # text does not need it

    project, sessions = project_directory(store), list(sessions)
    return {
        **store_summary(store),
        "directory": project and str(project),
        "current_session": current,
        "upkeep": upkeep_view(engine_of(store)),
        "verify": last_verify_view(store, sessions),
        "sessions": [session_view(session, project) for session in sessions],
    }


def project_directory(store: Store) -> Path | None:
    """Return the directory whose files a store holds; None if it knows none."""
    if store.path is None:
        return None
    if os.path.basename(store.path) == NAME:
        return Path(store.path).parent
    place = project_of(Path(store.path))
    return None if place is None else Path(place.path)


def store_summary(store: Store) -> dict[str, Any]:
    """Return where a store is, its format and its size."""
    directory = Path(store.path or ".")
    return {
        "store": str(directory),
        "format": read_format(directory).format,
        "size_bytes": size_on_disk(directory),
    }


def session_view(session: Session, project: Path | None = None) -> dict[str, Any]:
    """Return the status of a session; ``project`` is the directory that its store belongs to."""
    # Imported here, because people mostly read text; they import what compares states.
    from mulligan.views.drill import last_drill_view
    from mulligan.views.points import place_view
    from mulligan.views.repair import damaged_views
    from mulligan.views.restores import pending_view

    taken, parent = latest_checkpoint(session), session.parent
    directory = session.files.directory or project
    return {
        "name": session.name,
        "directory": directory and str(directory),
        "seq": session.head.seq,
        "created": session.created,
        "updated": session.updated,
        "parent": parent and place_view(parent),
        "checkpoint": taken and checkpoint_view(taken, verdicts(session).get(taken.id)),
        "status": session_status(session),
        "interrupted": reason(session),
        "gave_up": gave_up_view(session),
        "drift": drift_status(session),
        "pending": pending_view(session),
        "drill": last_drill_view(session),
        "damaged": damaged_views(session),
        "health": health(session.tasks),
        "tasks": task_counts(session),
        "effects": acts_view(session),
        "agents": agent_views(session),
    }


def session_status(session: Session) -> str | None:
    """Return running, paused, done, failed or interrupted; None if it was never run."""
    known: str | None = session.internal.control("status")
    return INTERRUPTED if reason(session) is not None else known


def latest_checkpoint(session: Session) -> Checkpoint | None:
    """Return the latest checkpoint of a session, if it has one."""
    try:
        return session.checkpoints.at("@latest")
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
    fields = {field: record.get(field) for field in AGENT_FIELDS}
    alive = is_alive(session, name, record)
    if alive and fields["process_id"] is None:
        # Hooks write for another process, which their lease names.
        lease = session.internal.lease_of(name)
        fields["process_id"] = (lease and lease.holder.process) or None
    return {
        "name": name,
        **fields,
        "restarts": record.get("restarts") or 0,
        "is_alive": alive,
    }


def fork_view(made: Session, directory: Path | None) -> dict[str, Any]:
    """Return a session that was forked, and the directory that it was given."""
    from mulligan.views.points import place_view

    return {
        "session": made.name,
        "parent": made.parent and place_view(made.parent),
        "seq": made.head.seq,
        "directory": directory and str(directory),
    }
