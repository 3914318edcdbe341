"""mulligan demo."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.terminal import style
from mulligan.cli.render.text import print_json

if TYPE_CHECKING:
    from mulligan import Store
    from mulligan.cli.demo.story import Story

FAILED = 1


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
        story = _tell(directory, quiet=call.json or call.quiet)
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    seconds = time.monotonic() - started
    failed = [check["claim"] for check in story.checks if not check["ok"]]
    kept = str(story.project) if keep else None
    if call.json:
        fields = {"ok": not failed, "seconds": round(seconds, 3), "store": kept}
        print_json({**fields, **story.facts, "checks": story.checks})
    else:
        for claim in failed:
            click.echo(f"This check failed: {claim}.", err=True)
    if not (call.json or call.quiet):
        held = len(story.checks) - len(failed)
        click.echo(f"\n{held} of {len(story.checks)} checks held, in {seconds:.1f} seconds.")
        if kept:
            click.echo(f"Store and files are kept: mulligan --store {kept} -s demo log")
    if failed:
        raise click.exceptions.Exit(FAILED)


def _tell(directory: Path, *, quiet: bool) -> Story:
    import mulligan
    from mulligan.cli.demo.story import Story

    def say(line: str) -> None:
        if not quiet:
            click.echo(line)

    say(f"{style('Mulligan', bold=True)}: a second try from the same spot")
    project = directory / "project"
    with mulligan.open(project) as store:
        story = Story(store, project, directory / "rewrite", say)
        story.tell()
        if not quiet:
            _print_timelines(store)
    return story


def _print_timelines(store: Store) -> None:
    from mulligan.cli.render.log import print_entries
    from mulligan.views.log import log_page

    for session in store.sessions():
        title = f"The timeline of {session.name!r}, newest first"
        click.echo("\n" + style(title, bold=True))
        print_entries(session, log_page(session).entries)
