"""mulligan log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.files import coverage_text
from mulligan.cli.render.log_lines import LogRow, fitted
from mulligan.cli.render.pending import pending_fields, warn_of_pending
from mulligan.cli.render.restored import parts_fields
from mulligan.cli.render.text import (
    SHORT_ID,
    Cell,
    ago,
    checkpoint_fields,
    clean,
    local,
    print_json,
    terminal_width,
    verdict_cell,
)

if TYPE_CHECKING:
    from mulligan import Checkpoint, Event, Session, Store

    Entry = Checkpoint | Event

RESTORED = "restore.applied"
FORKED = "session.forked"
DEFAULT_COUNT = 20
SHOWN_SESSIONS = 5


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
    store = call.open_store(read_only=True)
    session = call.open_session(store=store)
    warn_of_pending(session)
    if call.quiet and not call.json:
        _print_ids(session, count)
        return
    entries, earlier = history(session, count)
    if call.json:
        known = _known(session)
        listed = [_fields(entry, known) for entry in entries]
        pending = pending_fields(session)
        fields = {"session": session.name, "entries": listed, "more": earlier}
        print_json({**fields, "pending": pending})
    else:
        _print(store, session, entries, earlier)


class Known(NamedTuple):
    """What is known of checkpoints beside their own records, by their ids and labels."""

    verdicts: dict[str, str]
    labels: dict[str, str | None]


def _known(session: Session) -> Known:
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
    """Print the entries of a log for people; on a terminal they fit, and labels are never cut."""
    known = _known(session)
    for line in fitted([_row(entry, known) for entry in entries], terminal_width()):
        click.echo(line)


def _print_ids(session: Session, count: int) -> None:
    newest = session.checkpoints()[::-1]
    for checkpoint in newest[: count or None]:
        click.echo(checkpoint.id)


def _tell_of_others(store: Store, session: Session) -> None:
    """Name the sessions that the user may have looked for."""
    others = [other.name for other in store.sessions() if other.name != session.name]
    if others:
        more = ", …" if len(others) > SHOWN_SESSIONS else ""
        said = ", ".join(others[:SHOWN_SESSIONS]) + more
        click.echo(clean(f"Other sessions: {said}; `mulligan log -s NAME` shows one."), err=True)


def _print(store: Store, session: Session, entries: Sequence[Entry], earlier: bool) -> None:
    if not entries:
        click.echo(f"Session {session.name!r} has no checkpoint yet.", err=True)
        click.echo("Take one with `mulligan checkpoint`.", err=True)
        _tell_of_others(store, session)
    print_entries(session, entries)
    if earlier:
        click.echo("… there are earlier ones; -n 0 shows all.", err=True)


def _is_event(entry: Entry) -> bool:
    return hasattr(entry, "payload")


def _row(entry: Any, known: Known) -> LogRow:
    when = [Cell(ago(entry.time), dim=True), Cell(local(entry.time), dim=True)]
    seq = Cell(f"#{entry.seq}", dim=True)
    if not _is_event(entry):
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
    parts = _parts(payload)
    only = "" if parts is None else f", only {', '.join(parts)}"
    return clean(f"to {payload['session']} #{payload['seq']}{only}")


def _parts(payload: dict[str, Any]) -> list[str] | None:
    """Return the parts of state and workspace that were brought back; None for everything."""
    from mulligan.workspace.entries import shown

    files = payload.get("files")
    paths = () if files is None else files["only"]
    texts = None if paths is None else [shown(tuple(path)) for path in paths]
    return parts_fields(payload["only"], texts)


def _fields(entry: Any, known: Known) -> dict[str, Any]:
    if not _is_event(entry):
        own = checkpoint_fields(entry, known.verdicts.get(entry.id))
        return {"type": "checkpoint", **own, "label_at": known.labels.get(entry.label)}
    base = {"seq": entry.seq, "timestamp": entry.time, "actor": entry.actor}
    source = {"session": entry.payload["session"], "seq": entry.payload["seq"]}
    if entry.kind == FORKED:
        return {"type": "fork", **base, "from": source}
    parts = _parts(entry.payload)
    return {"type": "restore", **base, "mode": entry.payload["mode"], "to": source, "only": parts}
