"""Confirmation before files are replaced: only on a terminal, and only once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext
from mulligan.cli.entry import INTERRUPTED
from mulligan.cli.render.files import some_paths
from mulligan.cli.render.text import Cell, clean, shorten

if TYPE_CHECKING:
    from mulligan.model import OpenFile

DECLINED = 1
WIDEST_COMMAND = 60
UNCHANGED = "Nothing was changed."


def warn_of_open_files(found: Sequence[OpenFile]) -> None:
    """Name each program that uses files or directories about to be replaced or deleted."""
    programs: dict[tuple[int, bool], list[OpenFile]] = {}
    for one in found:
        programs.setdefault((one.pid, one.mode == "cwd"), []).append(one)
    for (pid, is_place), files in programs.items():
        named = some_paths(list(dict.fromkeys(one.path for one in files)))
        who = f"process {pid} ({shorten(clean(files[0].command), WIDEST_COMMAND)})"
        said = f"writes to {named}: what it writes after the restore is lost"
        if is_place:
            said = f"has its working directory in {named}, which will be deleted"
        click.echo(Cell(f"Warning: {who} {said}.", "yellow").styled(), err=True)


def can_ask(call: CliContext) -> bool:
    """Whether there is a terminal to ask on, and a person who reads it."""
    # Both must be terminals: a question into a pipe would block a script forever.
    return not call.json and sys.stdin.isatty() and sys.stdout.isatty()


def confirm(call: CliContext, question: str, *, yes: bool, default: bool = True) -> None:
    """Ask on a terminal, and end the command if the answer is no; scripts are never asked."""
    if yes or not can_ask(call):
        return
    try:
        agreed = click.confirm(question, default=default, err=True)
    except click.Abort:
        click.echo(f"\n{UNCHANGED}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    if not agreed:
        click.echo(UNCHANGED, err=True)
        raise click.exceptions.Exit(DECLINED)
