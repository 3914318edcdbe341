"""mulligan approve."""

from __future__ import annotations

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.effects import effect_row
from mulligan.cli.render.text import echo_columns, print_json
from mulligan.cli.values import json_value, user_name
from mulligan.views.effects import effect_view

EXAMPLE = example(
    "mulligan effects --pending",
    "mulligan approve 3f2a --note 'checked the recipient'",
    "mulligan approve 3f2a --edit '{\"replicas\": 2}'",
)


@click.command("approve", cls=Command, epilog=EXAMPLE)
@click.argument("id")
@click.option("--edit", metavar="JSON", help="Change these fields of the intent.")
@click.option("--note", metavar="TEXT", help="Why.")
@click.pass_obj
def command(call: CliContext, id: str, edit: str | None, note: str | None) -> None:
    """Approve the effect ID, which waits for approval, once.

    ID is its id or the beginning of one. The effect happens when its agent asks for it again.
    """
    changes = None if edit is None else json_value(edit, "--edit")
    approvals = call.open_session().approvals
    effect = approvals.approve(id, edit=changes, note=note, by=user_name())
    if call.json:
        print_json(effect_view(effect))
    elif call.bare:
        click.echo(effect.id)
    else:
        echo_columns([effect_row(effect)])
