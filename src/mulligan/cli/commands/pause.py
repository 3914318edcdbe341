"""mulligan pause."""

from __future__ import annotations

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.text import SHORT_ID, clean, print_json
from mulligan.cli.requests import Duration, tell_of_late
from mulligan.views.teams import pause_view


@click.command("pause", cls=Command, epilog=example("mulligan pause", "mulligan pause -s nightly"))
@click.option(
    "--timeout",
    type=Duration(),
    default="30s",
    show_default=True,
    help="How long agents have to reach a safe point.",
)
@click.pass_obj
def command(call: CliContext, timeout: float) -> None:
    """Stop every agent of a session at a safe point, and take a checkpoint.

    Returns when they have stopped. An agent that is late gets SIGTERM, then SIGKILL after two
    seconds, and is named. `mulligan resume` continues. Without -s, the running session is paused.
    """
    from mulligan.supervisor.requests import request_pause

    session = call.open_running()
    done = request_pause(session, timeout)
    tell_of_late(call, done)
    if call.json:
        print_json(pause_view(session, done))
    elif call.bare:
        click.echo(done.checkpoint or "")
    else:
        taken = f" at checkpoint {done.checkpoint[:SHORT_ID]}" if done.checkpoint else ""
        click.echo(clean(f"{session.name} is {done.status}{taken}."))
