"""mulligan undo."""

from __future__ import annotations

import click

from mulligan.cli.context import (
    Call,
    Command,
    dry_run_option,
    example,
    files_options,
    touch_option,
    warn_of_agents,
)
from mulligan.cli.preview import NOT_FORESEEN, print_walk
from mulligan.cli.restored import print_restored


@click.command("undo", cls=Command, epilog=example("mulligan undo", "mulligan undo --dry-run"))
@dry_run_option
@touch_option
@files_options
@click.pass_obj
def command(call: Call, dry_run: bool, touch: bool) -> None:
    """Take the last restore back.

    Repeat it to go further back; there is no limit.
    """
    session = call.open_session(files=True)
    if not call.json:
        warn_of_agents(session)
    if dry_run:
        print_walk(call, session, "undo", touch=touch)
        return
    with call.working():
        done = session.undo(touch=touch)
    print_restored(call, done, **NOT_FORESEEN)
