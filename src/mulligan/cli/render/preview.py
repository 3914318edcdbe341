"""What a restore, an undo or a redo would do, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.confirm import confirm, warn_of_open_files
from mulligan.cli.context import CliContext
from mulligan.cli.render.differences import is_coding_agent, print_counted, print_differences
from mulligan.cli.render.effects import print_effect_plan
from mulligan.cli.render.files import (
    TO_DO,
    change_lines,
    counted,
    left_out_lines,
    outline,
    some_paths,
    warn_of_conflicts,
)
from mulligan.cli.render.text import Cell, clean, place, plural, print_json
from mulligan.views.diffs import all_differences
from mulligan.views.files import open_file_views
from mulligan.views.restores import preview_undo, unapplied_view

if TYPE_CHECKING:
    from mulligan import Session
    from mulligan.model import UndoMode
    from mulligan.views.restores import Preview

BUILDS = "builds may look up to date. --touch gives restored files the present time."
PREVIEW = 20
"""How many lines of a preview are shown for state and for files, without --verbose."""

DRY_RUN = "Nothing was changed: this was a dry run."


def print_preview(
    preview: Preview, limit: int | None, *, touch: bool = False, verbose: bool = False
) -> None:
    """Print what would change, with a limit on the lines for state and for files.

    What hooks record of a coding agent is counted by its part, unless it is ``verbose``.
    """
    changes = all_differences(preview.state)
    way = clean(f"the present → {place(preview.state.after)}")
    click.echo(f"{Cell(way, bold=True).styled()}  {plural(len(changes), 'change')} of the state")
    if not verbose and is_coding_agent(changes):
        changes = print_counted(changes)
    print_differences(changes, limit)
    if preview.effects:
        print_effect_plan(preview.effects)
    if preview.directory is not None:
        _print_files(preview, limit)
        if preview.files.builds and not touch:
            named = some_paths([f"{path}/" for path in preview.files.builds])
            click.echo(f"left alone: {named} (ignored); {BUILDS}")


def print_unapplied(call: CliContext, preview: Preview, mode: str, said: str) -> None:
    """Print that a dry run changed nothing."""
    if call.json:
        print_json(unapplied_view(preview, mode))
    elif not call.quiet:
        click.echo(said)


def print_undo(call: CliContext, session: Session, mode: UndoMode, *, touch: bool) -> None:
    """Print what an undo or a redo would do."""
    with call.working():
        preview = preview_undo(session, mode, call.directory)
    if not call.json:
        warn_of_open_files(preview.files.open_files)
    if not call.json and not call.quiet:
        print_preview(preview, None, touch=touch)
    print_unapplied(call, preview, mode, DRY_RUN)


def show_and_check(
    call: CliContext, session: Session, mode: UndoMode, *, yes: bool, touch: bool
) -> list[dict[str, Any]] | None:
    """Print what an undo or a redo takes back, and ask if programs use files that it replaces.

    Return these programs as JSON. A pending restore is not looked at: it is finished first.
    """
    is_shown = not call.json and not call.quiet
    if session.files.pending is not None or not (is_shown or call.directory):
        return None
    with call.working():
        preview = preview_undo(session, mode, call.directory)
    if is_shown:
        print_preview(preview, PREVIEW, touch=touch)
    elif not call.json:
        warn_of_conflicts(preview.files.conflicts)
    if call.directory is None:
        return None
    if found := preview.files.open_files:
        if not call.json:
            warn_of_open_files(found)
        confirm(call, f"{mode.capitalize()}?", yes=yes, default=False)
    return open_file_views(found)


def _print_files(preview: Preview, limit: int | None) -> None:
    changes = outline(preview.files.files)
    if changes:
        title = Cell(f"files in {clean(str(preview.directory))}", bold=True).styled()
        click.echo(f"{title}  {counted(changes.listed, TO_DO)}".rstrip())
    for line in change_lines(changes.listed, limit):
        click.echo(line)
    for aside in changes.asides:
        click.echo(Cell(f"and {aside}", dim=True).styled())
    if preview.files.caches:
        count = plural(len(preview.files.caches), "path")
        said = f"{count} of caches to remove, which their tools make again: "
        click.echo(Cell(said + some_paths(preview.files.caches), dim=True).styled())
    if (
        left := left_out_lines(preview.files.left_alone)
        if changes or preview.files.problems
        else []
    ):
        click.echo(Cell("left alone, because no checkpoint holds it:", dim=True).styled())
        for line in left:
            click.echo(f"  {line}")
    for purged in preview.files.purged:
        said = f"Warning: {purged.path} is left as it is: its content was {purged.rule}."
        click.echo(Cell(clean(said), "yellow").styled(), err=True)
    if problems := preview.files.problems:
        count = plural(len(problems), "path")
        named = some_paths([problem.where for problem in problems])
        said = f"Warning: {count} cannot be restored; what is there is left alone: {named}"
        click.echo(Cell(said, "yellow").styled(), err=True)
    # Changes of other sessions matter only to files that this restore would change.
    warn_of_conflicts(preview.files.conflicts if preview.files else ())
