"""mulligan log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.files import coverage_text
from mulligan.cli.render.pending import warn_of_pending
from mulligan.cli.render.text import (
    SHORT_ID,
    Cell,
    ago,
    clean,
    echo_columns,
    local,
    print_json,
    verdict_cell,
)
from mulligan.model import Checkpoint
from mulligan.views.log import FORKED, annotations_of, log_page, log_view, restored_parts

if TYPE_CHECKING:
    from mulligan import Session
    from mulligan.views.log import Annotations, Entry, LogPage

DEFAULT_COUNT = 20


@click.command("log", cls=Command, epilog=example("mulligan log", "mulligan log -n 0 --json"))
@click.option(
    "-n",
    "count",
    type=click.IntRange(min=0),
    default=DEFAULT_COUNT,
    show_default=True,
    help="How many lines; 0 for all.",
)
@click.pass_obj
def command(call: CliContext, count: int) -> None:
    """List the checkpoints of a session, newest first, with its restores and forks between."""
    session = call.open_to_look()
    warn_of_pending(session)
    if call.quiet and not call.json:
        _print_ids(session, count)
        return
    page = log_page(session, count)
    if call.json:
        print_json(log_view(session, page))
    else:
        _print(session, page)


def print_entries(session: Session, entries: Sequence[Entry]) -> None:
    """Print the entries of a log for people."""
    known = annotations_of(session)
    echo_columns([_row(entry, known) for entry in entries])


def _print_ids(session: Session, count: int) -> None:
    for checkpoint in session.checkpoints(count or None)[::-1]:
        click.echo(checkpoint.id)


def _print(session: Session, page: LogPage) -> None:
    if not page.entries:
        click.echo(f"Session {session.name!r} has no checkpoint yet.", err=True)
        click.echo("Take one with `mulligan checkpoint`.", err=True)
    print_entries(session, page.entries)
    if page.more:
        click.echo("… there are earlier ones; -n 0 shows all.", err=True)


def _row(entry: Entry, known: Annotations) -> list[Cell]:
    when = [Cell(ago(entry.time), dim=True), Cell(local(entry.time), dim=True)]
    seq = Cell(f"#{entry.seq}", dim=True)
    if isinstance(entry, Checkpoint):
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
