"""mulligan drill."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, example, files_options
from mulligan.cli.render.progress import ProgressLine, can_show_progress
from mulligan.cli.render.text import (
    SHORT_ID,
    Cell,
    clean,
    fields,
    plural,
    print_json,
    size,
    to_json,
)
from mulligan.cli.requests import Duration
from mulligan.errors import DrillFailed
from mulligan.upkeep.recorded import first_problem
from mulligan.views.drill import drill_view

if TYPE_CHECKING:
    from mulligan import Session
    from mulligan.upkeep.drill.record import CommandRun, DrillResult, Loss

STDERR = 2
"""Where the commands print, so that ours stays apart from it."""

BACKGROUND_NICENESS = 10
"""How far a drill beside a running team stands back."""


@click.command("drill", cls=Command, epilog=example("mulligan drill", "mulligan drill @good"))
@click.argument("point", metavar="[POINT]", required=False, default="@latest")
@click.option(
    "--scratch",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write the files into a new directory in DIR, not in the store.",
)
@click.option(
    "--timeout",
    type=Duration(),
    help="End a command after this time; 60s unless the workflow says otherwise.",
)
@click.option("--background", is_flag=True, hidden=True)
@files_options
@click.pass_obj
def command(
    call: CliContext, point: str, scratch: Path | None, timeout: float | None, background: bool
) -> None:
    """Try out whether POINT, or the newest checkpoint, can be brought back.

    Restores the files into a scratch directory and compares each with its digest; rebuilds the
    state from keyframes and from the first event and compares both; then runs the `drill` and
    `health` commands of the session's workflow in the scratch directory, with MULLIGAN_DRILL=1.
    Measures how long a recovery takes, and what would be lost now. The workspace is not touched.

    The result is an event, and `mulligan status` shows the last one. The exit code is 102 when
    something did not come back.
    """
    from mulligan.supervisor.drills import drill_session

    if background:
        os.nice(BACKGROUND_NICENESS)
    session = _open(call)
    silent = call.json or call.quiet
    line = ProgressLine() if can_show_progress() and not silent else None
    try:
        result = drill_session(
            session,
            point,
            variables=os.environ,
            timeout=timeout,
            scratch=scratch,
            output=subprocess.DEVNULL if silent else STDERR,
            encode=to_json,
            progress=lambda what: line.show(clean(what)) if line else None,
        )
    finally:
        if line is not None:
            line.clear()
    _show(call, result)


def _open(call: CliContext) -> Session:
    """Open the session with the files of its team, or else of the project."""
    from mulligan.supervisor.drills import team_workspace

    store = call.open_store()
    session = call.open_session(store=store)
    root = None if call.no_files else team_workspace(session)
    if root is None:
        return call.open_session(files=True, recover=False, store=store)
    # A team has run there, so the directory was accepted before.
    opened = store.session(
        session.name, False, actor=session.actor, workspace=root, force=True, recover=False
    )
    click.get_current_context().call_on_close(opened.close)
    return opened


def _show(call: CliContext, result: DrillResult) -> None:
    if call.json:
        print_json(drill_view(result))
        if not result.ok:
            raise click.exceptions.Exit(DrillFailed.exit_code)
        return
    if not call.quiet:
        _print(result)
    if result.leftover is not None:
        said = f"Warning: {result.leftover} could not be removed; the next drill tries again."
        click.echo(clean(said), err=True)
    if not result.ok:
        raise DrillFailed(clean(f"The drill of #{result.seq} failed: {first_problem(result)}."))


def _print(result: DrillResult) -> None:
    for problem in result.problems:
        what = Cell(f"✗ {problem.what}", "red").styled()
        click.echo(f"{what}  {clean(problem.where)}: {clean(problem.detail)}")
    if result.ok:
        named = f"#{result.seq}" + (
            f" ({result.checkpoint[:SHORT_ID]})" if result.checkpoint else ""
        )
        click.echo(f"{Cell('✓', 'green').styled()} {named} can be brought back.")
    pairs = [
        ("files", f"{plural(result.files, 'file')}, {size(result.file_bytes)}, compared"),
        ("state", _state(result)),
        *((f"{made.kind} of {clean(made.agent)}", _outcome(made)) for made in result.commands),
        ("recovery time", f"{result.recovery_seconds:.2f} s"),
        ("lost now", _lost(result.loss)),
    ]
    fields(pairs)


def _state(result: DrillResult) -> str:
    events, keyframes = plural(result.events, "event"), plural(result.keyframes, "keyframe")
    return f"{events} replayed, {keyframes} compared"


def _outcome(made: CommandRun) -> str:
    status = "no exit status" if made.exit_status is None else f"exit {made.exit_status}"
    return f"{status}, {made.seconds:.1f} s"


def _lost(loss: Loss) -> str:
    if loss.checkpoint is None or loss.age_seconds is None:
        return "everything: there is no checkpoint"
    paths = "" if loss.paths is None else f"{plural(loss.paths, 'changed path')}, "
    since = f"since {loss.checkpoint[:SHORT_ID]}, {loss.age_seconds:,.0f} s ago"
    return f"{paths}{plural(loss.events, 'event')} {since}"
