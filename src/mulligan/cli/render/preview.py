"""What a restore, an undo or a redo would do, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.confirm import confirm, warn_of_open_files
from mulligan.cli.context import CliContext
from mulligan.cli.render.differences import all_differences, difference_fields, print_differences
from mulligan.cli.render.files import (
    TO_DO,
    change_fields,
    change_lines,
    counted,
    left_out_fields,
    left_out_lines,
    outline,
    some_paths,
)
from mulligan.cli.render.restored import parts_fields, unapplied_fields
from mulligan.cli.render.text import Cell, clean, place, plural, print_json

if TYPE_CHECKING:
    from mulligan import Diff, Session
    from mulligan.model import OpenFile, Plan, UndoMode

BUILDS = "builds may look up to date. --touch gives restored files the present time."
DRY_RUN = "Nothing was changed: this was a dry run."


@dataclass(frozen=True)
class Preview:
    """What would be done to the state and to the files."""

    state: Diff
    files: Plan
    directory: Path | None
    parts: tuple[str, ...] | None
    pending: dict[str, Any] | None = None
    """The restore that was interrupted here, as the JSON contract has it."""

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.state.state or self.state.conversation or self.files)

    @property
    def fields(self) -> dict[str, Any]:
        """The preview as the JSON contract has it."""
        return {
            "changes": difference_fields(all_differences(self.state)),
            "files": [change_fields(change) for change in self.files.files],
            "left_alone": left_out_fields(self.files.left_alone),
            "conflicts": list(self.files.conflicts),
            "caches": list(self.files.caches),
            "builds": list(self.files.builds),
            "open_files": open_file_fields(self.files.open_files),
            "pending": self.pending,
        }


NOT_FORESEEN: dict[str, Any] = {
    "changes": None,
    "files": None,
    "left_alone": None,
    "conflicts": None,
    "caches": None,
    "builds": None,
    "open_files": None,
    "pending": None,
}
"""The same fields where nobody looked before it was done."""


def print_preview(preview: Preview, limit: int | None, *, touch: bool = False) -> None:
    """Print what would change, up to so many lines of state and of files."""
    changes = all_differences(preview.state)
    way = clean(f"the present → {place(preview.state.after)}")
    click.echo(f"{Cell(way, bold=True).styled()}  {plural(len(changes), 'change')} of the state")
    print_differences(changes, limit)
    if preview.directory is not None:
        _print_files(preview, limit)
        if preview.files.builds and not touch:
            named = some_paths([f"{path}/" for path in preview.files.builds])
            click.echo(f"left alone: {named} (ignored); {BUILDS}")


def print_unapplied(call: CliContext, preview: Preview, mode: str, said: str) -> None:
    """Print the end of what was only looked at."""
    if call.json:
        point, problems = preview.state.after, preview.files.problems
        empty = unapplied_fields(point, preview.parts, preview.directory, problems, mode)
        print_json({**empty, **preview.fields})
    elif not call.quiet:
        click.echo(said)


def print_undo(
    call: CliContext,
    session: Session,
    mode: UndoMode,
    *,
    touch: bool,
    pending: dict[str, Any] | None,
) -> None:
    """Print what an undo or a redo would do; see ``Preview.pending``."""
    with call.working():
        foreseen = session.preview(mode)
    parts = parts_fields(foreseen.only, foreseen.workspace)
    named = None if parts is None else tuple(parts)
    preview = Preview(foreseen.state, foreseen.files, call.directory, named, pending)
    if not call.json:
        warn_of_open_files(preview.files.open_files)
    if not call.json and not call.quiet:
        print_preview(preview, None, touch=touch)
    print_unapplied(call, preview, mode, DRY_RUN)


def check_open_files(
    call: CliContext, session: Session, mode: UndoMode, *, yes: bool
) -> list[dict[str, Any]] | None:
    """Name the programs that use what an undo or a redo replaces, and ask; return them as JSON.

    A restore that was begun and not ended is none of that: it is ended first.
    """
    if call.directory is None or session.pending is not None:
        return None
    with call.working():
        found = session.preview(mode).files.open_files
    if found:
        if not call.json:
            warn_of_open_files(found)
        confirm(call, f"{mode.capitalize()}?", yes=yes, default=False)
    return open_file_fields(found)


def open_file_fields(found: Sequence[OpenFile]) -> list[dict[str, Any]]:
    """Return what programs use as the JSON contract has it."""
    return [{"pid": f.pid, "command": f.command, "path": f.path, "mode": f.mode} for f in found]


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
    if problems := preview.files.problems:
        count = plural(len(problems), "path")
        named = some_paths([problem.where for problem in problems])
        said = f"Warning: {count} cannot be brought back, what is there is left alone: {named}"
        click.echo(Cell(said, "yellow").styled(), err=True)
    for conflict in preview.files.conflicts:
        click.echo(Cell(f"Warning: {clean(conflict)}", "yellow").styled(), err=True)
