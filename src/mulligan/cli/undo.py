"""mulligan undo."""

from __future__ import annotations

import click

from mulligan.cli.context import Call, Command, example
from mulligan.cli.restored import print_restored


@click.command("undo", cls=Command, epilog=example("mulligan undo"))
@click.pass_obj
def command(call: Call) -> None:
    """Take the last restore back.

    Repeat it to go further back; there is no limit.
    """
    print_restored(call, call.open_session().undo())
