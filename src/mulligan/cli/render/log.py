"""The log of a session: its entries, and how a person sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mulligan.cli.render.files import coverage_text
from mulligan.cli.render.restored import parts_fields
from mulligan.cli.render.text import (
    SHORT_ID,
    Cell,
    ago,
    clean,
    echo_columns,
    local,
    verdict_cell,
)

if TYPE_CHECKING:
    from mulligan import Checkpoint, Event, Session

    Entry = Checkpoint | Event

RESTORED = "restore.applied"
FORKED = "session.forked"


class Known(NamedTuple):
    """What is known of checkpoints beside their own records, by their ids and labels."""

    verdicts: dict[str, str]
    labels: dict[str, str | None]


def known_of(session: Session) -> Known:
    """Return the marks and labels of a session."""
    verdicts = {name: mark.verdict for name, mark in session.marks().items()}
    return Known(verdicts, {name: point.checkpoint for name, point in session.labels().items()})


def history(session: Session, count: int) -> tuple[list[Entry], bool]:
    """Return the newest entries of a session's log, and whether there are earlier ones."""
    checkpoints = session.checkpoints()
    oldest = checkpoints[-count].seq - 1 if 0 < count < len(checkpoints) else 0
    since = None if oldest == 0 else oldest
    events = [e for e in session.events(since=since) if e.kind in (RESTORED, FORKED)]
    entries: list[Entry] = [*checkpoints, *events]
    entries.sort(key=lambda entry: entry.seq, reverse=True)
    return (entries[:count], len(entries) > count) if count else (entries, False)


def print_entries(session: Session, entries: Sequence[Entry]) -> None:
    """Print the entries of a log for people."""
    known = known_of(session)
    echo_columns([_row(entry, known) for entry in entries])


def is_event(entry: Entry) -> bool:
    """Whether an entry is a restore or a fork, and not a checkpoint."""
    return hasattr(entry, "payload")


def _row(entry: Any, known: Known) -> list[Cell]:
    when = [Cell(ago(entry.time), dim=True), Cell(local(entry.time), dim=True)]
    seq = Cell(f"#{entry.seq}", dim=True)
    if not is_event(entry):
        has_label = entry.label and known.labels.get(entry.label) == entry.id
        label = entry.label if has_label or not entry.label else f"(was {entry.label})"
        words = [clean(word) for word in (label, entry.note) if word]
        shown = Cell("  ".join(words), bold=bool(has_label))
        files = Cell(coverage_text(entry.coverage), dim=True)
        kind, verdict = Cell(entry.kind, "green"), verdict_cell(known.verdicts.get(entry.id))
        return [Cell(entry.id[:SHORT_ID], "yellow"), seq, *when, kind, verdict, files, shown]
    if entry.kind == FORKED:
        mark, said = "fork", f"from {entry.payload['session']} #{entry.payload['seq']}"
    else:
        mark, said = entry.payload["mode"], _restored(entry.payload)
    return [Cell(f"─ {mark} ─", "cyan"), seq, *when, *[Cell("")] * 3, Cell(said, "cyan")]


def _restored(payload: dict[str, Any]) -> str:
    parts = restored_parts(payload)
    only = "" if parts is None else f", only {', '.join(parts)}"
    return clean(f"to {payload['session']} #{payload['seq']}{only}")


def restored_parts(payload: dict[str, Any]) -> list[str] | None:
    """Return the parts of state and workspace that were brought back; None for everything."""
    from mulligan.workspace.entries import shown

    files = payload.get("files")
    paths = () if files is None else files["only"]
    texts = None if paths is None else [shown(tuple(path)) for path in paths]
    return parts_fields(payload["only"], texts)
