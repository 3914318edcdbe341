"""The log of a session: checkpoints, with restores and forks between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.model import Checkpoint, Event, Fold
from mulligan.views.checkpoints import checkpoint_view, verdicts

if TYPE_CHECKING:
    from mulligan.session import Session

RESTORED = "restore.applied"
FORKED = "session.forked"

Entry = Checkpoint | Event


class LogPage(msgspec.Struct, frozen=True):
    """The newest entries of a log, newest first, and whether there are earlier ones.

    ``folds`` took the place of events between them, or after the last one that is not shown.
    """

    entries: list[Entry]
    more: bool
    folds: list[Fold]


class Annotations(msgspec.Struct, frozen=True):
    """What changed about checkpoints later: verdicts by id, and the id that each label names."""

    verdicts: dict[str, str]
    labels: dict[str, str | None]


def log_page(session: Session, count: int = 0) -> LogPage:
    """Return the newest entries of a session's log; 0 is all of them."""
    checkpoints = session.checkpoints(count + 1 if count else None)  # one more: are there others?
    # What lies before the oldest checkpoint of the page cannot be on it: it need not be read.
    oldest = checkpoints[-count].seq - 1 if 0 < count < len(checkpoints) else 0
    events = session.events(since=oldest or None)
    entries: list[Entry] = [*checkpoints, *(e for e in events if e.kind in (RESTORED, FORKED))]
    entries.sort(key=lambda entry: entry.seq, reverse=True)
    shown = entries[:count] if count else entries
    more = len(entries) > len(shown)
    first = shown[-1].seq if shown and more else 1
    return LogPage(shown, more, session.internal.folds(first, session.head.seq))


def annotations_of(session: Session) -> Annotations:
    """Return what a session knows of its checkpoints beside their own records."""
    labels = {label: point.checkpoint for label, point in session.checkpoints.labels().items()}
    return Annotations(verdicts(session), labels)


def log_view(session: Session, page: LogPage) -> dict[str, Any]:
    """Return a page of a session's log."""
    from mulligan.views.restores import pending_view  # people mostly read text

    known = annotations_of(session)
    return {
        "session": session.name,
        "entries": [entry_view(entry, known) for entry in page.entries],
        "more": page.more,
        "folds": [
            {"first": f.first, "last": f.last, "started": f.started, "ended": f.ended}
            for f in page.folds
        ],
        "pending": pending_view(session),
    }


def entry_view(entry: Entry, known: Annotations) -> dict[str, Any]:
    """Return a checkpoint, a restore or a fork as an entry of the log."""
    if isinstance(entry, Checkpoint):
        own = checkpoint_view(entry, known.verdicts.get(entry.id))
        label_at = None if entry.label is None else known.labels.get(entry.label)
        return {"type": "checkpoint", **own, "label_at": label_at}
    base = {"seq": entry.seq, "timestamp": entry.time, "actor": entry.actor}
    payload = entry.payload
    source = {"session": payload["session"], "seq": payload["seq"]}
    if entry.kind == FORKED:
        return {"type": "fork", **base, "from": source}
    parts = restored_parts(payload)
    return {"type": "restore", **base, "mode": payload["mode"], "to": source, "only": parts}


def restored_parts(payload: dict[str, Any]) -> list[str] | None:
    """Return the parts of state and workspace that a restore brought back; None for everything."""
    from mulligan.views.restores import parts_view
    from mulligan.workspace.entries import shown

    files = payload.get("files")
    paths = () if files is None else files["only"]
    texts = None if paths is None else [shown(tuple(path)) for path in paths]
    return parts_view(payload["only"], texts)
