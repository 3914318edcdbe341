"""mulligan watch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, create_option, example, force_option
from mulligan.cli.following import Follower, transcript_option
from mulligan.cli.render.files import coverage_text
from mulligan.cli.render.text import SHORT_ID, Cell, clean, echo_columns, local, print_json
from mulligan.cli.requests import Duration
from mulligan.cli.upkeep import start_upkeep
from mulligan.errors import MulliganError
from mulligan.views.checkpoints import checkpoint_view

if TYPE_CHECKING:
    from mulligan import Checkpoint

EXAMPLE = example("mulligan watch", "mulligan watch --settle 10s --json >> checkpoints.jsonl")


@click.command("watch", cls=Command, epilog=EXAMPLE)
@click.option(
    "--settle",
    type=Duration(),
    default="2s",
    show_default=True,
    help="How long the files must stay unchanged.",
)
@click.option(
    "--longest",
    type=Duration(),
    default="60s",
    show_default=True,
    help="How long a change waits if they never do.",
)
@transcript_option
@create_option
@force_option
@click.pass_obj
def command(
    call: CliContext, settle: float, longest: float, transcripts: tuple[str, ...], create: bool
) -> None:
    """Take a checkpoint whenever files have changed and then stayed as they are.

    For programs that Mulligan does not run: start it in a second terminal. Ctrl-C takes a last
    checkpoint, if files changed since, and ends it. `mulligan run --watch` does the same for a
    program that it runs.

    The conversation of a coding agent without hooks (Claude Code, Codex, Gemini CLI, opencode) is
    recorded as well, in a session of its own, with a checkpoint at every prompt: `mulligan rewind`
    lists them.
    """
    from mulligan.session.runtime.quiet import LOOK_SECONDS, QuietCheckpoints

    store = call.open_store()
    session = call.open_session(create, files=True, store=store)
    watch = QuietCheckpoints(session, settle, longest)
    root = call.directory or Path.cwd()
    follower = Follower(store, root, transcripts, lambda said: click.echo(clean(said), err=True))
    with call.working():
        first = watch.take()
    with suppress(KeyboardInterrupt):  # the normal way to end it
        _show(call, first)
        if not (call.bare or call.json):
            click.echo("Watching for changes; Ctrl-C ends it.", err=True)
        while True:
            session.internal.clock.sleep(min(LOOK_SECONDS, settle))
            for taken in (_attempt(watch.look), *follower.look()):
                _show(call, taken)
    for taken in (watch.take(), *follower.close()):
        _show(call, taken)
    start_upkeep(session, call.store_path)


def _attempt(look: Callable[[], Checkpoint | None]) -> Checkpoint | None:
    """Take a checkpoint if it is time for one; a disk that is full for a while ends no watch."""
    try:
        return look()
    except MulliganError as error:
        if not error.retryable:
            raise
        click.echo(clean(f"no checkpoint was taken: {error} It is tried again."), err=True)
        return None


def _show(call: CliContext, taken: Checkpoint | None) -> None:
    if taken is None:
        return
    if call.json:
        print_json(checkpoint_view(taken), indent=None)
    elif call.bare:
        click.echo(taken.id)
    else:
        cells = [Cell(taken.id[:SHORT_ID], "yellow"), Cell(local(taken.time))]
        cells += [Cell(f"#{taken.seq}"), Cell(coverage_text(taken.coverage))]
        echo_columns([[*cells, Cell(clean(taken.note or ""))]])
