"""mulligan verify."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.progress import ProgressLine
from mulligan.cli.render.text import Cell, clean, plural, print_json, size

if TYPE_CHECKING:
    from mulligan import Problem, Report, Store

BROKEN = 60
COUNTED = ("session", "event", "checkpoint", "keyframe", "object", "pack")


@click.command("verify", cls=Command, epilog=example("mulligan verify", "mulligan verify --quick"))
@click.option("--quick", is_flag=True, help="Do not read objects or replay states.")
@click.pass_obj
def command(call: CliContext, quick: bool) -> None:
    """Check everything that is stored, and name exactly what is broken.

    The exit code is 60 when anything is.
    """
    report = _verify(call.open_store(salvage=True), full=not quick)
    if call.json:
        print_json(report_fields(report))
    else:
        _print(report, call.quiet)
    if not report.ok:
        raise click.exceptions.Exit(BROKEN)


def report_fields(report: Report) -> dict[str, Any]:
    """Return a report as the JSON contract has it."""
    counts = {f"{noun}s": getattr(report, f"{noun}s") for noun in COUNTED}
    return {
        "ok": report.ok,
        "full": report.full,
        **counts,
        "unreferenced_bytes": report.unreferenced_bytes,
        "problems": [_fields(problem) for problem in report.problems],
        "warnings": [_fields(warning) for warning in report.warnings],
    }


def _fields(found: Problem) -> dict[str, str]:
    return {"what": found.what, "where": found.where, "detail": found.detail}


def summary(report: Report) -> str:
    """Return what was looked at, in one line."""
    return ", ".join(plural(getattr(report, f"{noun}s"), noun) for noun in COUNTED)


def _verify(store: Store, *, full: bool) -> Report:
    if not sys.stderr.isatty():
        return store.verify(full)
    line = ProgressLine()
    try:
        return store.verify(full, lambda what: line.show(f"verifying {clean(what)}"))
    finally:
        line.clear()


def _print(report: Report, quiet: bool) -> None:
    for problem in report.problems:
        _print_line("✗", "red", problem)
    for warning in report.warnings:
        _print_line("!", "yellow", warning)
    if report.ok and not quiet:
        how = "all of it is sound" if report.full else "sound, as far as a quick look goes"
        click.echo(f"{Cell('✓', 'green').styled()} {summary(report)}: {how}.")
    if report.ok and not quiet and report.unreferenced_bytes:
        click.echo(f"{size(report.unreferenced_bytes)} are unreferenced and can be collected.")
    if not report.ok:
        click.echo(f"{plural(len(report.problems), 'problem')} in {summary(report)}.", err=True)


def _print_line(sign: str, colour: str, found: Problem) -> None:
    what = Cell(f"{sign} {found.what}", colour).styled()
    click.echo(f"{what}  {clean(found.where)}: {clean(found.detail)}")
