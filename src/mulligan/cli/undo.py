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
    yes_option,
)
from mulligan.cli.preview import NOT_FORESEEN, check_open_files, print_walk
from mulligan.cli.restored import print_restored


@click.command("undo", cls=Command, epilog=example("mulligan undo", "mulligan undo --dry-run"))
@dry_run_option
@yes_option
@touch_option
@files_options
@click.pass_obj
def command(call: Call, dry_run: bool, yes: bool, touch: bool) -> None:
    """Take the last restore back.

    Repeat it to go further back; there is no limit. It asks, on a terminal, only when programs
    write to files that change.
    """
    session = call.open_session(files=True)
    if not call.json:
        warn_of_agents(session)
    if dry_run:
        print_walk(call, session, "undo", touch=touch)
        return
    open_files = check_open_files(call, session, "undo", yes=yes)
    with call.working():
        done = session.undo(touch=touch)
    print_restored(call, done, **{**NOT_FORESEEN, "open_files": open_files})
