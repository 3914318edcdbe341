"""mulligan undo."""

from __future__ import annotations

import click

from mulligan.cli.context import Call, Command, example, files_options, warn_of_agents
from mulligan.cli.restored import print_restored


@click.command("undo", cls=Command, epilog=example("mulligan undo"))
@files_options
@click.pass_obj
def command(call: Call) -> None:
    """Take the last restore back.

    Repeat it to go further back; there is no limit.
    """
    session = call.open_session(files=True)
    if not call.json:
        warn_of_agents(session)
    with call.working():
        done = session.undo()
    print_restored(call, done)
