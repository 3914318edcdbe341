"""mulligan log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.log import print_entries
from mulligan.cli.render.pending import warn_of_pending
from mulligan.cli.render.text import print_json
from mulligan.views.log import log_page, log_view

if TYPE_CHECKING:
    from mulligan import Session
    from mulligan.views.log import LogPage

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
