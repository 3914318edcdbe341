"""mulligan demo."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.terminal import style
from mulligan.cli.render.text import print_json

if TYPE_CHECKING:
    from mulligan import Diff, Store
    from mulligan.cli.demo.story import Facts

FAILED = 1
PROJECT = "project"
OTHER = "rewrite"
SHOWN = 6


@click.command("demo", cls=Command, epilog=example("mulligan demo", "mulligan demo --keep"))
@click.option("--keep", is_flag=True, help="Keep the store of the demo to look around in.")
@click.pass_obj
def command(call: CliContext, keep: bool) -> None:
    """See agents killed, resumed, rolled back and forked, and files wrecked and restored.

    Every claim is checked. It happens in a temporary directory and takes a few seconds. The exit
    code is 1 if any check fails.
    """
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="mulligan-demo-"))
    try:
        facts = _tell(call, directory)
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    kept = directory / PROJECT if keep else None
    _print_end(call, facts, kept, time.monotonic() - started)
    if not facts.ok:
        raise click.exceptions.Exit(FAILED)


class TerminalNarrator:
    """Tells the story on a terminal, unless it is to be quiet."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._number = 0

    def say(self, line: str) -> None:
        """Print a line."""
        if not self._quiet:
            click.echo(line)

    def chapter(self, title: str, text: str) -> None:
        """Begin a part of the story."""
        self._number += 1
        self.say("\n" + style(f"{self._number}  {title}", "cyan", bold=True))
        self.say(f"   {text}")

    def check(self, claim: str, holds: bool) -> None:
        """Tell the outcome of a check."""
        mark, colour = ("✓", "green") if holds else ("✗ not so:", "red")
        self.say(f"   {style(mark, colour, bold=True)} {claim}")

    def differences(self, diff: Diff) -> None:
        """Show what differs between the branches."""
        from mulligan.cli.render.differences import print_differences
        from mulligan.cli.render.files import change_lines, outline
        from mulligan.views.diffs import all_differences

        if not self._quiet:
            print_differences(all_differences(diff), SHOWN, indent="     ")
            for line in change_lines(outline(diff.files).listed, SHOWN):
                click.echo(f"     {line}")


def _tell(call: CliContext, directory: Path) -> Facts:
    import mulligan
    from mulligan.cli.demo.story import Story

    quiet = call.json or call.quiet
    narrator = TerminalNarrator(quiet=quiet)
    narrator.say(f"{style('Mulligan', bold=True)}: a second try from the same spot")
    project, other = directory / PROJECT, directory / OTHER
    with mulligan.open(project) as store:
        facts = Story(store, narrator, project, other).tell()
        if not quiet:
            _print_timelines(store)
    return facts


def _print_timelines(store: Store) -> None:
    from mulligan.cli.render.log import print_entries
    from mulligan.views.log import log_page

    for session in store.sessions():
        title = f"The timeline of {session.name!r}, newest first"
        click.echo("\n" + style(title, bold=True))
        print_entries(session, log_page(session).entries)


def _print_end(call: CliContext, facts: Facts, kept: Path | None, seconds: float) -> None:
    failed = [check["claim"] for check in facts.checks if not check["ok"]]
    if call.json:
        print_json(_fields(facts, kept, seconds))
        return
    for claim in failed:
        click.echo(f"This check failed: {claim}.", err=True)
    if not call.quiet:
        held = len(facts.checks) - len(failed)
        click.echo(f"\n{held} of {len(facts.checks)} checks held, in {seconds:.1f} seconds.")
        if kept:
            click.echo(f"Store and files are kept: mulligan --store {kept} -s demo log")


def _fields(facts: Facts, kept: Path | None, seconds: float) -> dict[str, Any]:
    return {
        "ok": facts.ok,
        "seconds": round(seconds, 3),
        "store": kept and str(kept),
        "killed": facts.killed,
        "resumed": facts.resumed,
        "restored": facts.restored,
        "wrecked": facts.wrecked,
        "branches": facts.branches,
        "team": facts.team,
        "checks": facts.checks,
    }
