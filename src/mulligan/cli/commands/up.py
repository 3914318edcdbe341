"""mulligan up."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mulligan.cli.context import CliContext, Command, example, files_options
from mulligan.cli.teams import exit_code, print_end, supervise_team


@click.command("up", cls=Command, epilog=example("mulligan up team.toml"))
@click.argument("file", metavar="WORKFLOW.toml")
@files_options
@click.pass_obj
def command(call: CliContext, file: str) -> None:
    """Run the team of agents that a workflow file describes.

    `mulligan help agents` lists its keys. Ctrl-C and SIGTERM pause the team: its agents stop at a
    safe point. A session that was interrupted is taken over where it was: processes that are left
    are ended first, agents that were done stay so.
    """
    import msgspec

    from mulligan.supervisor.preflight import preflight
    from mulligan.supervisor.workflow import load

    workflow = load(Path(file))
    preflight(workflow, Path(file), os.environ)
    store, session, root = call.open_for_agents(workflow.session)
    place = workflow.workspace or (None if root is None else str(root))
    workflow = msgspec.structs.replace(
        workflow, session=session.name, workspace=None if call.no_files else place
    )
    status = supervise_team(call, store, session, workflow)
    print_end(call, session, workflow, status)
    click.get_current_context().exit(exit_code(session, None, status))
