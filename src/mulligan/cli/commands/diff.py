"""mulligan diff."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, example, files_options
from mulligan.cli.parts import parts_from_here
from mulligan.cli.render.diffs import Style, contents_of, print_diff
from mulligan.cli.render.files import outline
from mulligan.cli.render.pending import warn_of_pending
from mulligan.cli.render.text import clean, place, print_json
from mulligan.views.diffs import all_differences, diff_view
from mulligan.views.restores import pending_view

if TYPE_CHECKING:
    from mulligan import Diff, Session
    from mulligan.views.diffs import Patch
    from mulligan.views.file_diffs import FileContents

EXAMPLE = example(
    "mulligan diff @latest",
    "mulligan diff @latest --stat",
    "mulligan diff tests-green main-fork-1:@latest --only src",
)


@click.command("diff", cls=Command, epilog=EXAMPLE)
@click.argument("before", metavar="A")
@click.argument("after", metavar="[B]", required=False)
@click.option(
    "--only", multiple=True, metavar="PART", help="Only this: memory, workspace, src/app.py."
)
@click.option("--stat", is_flag=True, help="Show only the number of changed lines per file.")
@click.option("--name-only", is_flag=True, help="Show only the paths of files, one per line.")
@click.option("--full", is_flag=True, help="Show everything: long diffs, large files, .git, times.")
@click.option("--patch", is_flag=True, help="With --json: include text diffs.")
@files_options
@click.pass_obj
def command(
    call: CliContext, /, before: str, after: str | None, only: tuple[str, ...], **style: bool
) -> None:
    """Show what differs in state, conversation and files from A to B, or from A to the present.

    Files are compared if both sides have them: the present does, and so does a point with a
    checkpoint of files at or before it. Text is shown as a unified diff, anything else by its size.
    """
    shown = _checked(Style(**style), call.json)
    session = call.open_session(files=True, recover=False)
    warn_of_pending(session)
    with call.working():
        places = (session.point(before), session.head if after is None else session.point(after))
        parts = parts_from_here(only, call.directory, session, places)
        found = session.diff(before, after, parts)
    contents = contents_of(call, session, found, after)
    if call.json:
        patch = _patch(contents, shown) if shown.patch else None
        print_json(diff_view(found, pending_view(session), patch))
    elif call.quiet or shown.name_only:
        _print_names(found, files_only=shown.name_only, full=shown.full)
    else:
        print_diff(found, contents, shown, to_present=after is None)
        _explain_missing_files(call, session, found, after)


def _checked(style: Style, as_json: bool) -> Style:
    if style.stat and style.name_only:
        raise click.UsageError("--stat and --name-only exclude each other.")
    if style.patch and not as_json:
        raise click.UsageError("--patch is for --json; without it text diffs are shown anyway.")
    return style


def _patch(contents: FileContents, style: Style) -> Patch:
    return lambda change: contents.patch(change, full=style.full).text


def _print_names(found: Diff, *, files_only: bool, full: bool) -> None:
    for difference in () if files_only else all_differences(found):
        click.echo(clean(difference.place))
    for change in outline(found.files, full=full).listed:
        click.echo(clean(change.path))


def _explain_missing_files(
    call: CliContext, session: Session, found: Diff, after: str | None
) -> None:
    """Explain why no files were compared, where that may be unexpected."""
    from mulligan.errors import FilesPruned

    if call.directory is None:
        return
    for point in (found.before, *([] if after is None else [found.after])):
        try:
            has_files = session.internal.files_at(point) is not None
        except FilesPruned as error:
            click.echo(f"{clean(str(error))} They were not compared.", err=True)
            continue
        if not has_files:
            click.echo(f"{clean(place(point))} holds no files; they were not compared.", err=True)
