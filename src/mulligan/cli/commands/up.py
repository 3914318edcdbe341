"""mulligan up."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mulligan.cli.context import CliContext, Command, example, files_options


@click.command("up", cls=Command, epilog=example("mulligan up team.toml"))
@click.argument("file", metavar="WORKFLOW.toml", type=click.Path())
@files_options
@click.pass_obj
def command(call: CliContext, file: str) -> None:
    """Run the team of agents that a workflow file describes.

    `mulligan help agents` lists its keys. Ctrl-C and SIGTERM pause the team: its agents stop at a
    safe point. An interrupted session is recovered first: orphan processes are ended, and agents
    that were done are not started again. The exit status is 0 when all agents are done, 1 when one
    failed or a task is quarantined, 75 when the team was paused (130 by Ctrl-C).

    With `watch = true` in the file, the conversations of coding agents without hooks are recorded
    as by `mulligan run --watch`.
    """
    import msgspec

    from mulligan.cli.following import followed_directory, following
    from mulligan.cli.teams import exit_code, print_end, run_options
    from mulligan.supervisor.run import load_team, run_team

    workflow = load_team(Path(file), os.environ)
    store, session, root = call.open_for_agents(workflow.session)
    if workflow.workspace is None and root is not None:
        workflow = msgspec.structs.replace(workflow, workspace=str(root))
    followed = None if call.no_files else followed_directory(msgspec.structs.asdict(workflow))
    with run_options(call) as options, following(store, followed):
        outcome = run_team(store, session.name, workflow, options)
    print_end(call, session, outcome)
    click.get_current_context().exit(exit_code(outcome))
