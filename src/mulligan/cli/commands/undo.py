"""mulligan undo."""

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


@click.command("undo", cls=Command, epilog=example("mulligan undo", "mulligan undo --dry-run"))
@dry_run_option
@accept_option
@yes_option
@touch_option
@files_options
@click.pass_obj
def command(call: CliContext, dry_run: bool, accept: bool, yes: bool, touch: bool) -> None:
    """Undo the last restore.

    Repeat it to go further back; there is no limit. On a terminal, it asks for confirmation only
    when programs write to files that change. An interrupted restore is reversed from where it
    stopped; an interrupted undo is finished.
    """
    session = call.open_session(files=True, recover=False)
    if not call.json:
        warn_of_agents(session)
    if dry_run:
        warn_of_pending(session)
        print_undo(call, session, "undo", touch=touch)
        return
    undo_or_redo(call, session, "undo", accept=accept, yes=yes, touch=touch)
