"""mulligan verify."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.progress import ProgressLine, can_show_progress
from mulligan.cli.render.report import summary
from mulligan.cli.render.text import Cell, clean, plural, print_json, size
from mulligan.views.verify import report_view

if TYPE_CHECKING:
    from mulligan import Problem, Report, Store

BROKEN = 60


@click.command("verify", cls=Command, epilog=example("mulligan verify", "mulligan verify --quick"))
@click.option("--quick", is_flag=True, help="Skip reading objects and replaying states.")
@click.pass_obj
def command(call: CliContext, quick: bool) -> None:
    """Check everything in the store, and name exactly what is broken.

    The exit code is 60 if anything is.
    """
    report = _verify(call.open_store(salvage=True), full=not quick)
    if call.json:
        print_json(report_view(report))
    else:
        _print(report, call.quiet)
    if not report.ok:
        raise click.exceptions.Exit(BROKEN)


def _verify(store: Store, *, full: bool) -> Report:
    if not can_show_progress():
        return store.verify(full)
    line = ProgressLine()
    try:
        return store.verify(full, lambda what: line.show(clean(f"verifying {what}")))
    finally:
        line.clear()


def _print(report: Report, quiet: bool) -> None:
    for problem in report.problems:
        _print_line("✗", "red", problem)
    for warning in report.warnings:
        _print_line("!", "yellow", warning)
    if report.ok and not quiet:
        how = "all of it is sound" if report.full else "sound, as far as a quick check can tell"
        click.echo(f"{Cell('✓', 'green').styled()} {summary(report)}: {how}.")
    if report.ok and not quiet and report.unreferenced_bytes:
        click.echo(f"{size(report.unreferenced_bytes)} are unreferenced and can be collected.")
    if not report.ok:
        click.echo(f"{plural(len(report.problems), 'problem')} in {summary(report)}.", err=True)


def _print_line(sign: str, colour: str, found: Problem) -> None:
    what = Cell(f"{sign} {found.what}", colour).styled()
    click.echo(f"{what}  {clean(found.where)}: {clean(found.detail)}")
