"""mulligan checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, create_option, example, files_options
from mulligan.cli.render.files import coverage_text, without_store
from mulligan.cli.render.text import SHORT_ID, Cell, clean, columns, print_json, size
from mulligan.cli.requests import Duration, tell_of_late
from mulligan.cli.upkeep import start_upkeep
from mulligan.views.checkpoints import checkpoint_view, team_checkpoint_view

if TYPE_CHECKING:
    from mulligan import Checkpoint, Session
    from mulligan.errors import MulliganError
    from mulligan.supervisor.requests import Answer

SAFE_POINT_SECONDS = 30.0
"""Default time for a team to reach a safe point, in seconds."""

EXAMPLE = example(
    "mulligan checkpoint -m 'before the refactoring'",
    "id=$(mulligan checkpoint --label tests-green)",
)


@click.command("checkpoint", cls=Command, epilog=EXAMPLE)
@click.option(
    "-k",
    "--kind",
    default="manual",
    show_default=True,
    help="routine, pre_operation, recovery, manual, or one of your own.",
)
@click.option("-m", "--note", help="Why it was taken, in one sentence.")
@click.option("--label", help="Name it; a label already in use moves here.")
@click.option(
    "--if-changed", is_flag=True, help="Take none if the latest one holds the same; print that."
)
@click.option("--team", is_flag=True, help="Wait until all running agents are at a safe point.")
@click.option(
    "--limit",
    type=Duration(),
    help="With --team: how long to wait for them; default 30s.",
)
@create_option
@files_options
@click.pass_obj
def command(
    call: CliContext,
    kind: str,
    note: str | None,
    label: str | None,
    if_changed: bool,
    team: bool,
    limit: float | None,
    create: bool,
) -> None:
    """Take a checkpoint of state and files now and print its id.

    It covers the files of the session's directory, except those that `.mulliganignore` lists (in
    .gitignore syntax). In a script, only the id is printed.

    With --team, the supervisor takes it once every agent has answered; its note names late agents.
    Without -s, --team uses the running session.
    """
    answer: Answer | None = None
    session: Session | None = None
    if if_changed and (team or label is not None):
        raise click.UsageError("--if-changed goes with neither --team nor --label.")
    if team:
        taken, answer = _of_team(
            call, SAFE_POINT_SECONDS if limit is None else limit, kind, note, label
        )
    elif limit is not None:
        raise click.UsageError("--limit is how long to wait for a team: it goes with --team.")
    else:
        session = call.open_session(create, files=True)
        taken = _of_session(call, session, kind, note, label, if_changed=if_changed)
    if call.json:
        print_json(team_checkpoint_view(taken, answer) if answer else checkpoint_view(taken))
    elif call.bare:
        click.echo(taken.id)
    else:
        cells = [Cell(taken.id[:SHORT_ID], "yellow"), Cell(f"{taken.session} #{taken.seq}")]
        click.echo("".join(columns([[*cells, Cell(_summary(taken))]])))
    if session is not None:
        start_upkeep(session, call.store_path)
    # After the id is printed: the checkpoint exists, but a script must not rely on its files.
    if taken.coverage is not None and taken.coverage.refused is not None:
        raise _without_files(taken.coverage.refused, call.store_path)


def _without_files(why: str, store: str) -> MulliganError:
    """Return the error of a checkpoint that holds no files because the store may not grow."""
    import shutil  # slow to import, and seldom needed

    from mulligan.errors import DiskFull, QuotaExceeded
    from mulligan.storage_limit import QUOTA_REACHED

    if why.startswith(QUOTA_REACHED):
        return QuotaExceeded(f"The checkpoint holds no files: {why}.")
    free = size(shutil.disk_usage(store).free)
    return DiskFull(
        "The checkpoint holds no files: they do not fit on the disk of the store, which now has "
        f"{free} free and keeps a part of it in reserve.",
        hint="It holds the state, and earlier checkpoints are whole. `mulligan prune` makes room, "
        "and `mulligan du` shows what takes it; then take the checkpoint again.",
    )


def _of_session(
    call: CliContext,
    session: Session,
    kind: str,
    note: str | None,
    label: str | None,
    *,
    if_changed: bool,
) -> Checkpoint:
    """Take a checkpoint, and say on standard error what is not obvious from its id."""
    # Looked up before the checkpoint takes the label over.
    before = None if label is None else session.checkpoints.labels().get(label)
    last = session.head.seq
    with call.working():
        taken = session.checkpoint(kind, note, label, if_changed=if_changed)
    if taken.seq <= last and not call.quiet:
        said = f"Nothing has changed since the checkpoint #{taken.seq}, so none was taken."
        click.echo(said, err=True)
    if before is not None and not call.quiet:
        said = f"The label {label} moved here from #{before.seq} of {before.session}."
        click.echo(clean(said), err=True)
    return taken


def _of_team(
    call: CliContext, limit: float, kind: str, note: str | None, label: str | None
) -> tuple[Checkpoint, Answer]:
    from mulligan.errors import NotRunning
    from mulligan.supervisor.requests import request_checkpoint

    session = call.open_running()
    done = request_checkpoint(session, limit, kind=kind, note=note, label=label)
    tell_of_late(call, done)
    if done.checkpoint is None:
        raise NotRunning(
            "The supervisor could not take a checkpoint.", hint="Its own output says why."
        )
    return session.checkpoints.at(done.checkpoint), done


def _summary(taken: Checkpoint) -> str:
    held, left_out, torn = coverage_text(taken.coverage), 0, 0
    if taken.coverage is not None:
        left_out = len(without_store(taken.coverage.left_out))
        torn = sum(found.torn for found in taken.coverage.changing)
    parts = [taken.kind, held, f"{left_out:,} left out" if left_out else ""]
    parts += [f"{torn:,} torn" if torn else ""]
    return ", ".join([*filter(None, parts), f"{taken.cost.ms:.1f} ms"])
