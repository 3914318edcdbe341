"""The differences between two points, with the changed lines of files, as text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext
from mulligan.cli.render.differences import print_differences
from mulligan.cli.render.files import DIFFERS, Outline, change_lines, counted, details, outline
from mulligan.cli.render.terminal import style
from mulligan.cli.render.text import (
    GAP,
    Cell,
    clean,
    echo_columns,
    place,
    plural,
    size,
    terminal_width,
)
from mulligan.views.diffs import all_differences

if TYPE_CHECKING:
    from mulligan import Diff, Session
    from mulligan.model import FileChange
    from mulligan.views.file_diffs import FileContents, FileDiff

MAX_LINES_PER_FILE = 60
MAX_LINES = 600
"""How many lines of unified diffs are shown without ``--full``."""

MIN_PATH_CHARACTERS = 20
INDENT = "  "

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True)
class Style:
    """How much to show."""

    stat: bool
    name_only: bool
    full: bool
    patch: bool


def contents_of(call: CliContext, session: Session, found: Diff, after: str | None) -> FileContents:
    """Return readers for the files of both sides of a diff."""
    from mulligan.views.file_diffs import FileContents

    other = None if after is None else found.after
    return FileContents(session, found.before, other, call.directory or Path())


def print_stat(call: CliContext, session: Session, found: Diff) -> None:
    """Print what differs between two points, with the number of changed lines per file."""
    contents = contents_of(call, session, found, str(found.after.seq))
    style = Style(stat=True, name_only=False, full=False, patch=False)
    print_diff(found, contents, style, to_present=False)


def print_diff(found: Diff, contents: FileContents, style: Style, *, to_present: bool) -> None:
    """Print what differs, in the requested style."""
    end = f"the present, {place(found.after)}" if to_present else place(found.after)
    click.echo(Cell(clean(f"{place(found.before)} → {end}"), bold=True).styled())
    print_differences(all_differences(found))
    changes = outline(found.files, full=style.full)
    if style.stat:
        _print_stat(changes, contents, full=style.full)
    else:
        _print_changes(changes, contents, full=style.full)
    if not found:
        click.echo("Nothing differs.")


def _print_changes(changes: Outline, contents: FileContents, *, full: bool) -> None:
    """Print each file with its diff, up to the line limit."""
    left = MAX_LINES
    for change in changes.listed:
        click.echo("".join(change_lines([change])))
        if full or left > 0:
            patch = contents.patch(change, full=full)
            left -= _print_patch(patch, None if full else min(left, MAX_LINES_PER_FILE))
    _print_total(changes)
    if left <= 0 and not full:
        click.echo("… not all diffs are shown; --full shows them, --stat counts them.", err=True)


def _print_patch(patch: FileDiff, limit: int | None) -> int:
    """Print the lines of a patch up to a limit; return how many were printed."""
    if patch.why_not == "too_large":
        click.echo(f"  too large to compare ({size(patch.size)}); --full may help")
    elif patch.why_not == "unreadable":
        click.echo(f"  not readable now ({clean(patch.problem)}); --full may help")
    shown = patch.lines[:limit]
    for line in shown:
        text = line.removesuffix("\r")  # the line feed goes after the end of the colour
        click.echo(style(text, fg=_COLOURS.get(line[:1])) + line[len(text) :])
    if len(shown) < len(patch.lines):
        more = plural(len(patch.lines) - len(shown), "line")
        click.echo(Cell(f"… {more} more; --full shows them", dim=True).styled())
    return len(shown)


def _print_stat(changes: Outline, contents: FileContents, *, full: bool) -> None:
    patches = [contents.patch(change, full=full) for change in changes.listed]
    rows = [_stat_row(*pair) for pair in zip(changes.listed, patches, strict=True)]
    echo_columns(_fitted(rows, terminal_width()))
    added, removed = (sum(getattr(p, name) for p in patches) for name in ("added", "removed"))
    _print_total(changes, f"; {plural(added, 'line')} added, {removed:,} removed")


def _print_total(changes: Outline, lines: str = "") -> None:
    if changes.listed:
        said = f"files: {counted(changes.listed, DIFFERS)}{lines}"
        click.echo(Cell(said, bold=True).styled())
    for aside in changes.asides:
        click.echo(Cell(f"not shown: {aside}; --full shows them", dim=True).styled())


def _fitted(rows: list[list[Cell]], width: int | None) -> list[list[Cell]]:
    """Return rows whose paths leave room for the counts; a path keeps its end."""
    if width is None or not rows:
        return rows
    counts = sum(max(len(row[i].text) for row in rows) + len(GAP) for i in (1, 2))
    room = max(MIN_PATH_CHARACTERS, width - counts)
    return [[_path_cell(row[0], room), *row[1:]] for row in rows]


def _path_cell(cell: Cell, room: int) -> Cell:
    path = cell.text.removeprefix(INDENT)
    most = room - len(INDENT)
    return cell if len(path) <= most else Cell(f"{INDENT}…{path[1 - most :]}")


def _stat_row(change: FileChange, patch: FileDiff) -> list[Cell]:
    said = details(change) if patch.why_not or not patch.lines else ""
    name = clean(change.path) + ("/" if change.kind == "directory" else "")
    return [
        Cell(f"{INDENT}{name}"),
        Cell(f"+{patch.added}" if patch.added else "", "green"),
        Cell(f"-{patch.removed}" if patch.removed else "", "red"),
        Cell(said, dim=True),
    ]
