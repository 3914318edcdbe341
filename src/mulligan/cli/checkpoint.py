"""mulligan checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.agents import Duration
from mulligan.cli.context import Call, Command, create_option, example, files_options
from mulligan.cli.files import coverage_text, without_store
from mulligan.cli.render import SHORT_ID, Cell, checkpoint_fields, columns, print_json

if TYPE_CHECKING:
    from mulligan import Checkpoint

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
@click.option("-m", "--note", help="Why it was taken, in a sentence.")
@click.option("--label", help="A name to find it by.")
@click.option("--team", is_flag=True, help="Have all running agents at a safe point.")
@click.option(
    "--limit",
    type=Duration(),
    default="30s",
    show_default=True,
    help="With --team: how long to wait for them.",
)
@create_option
@files_options
@click.pass_obj
def command(
    call: Call,
    kind: str,
    note: str | None,
    label: str | None,
    team: bool,
    limit: float,
    create: bool,
) -> None:
    """Take a checkpoint of state and files now and print its id.

    The files are those of the directory that holds the store; `.mulliganignore` says which to
    leave out, in the syntax of .gitignore. In a script the id is all that is printed.

    With --team the supervisor takes it once every agent has answered; who was late is in its note.
    """
    if team:
        taken = _of_team(call, limit, given=bool(note or label or kind != "manual"))
    else:
        session = call.open_session(create, files=True)
        with call.working():
            taken = session.checkpoint(kind, note, label)
    if call.json:
        print_json(checkpoint_fields(taken))
    elif call.bare:
        click.echo(taken.id)
    else:
        cells = [Cell(taken.id[:SHORT_ID], "yellow"), Cell(f"{taken.session} #{taken.seq}")]
        click.echo("".join(columns([[*cells, Cell(_summary(taken))]])))


def _of_team(call: Call, limit: float, *, given: bool) -> Checkpoint:
    from mulligan.errors import NotRunning
    from mulligan.supervisor.requests import request_checkpoint

    if given:
        raise click.UsageError("The supervisor says itself what a checkpoint with --team is for.")
    session = call.open_session()
    done = request_checkpoint(session, limit)
    if done.checkpoint is None:
        raise NotRunning("The supervisor could not take a checkpoint.", hint="It says why itself.")
    return session.find_checkpoint(done.checkpoint)


def _summary(taken: Checkpoint) -> str:
    held, left_out = coverage_text(taken.coverage), 0
    if taken.coverage is not None:
        left_out = len(without_store(taken.coverage.left_out))
    parts = [taken.kind, held, f"{left_out:,} left out" if left_out else ""]
    return ", ".join([*filter(None, parts), f"{taken.cost.ms:.1f} ms"])
