"""mulligan log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.log import folds_text, print_entries
from mulligan.cli.render.pending import warn_of_pending
from mulligan.cli.render.text import Cell, clean, print_json
from mulligan.views.log import log_page, log_view

if TYPE_CHECKING:
    from mulligan import Session, Store
    from mulligan.views.log import LogPage

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
    page = log_page(session, count)
    if call.json:
        print_json(log_view(session, page))
    else:
        _print(store, session, page)


def _print_ids(session: Session, count: int) -> None:
    for checkpoint in session.checkpoints(count or None)[::-1]:
        click.echo(checkpoint.id)


def _tell_of_others(store: Store, session: Session) -> None:
    """Name other sessions that the user may have meant."""
    others = [other.name for other in store.sessions() if other.name != session.name]
    if others:
        more = ", …" if len(others) > SHOWN_SESSIONS else ""
        said = ", ".join(others[:SHOWN_SESSIONS]) + more
        click.echo(clean(f"Other sessions: {said}; `mulligan log -s NAME` shows one."), err=True)


def _print(store: Store, session: Session, page: LogPage) -> None:
    if not page.entries:
        click.echo(f"Session {session.name!r} has no checkpoint yet.", err=True)
        if session.head.seq > 1:
            click.echo("`mulligan events` lists what it recorded.", err=True)
        click.echo("Take one with `mulligan checkpoint`.", err=True)
        _tell_of_others(store, session)
    print_entries(session, page.entries)
    if page.folds:
        click.echo(Cell(folds_text(page.folds), dim=True).styled())
    if page.more:
        click.echo("… there are earlier ones; -n 0 shows all.", err=True)
