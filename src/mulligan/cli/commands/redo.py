"""mulligan redo."""

from __future__ import annotations

import click

from mulligan.cli.context import (
    CliContext,
    Command,
    accept_option,
    dry_run_option,
    example,
    files_options,
    touch_option,
    warn_of_agents,
    yes_option,
)
from mulligan.cli.render.pending import undo_or_redo, warn_of_pending
from mulligan.cli.render.preview import print_undo


@click.command("redo", cls=Command, epilog=example("mulligan redo", "mulligan redo --dry-run"))
@dry_run_option
@accept_option
@yes_option
@touch_option
@files_options
@click.pass_obj
def command(call: CliContext, dry_run: bool, accept: bool, yes: bool, touch: bool) -> None:
    """Reverse the last undo.

    Repeat it to go further forward. On a terminal, it asks for confirmation only when programs
    write to files that change. An interrupted undo is reversed from where it stopped; an
    interrupted redo is finished.
    """
    session = call.open_session(files=True, recover=False)
    if not call.json:
        warn_of_agents(session)
    if dry_run:
        warn_of_pending(session)
        print_undo(call, session, "redo", touch=touch)
        return
    undo_or_redo(call, session, "redo", accept=accept, yes=yes, touch=touch)
