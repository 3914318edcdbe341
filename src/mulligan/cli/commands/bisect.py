"""mulligan bisect."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.text import (
    SHORT_ID,
    Cell,
    clean,
    echo_columns,
    local,
    plural,
    print_json,
    to_json,
    verdict_cell,
)
from mulligan.views.bisect import bisect_view

if TYPE_CHECKING:
    from mulligan import Checkpoint, Session
    from mulligan.recovery.bisect import Bisected, Trial

STDERR = 2
"""Where the command's output goes, so that ours stays apart from it."""

EXAMPLE = example(
    "mulligan bisect --good tests-green --bad @latest -- pytest -q",
    "mulligan bisect --good @good --bad @latest --mark -- sh -c 'test -s report.md'",
)


@click.command("bisect", cls=Command, epilog=EXAMPLE)
@click.option("--good", required=True, metavar="POINT", help="A point where everything works.")
@click.option("--bad", required=True, metavar="POINT", help="A later point where it does not.")
@click.option(
    "--mark", is_flag=True, help="Mark the checkpoints tested in between, if one is found."
)
@click.argument("command_line", metavar="-- CMD", nargs=-1, required=True)
@click.pass_obj
def command(
    call: CliContext, good: str, bad: str, mark: bool, command_line: tuple[str, ...]
) -> None:
    """Find the first bad checkpoint between two points by running CMD on their files.

    CMD runs in a scratch directory that holds the files of the checkpoint. The variable
    MULLIGAN_STATE names a JSON file with its state. Exit status 0 means good, 125 skips the
    checkpoint, any other status means bad. Both ends are tested first, then about log2(n) of the n
    checkpoints between them.
    """
    from mulligan.recovery.bisect import Bench, bisect

    session = call.open_session(files=True, recover=False)
    silent = call.json or call.quiet
    output = subprocess.DEVNULL if silent else STDERR
    bench = Bench(session, command_line, os.environ, to_json, output)
    found = bisect(session, good, bad, bench, mark=mark, say=_quiet if silent else _say)
    if call.json:
        print_json(bisect_view(session, found))
    elif call.quiet:
        for suspect in found.suspects:
            click.echo(suspect.id)
    else:
        _print(call, session, found)


def _quiet(trial: Trial) -> None:
    pass


def _say(trial: Trial) -> None:
    taken, shown = trial.checkpoint, verdict_cell(trial.verdict).styled()
    status = f"exit {trial.exit_status}, {trial.seconds:.1f} s"
    click.echo(f"#{taken.seq}  {taken.id[:SHORT_ID]}  {shown}  ({status})", err=True)


def _print(call: CliContext, session: Session, found: Bisected) -> None:
    from mulligan.cli.render.diffs import print_stat

    runs = plural(len(found.trials), "run")
    if found.culprit is None:
        click.echo(f"The first bad checkpoint is one of {len(found.suspects)}, after {runs}:")
    else:
        click.echo(f"The first bad checkpoint, after {runs}:")
    echo_columns([_row(suspect) for suspect in found.suspects])
    click.echo(f"Since the last good one, #{found.last_good.seq}:")
    print_stat(call, session, session.diff(found.last_good, found.suspects[-1]))


def _row(suspect: Checkpoint) -> list[Cell]:
    words = "  ".join(clean(word) for word in (suspect.label, suspect.note) if word)
    return [
        Cell(suspect.id[:SHORT_ID], "yellow"),
        Cell(f"{suspect.session} #{suspect.seq}"),
        Cell(local(suspect.time), dim=True),
        Cell(suspect.kind, "green"),
        Cell(words, bold=True),
    ]
