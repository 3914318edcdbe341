"""mulligan diff."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import CliContext, Command, example, files_options
from mulligan.cli.parts import parts_from_here
from mulligan.cli.render.differences import all_differences, difference_fields, print_differences
from mulligan.cli.render.files import (
    DIFFERS,
    Outline,
    change_fields,
    change_lines,
    counted,
    details,
    outline,
)
from mulligan.cli.render.pending import pending_fields, warn_of_pending
from mulligan.cli.render.terminal import style
from mulligan.cli.render.text import (
    Cell,
    clean,
    echo_columns,
    place,
    plural,
    point_fields,
    print_json,
)

if TYPE_CHECKING:
    from mulligan import Diff, Session
    from mulligan.cli.render.file_diffs import FileContents, FileDiff
    from mulligan.model import FileChange

MAX_LINES_PER_FILE = 60
MAX_LINES = 600
"""How many lines of unified diffs are shown unless all are asked for."""

EXAMPLE = example(
    "mulligan diff @latest",
    "mulligan diff @latest --stat",
    "mulligan diff tests-green main-fork-1:@latest --only src",
)
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True)
class Style:
    """How much is to be shown."""

    stat: bool
    name_only: bool
    full: bool
    patch: bool


@click.command("diff", cls=Command, epilog=EXAMPLE)
@click.argument("before", metavar="A")
@click.argument("after", metavar="[B]", required=False)
@click.option(
    "--only", multiple=True, metavar="PART", help="Only this: memory, workspace, src/app.py."
)
@click.option("--stat", is_flag=True, help="Count the lines of each file instead.")
@click.option("--name-only", is_flag=True, help="Only the paths of files, one a line.")
@click.option("--full", is_flag=True, help="Show all: long diffs, large files, .git, times.")
@click.option("--patch", is_flag=True, help="With --json: the text diffs, too.")
@files_options
@click.pass_obj
def command(
    call: CliContext, /, before: str, after: str | None, only: tuple[str, ...], **style: bool
) -> None:
    """Show what differs in state, conversation and files from A to B; to the present, without B.

    Files are compared where both have them: A and B, if a checkpoint at or before them holds
    files, and the present. Text is shown as a unified diff, anything else by its size.
    """
    shown = _checked(Style(**style), call.json)
    session = call.open_session(files=True, recover=False)
    warn_of_pending(session)
    with call.working():
        places = (session.point(before), session.head if after is None else session.point(after))
        parts = parts_from_here(only, call.directory, session, places)
        found = session.diff(before, after, parts)
    contents = _contents(call, session, found, after)
    if call.json:
        print_json({**_fields(found, contents, shown), "pending": pending_fields(session)})
    elif call.quiet or shown.name_only:
        _print_names(found, files_only=shown.name_only, full=shown.full)
    else:
        _print(found, contents, shown, to_present=after is None)
        _explain_missing_files(call, session, found, after)


def print_stat(call: CliContext, session: Session, found: Diff) -> None:
    """Print what differs between two points, the files with how many lines of each."""
    contents = _contents(call, session, found, str(found.after.seq))
    style = Style(stat=True, name_only=False, full=False, patch=False)
    _print(found, contents, style, to_present=False)


def _checked(style: Style, as_json: bool) -> Style:
    if style.stat and style.name_only:
        raise click.UsageError("--stat and --name-only exclude each other.")
    if style.patch and not as_json:
        raise click.UsageError("--patch is for --json; without it text diffs are shown anyway.")
    return style


def _contents(call: CliContext, session: Session, found: Diff, after: str | None) -> FileContents:
    from mulligan.cli.render.file_diffs import FileContents

    other = None if after is None else found.after
    return FileContents(session, found.before, other, call.directory or Path())


def _fields(found: Diff, contents: FileContents, style: Style) -> dict[str, Any]:
    return {
        "before": point_fields(found.before),
        "after": point_fields(found.after),
        "state": difference_fields(found.state),
        "conversation": difference_fields(found.conversation),
        "files": [_file_fields(change, contents, style) for change in found.files],
    }


def _file_fields(change: FileChange, contents: FileContents, style: Style) -> dict[str, Any]:
    fields = change_fields(change)
    if style.patch:
        fields["patch"] = contents.patch(change, full=style.full).text
    return fields


def _print_names(found: Diff, *, files_only: bool, full: bool) -> None:
    for difference in () if files_only else all_differences(found):
        click.echo(clean(difference.place))
    for change in outline(found.files, full=full).listed:
        click.echo(clean(change.path))


def _print(found: Diff, contents: FileContents, style: Style, *, to_present: bool) -> None:
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
    """Print each file with its diff, until there is enough to read."""
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
    if patch.why_not and patch.why_not != "binary":
        click.echo(f"  {patch.why_not}; --full may help")
    shown = patch.lines[:limit]
    for line in shown:
        text = line.removesuffix("\r")  # which belongs to the end of the line, behind the colour
        click.echo(style(text, fg=_COLOURS.get(line[:1])) + line[len(text) :])
    if len(shown) < len(patch.lines):
        more = plural(len(patch.lines) - len(shown), "line")
        click.echo(Cell(f"… {more} more; --full shows them", dim=True).styled())
    return len(shown)


def _print_stat(changes: Outline, contents: FileContents, *, full: bool) -> None:
    patches = [contents.patch(change, full=full) for change in changes.listed]
    echo_columns([_stat_row(*pair) for pair in zip(changes.listed, patches, strict=True)])
    added, removed = (sum(getattr(p, name) for p in patches) for name in ("added", "removed"))
    _print_total(changes, f"; {plural(added, 'line')} added, {removed:,} removed")


def _print_total(changes: Outline, lines: str = "") -> None:
    if changes.listed:
        said = f"files: {counted(changes.listed, DIFFERS)}{lines}"
        click.echo(Cell(said, bold=True).styled())
    for aside in changes.asides:
        click.echo(Cell(f"not shown: {aside}; --full shows them", dim=True).styled())


def _stat_row(change: FileChange, patch: FileDiff) -> list[Cell]:
    said = details(change) if patch.why_not or not patch.lines else ""
    name = clean(change.path) + ("/" if change.kind == "directory" else "")
    return [
        Cell(f"  {name}"),
        Cell(f"+{patch.added}" if patch.added else "", "green"),
        Cell(f"-{patch.removed}" if patch.removed else "", "red"),
        Cell(said, dim=True),
    ]


def _explain_missing_files(
    call: CliContext, session: Session, found: Diff, after: str | None
) -> None:
    """Say why no files were compared, where somebody may wonder."""
    if call.directory is None:
        return
    for point in (found.before, *([] if after is None else [found.after])):
        if session.files_at(point) is None:
            click.echo(f"{clean(place(point))} holds no files; they were not compared.", err=True)
