"""mulligan redo."""

from __future__ import annotations

import click

from mulligan.cli.context import Call, Command, example, files_options, warn_of_agents
from mulligan.cli.restored import print_restored


@click.command("redo", cls=Command, epilog=example("mulligan redo"))
@files_options
@click.pass_obj
def command(call: Call) -> None:
    """Take the last undo back.

    Repeat it to go further forward.
    """
    session = call.open_session(files=True)
    if not call.json:
        warn_of_agents(session)
    with call.working():
        done = session.redo()
    print_restored(call, done)
