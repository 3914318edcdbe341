"""mulligan du."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.text import Cell, clean, echo_columns, plural, print_json, size
from mulligan.views.usage import usage_view

if TYPE_CHECKING:
    from mulligan.upkeep import Usage

EXAMPLE = example("mulligan du", "mulligan du --paths 50", "mulligan du --json")


@click.command("du", cls=Command, epilog=EXAMPLE)
@click.option(
    "--paths", type=click.IntRange(min=0), default=10, help="How many of the largest paths to list."
)
@click.pass_obj
def command(call: CliContext, paths: int) -> None:
    """Show where the bytes of the store are: by kind, by session, by largest paths.

    Sizes are as stored: compressed, and each content once. What several sessions hold is shown as
    shared and in none of them. Copies are those of events, from which a damaged journal is rebuilt.
    Garbage is what nothing refers to; the next prune frees it, as soon as a pack has more than
    128 KB of it.
    """
    from mulligan.upkeep import disk_usage

    usage = disk_usage(call.open_store(read_only=True), paths)
    if call.json:
        print_json(usage_view(usage))
    elif call.quiet:
        click.echo(str(usage.total))
    else:
        _print(usage)


def _print(usage: Usage) -> None:
    kinds = ("files", "state", "copies", "journal", "garbage", "other")
    rows = [[Cell("total", bold=True), Cell(size(usage.total), bold=True)]]
    rows += [[Cell(f"  {kind}"), Cell(size(getattr(usage, kind)))] for kind in kinds]
    echo_columns(rows)
    # Titles instead of words in every row: names of coding agents' sessions are long.
    rows = [[Cell(text, bold=True) for text in ("Sessions", "files", "state", "events")]]
    rows += [
        [
            Cell(f"  {clean(one.session)}"),
            Cell(size(one.files)),
            Cell(size(one.state)),
            Cell(f"{one.events:,}", dim=True),
        ]
        for one in usage.sessions
    ]
    echo_columns(rows)
    if usage.shared_files or usage.shared_state:
        shared = f"files {size(usage.shared_files)}, state {size(usage.shared_state)}"
        click.echo(f"  shared by several: {shared}")
    if usage.paths:
        _heading("Largest paths")
        echo_columns([[Cell(f"  {size(one.bytes)}"), Cell(clean(one.path))] for one in usage.paths])
    count = plural(usage.prunable_count, "checkpoint")
    garbage = f"{size(usage.garbage)} of garbage"
    freed = usage.prunable + usage.garbage
    click.echo(f"The next prune would free up to {size(freed)}:")
    click.echo(f"  {garbage}, {size(usage.prunable)} of {count}.")


def _heading(text: str) -> None:
    click.echo(Cell(text, bold=True).styled())
