"""The log of a session as people see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.render.files import coverage_text
from mulligan.cli.render.log_lines import LogRow, fitted
from mulligan.cli.render.text import (
    SHORT_ID,
    Cell,
    ago,
    clean,
    local,
    plural,
    terminal_width,
    verdict_cell,
)
from mulligan.model import Checkpoint
from mulligan.views.log import FORKED, annotations_of, restored_parts

if TYPE_CHECKING:
    from mulligan import Session
    from mulligan.model import Fold
    from mulligan.views.log import Annotations, Entry

SHOWN_FOLDS = 3


def print_entries(session: Session, entries: Sequence[Entry]) -> None:
    """Print the entries of a log as text; they fit the terminal, and labels are never cut."""
    known = annotations_of(session)
    for line in fitted([_row(entry, known) for entry in entries], terminal_width()):
        click.echo(line)


def folds_text(folds: Sequence[Fold]) -> str:
    """Say where events were folded away, newest first."""
    count = sum(fold.last - fold.first + 1 for fold in folds)
    places = [f"#{fold.first} to #{fold.last}" for fold in reversed(folds)]
    more = f" and {len(places) - SHOWN_FOLDS} more" if len(places) > SHOWN_FOLDS else ""
    said = ", ".join(places[:SHOWN_FOLDS]) + more
    return f"{plural(count, 'event')} folded away: {said}. `mulligan events` shows them in place."


def _row(entry: Entry, known: Annotations) -> LogRow:
    when = [Cell(ago(entry.time), dim=True), Cell(local(entry.time), dim=True)]
    seq = Cell(f"#{entry.seq}", dim=True)
    if isinstance(entry, Checkpoint):
        has_label = entry.label and known.labels.get(entry.label) == entry.id
        label = entry.label if has_label or not entry.label else f"(was {entry.label})"
        files = Cell(coverage_text(entry.coverage), dim=True)
        kind, verdict = Cell(entry.kind, "green"), verdict_cell(known.verdicts.get(entry.id))
        cells = (Cell(entry.id[:SHORT_ID], "yellow"), seq, *when, kind, verdict, files)
        shown = Cell(clean(label or ""), bold=bool(has_label))
        return LogRow(cells, shown, Cell(clean(entry.note or "")))
    if entry.kind == FORKED:
        mark, said = "fork", f"from {entry.payload['session']} #{entry.payload['seq']}"
    else:
        mark, said = entry.payload["mode"], _restored(entry.payload)
    cells = (Cell(f"─ {mark} ─", "cyan"), seq, *when, *[Cell("")] * 3)
    return LogRow(cells, Cell(""), Cell(said, "cyan"))


def _restored(payload: dict[str, Any]) -> str:
    parts = restored_parts(payload)
    only = "" if parts is None else f", only {', '.join(parts)}"
    return clean(f"to {payload['session']} #{payload['seq']}{only}")
