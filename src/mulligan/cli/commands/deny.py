"""mulligan deny."""

from __future__ import annotations

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.effects import effect_row
from mulligan.cli.render.text import echo_columns, print_json
from mulligan.cli.values import user_name
from mulligan.views.effects import effect_view


@click.command("deny", cls=Command, epilog=example("mulligan deny 3f2a --note 'not on Fridays'"))
@click.argument("id")
@click.option("--note", metavar="TEXT", help="Why; its agent is told.")
@click.pass_obj
def command(call: CliContext, id: str, note: str | None) -> None:
    """Deny the effect ID, which waits for approval.

    ID is its id or the beginning of one. Its agent gets an error, and the effect does not happen.
    """
    effect = call.open_session().approvals.deny(id, note=note, by=user_name())
    if call.json:
        print_json(effect_view(effect))
    elif call.bare:
        click.echo(effect.id)
    else:
        echo_columns([effect_row(effect)])
