"""mulligan log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.log import (
    FORKED,
    Known,
    history,
    is_event,
    known_of,
    print_entries,
    restored_parts,
)
from mulligan.cli.render.pending import pending_fields, warn_of_pending
from mulligan.cli.render.text import checkpoint_fields, print_json

if TYPE_CHECKING:
    from mulligan import Session
    from mulligan.cli.render.log import Entry

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
    entries, earlier = history(session, count)
    if call.json:
        known = known_of(session)
        listed = [_fields(entry, known) for entry in entries]
        pending = pending_fields(session)
        fields = {"session": session.name, "entries": listed, "more": earlier}
        print_json({**fields, "pending": pending})
    else:
        _print(session, entries, earlier)


def _print_ids(session: Session, count: int) -> None:
    newest = session.checkpoints()[::-1]
    for checkpoint in newest[: count or None]:
        click.echo(checkpoint.id)


def _print(session: Session, entries: Sequence[Entry], earlier: bool) -> None:
    if not entries:
        click.echo(f"Session {session.name!r} has no checkpoint yet.", err=True)
        click.echo("Take one with `mulligan checkpoint`.", err=True)
    print_entries(session, entries)
    if earlier:
        click.echo("… there are earlier ones; -n 0 shows all.", err=True)


def _fields(entry: Any, known: Known) -> dict[str, Any]:
    if not is_event(entry):
        own = checkpoint_fields(entry, known.verdicts.get(entry.id))
        return {"type": "checkpoint", **own, "label_at": known.labels.get(entry.label)}
    base = {"seq": entry.seq, "timestamp": entry.time, "actor": entry.actor}
    source = {"session": entry.payload["session"], "seq": entry.payload["seq"]}
    if entry.kind == FORKED:
        return {"type": "fork", **base, "from": source}
    parts = restored_parts(entry.payload)
    return {"type": "restore", **base, "mode": entry.payload["mode"], "to": source, "only": parts}
