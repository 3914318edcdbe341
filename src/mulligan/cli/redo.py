"""mulligan redo."""

from __future__ import annotations

import click

from mulligan.cli.context import Call, Command, example
from mulligan.cli.restored import print_restored


@click.command("redo", cls=Command, epilog=example("mulligan redo"))
@click.pass_obj
def command(call: Call) -> None:
    """Take the last undo back.

    Repeat it to go further forward.
    """
    print_restored(call, call.open_session().redo())
