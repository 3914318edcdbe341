"""mulligan purge."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click

from mulligan.cli.confirm import can_ask, confirm
from mulligan.cli.context import CliContext, Command, dry_run_option, example, yes_option
from mulligan.cli.render.files import some_paths
from mulligan.cli.render.text import Cell, clean, echo_columns, plural, print_json
from mulligan.views.purge import purge_view

if TYPE_CHECKING:
    from mulligan import Store
    from mulligan.upkeep import Purged, PurgePlan, PurgeTarget
    from mulligan.upkeep.purge.run import FoundFile
    from mulligan.upkeep.purge.search import FoundEvent

EXAMPLE = example(
    "mulligan purge .env --reason 'leaked key'",
    "mulligan purge --match 'sk-[A-Za-z0-9]{20,}' --dry-run",
    "mulligan purge --fixed --match - < secret.txt",
)

MAX_ROWS = 20
"""How many events are listed; JSON has all of them."""

_DIGEST = re.compile(r"[0-9a-fA-F]{16,64}")


@click.command("purge", cls=Command, epilog=EXAMPLE)
@click.argument("what", nargs=-1, metavar="[PATH|DIGEST]...")
@click.option("--match", metavar="REGEX", help="All that matches, in files and in the state.")
@click.option("-F", "--fixed", is_flag=True, help="REGEX is plain text.")
@click.option("--reason", metavar="TEXT", default="", help="Why; it is kept in the tombstones.")
@click.option("--finish", is_flag=True, help="Finish what interrupted purges left.")
@click.option("--wait", type=float, default=60.0, help="Seconds to wait for other processes.")
@dry_run_option
@yes_option
@click.pass_obj
def command(
    call: CliContext,
    what: tuple[str, ...],
    match: str | None,
    fixed: bool,
    reason: str,
    finish: bool,
    wait: float,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove content, such as a leaked secret, from all history, and prove that it is gone.

    PATH is a file or a directory, from the top of the workspace: its content is removed from every
    checkpoint, except for what a file at another path holds as well. REGEX is looked for in files,
    state, messages, tool outputs, notes and labels; - reads it from standard input, so that it is
    not in the shell's history. DIGEST names one object.

    Tombstones take its place: when, by whom and why. Checkpoints stay, and so do their ids.
    A restore leaves purged files alone. Files in the workspace are not touched; one with purged
    content is not stored again until its content changes.

    It cannot be undone. It asks first; without a terminal, --yes is needed. The exit code is 122 if
    it was refused, and 123 if bytes of it may be left.
    """
    if sum((bool(what), match is not None, finish)) != 1:
        raise click.UsageError("Give paths or digests, or --match REGEX, or --finish.")
    if wait < 0:
        raise click.BadParameter("it must not be negative", param_hint="'--wait'")
    store = call.open_store(read_only=dry_run)
    if finish:
        _finish(call, store, wait)
        return
    target = _target(call, what, _expression(match, fixed=fixed))
    plan = _plan(store, target)
    if dry_run:
        _print_plan(call, plan)
        return
    _ask(call, plan, yes=yes)
    _print_done(call, _run(store, target, reason, wait))


def _expression(match: str | None, *, fixed: bool) -> str | None:
    if match == "-":
        match = sys.stdin.readline().rstrip("\r\n")
    if match == "":
        raise click.BadParameter("it is empty", param_hint="'--match'")
    return re.escape(match) if match is not None and fixed else match


def _target(call: CliContext, what: tuple[str, ...], match: str | None) -> PurgeTarget:
    from mulligan.upkeep import PurgeTarget

    digests = tuple(one for one in what if _DIGEST.fullmatch(one))
    paths = tuple(one for one in what if one not in digests)
    return PurgeTarget(paths=paths, digests=digests, match=match, session=call.session)


def _plan(store: Store, target: PurgeTarget) -> PurgePlan:
    from mulligan.upkeep import plan_purge

    return plan_purge(store, target)


def _run(store: Store, target: PurgeTarget, reason: str, wait: float) -> Purged:
    from mulligan.upkeep import run_purge

    return run_purge(store, target, by=_who(), reason=reason, wait=wait)


def _who() -> str:
    """Return the person who runs this command."""
    import getpass
    import socket

    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        import os

        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def _ask(call: CliContext, plan: PurgePlan, *, yes: bool) -> None:
    from mulligan.errors import PurgeRefused

    if not call.json and not call.quiet:
        _warn_of_shared(plan)
    if not plan:
        return
    if not call.json and not call.quiet:
        _print_found(plan)
    if not yes and not can_ask(call):
        raise PurgeRefused(
            "A purge cannot be undone, and there is no terminal to ask on.",
            hint="Nothing was changed. --dry-run shows what would be removed; --yes removes it.",
        )
    confirm(call, "Remove this from all history? It cannot be undone.", yes=yes, default=False)


def _finish(call: CliContext, store: Store, wait: float) -> None:
    from mulligan.upkeep import finish_purges

    _print_done(call, finish_purges(store, wait=wait), is_search=False)


def _print_plan(call: CliContext, plan: PurgePlan) -> None:
    if call.json:
        print_json(purge_view(plan, None))
        return
    _warn_of_shared(plan)
    if not plan:
        click.echo("There is nothing to remove in the history of the store.")
    elif not call.quiet:
        _print_found(plan)
        click.echo("Nothing was changed.")


def _print_found(plan: PurgePlan) -> None:
    echo_columns([_file_row(file) for file in plan.files])
    echo_columns([_event_row(event) for event in plan.events[:MAX_ROWS]])
    if len(plan.events) > MAX_ROWS:
        click.echo(f"… and {plural(len(plan.events) - MAX_ROWS, 'more event')}; --json lists all.")
    parts = [plural(plan.chunks, "chunk"), plural(plan.values, "value")]
    events, files = plural(len(plan.events), "event"), plural(len(plan.files), "file")
    click.echo(f"Found in {files} and {events}: {' and '.join(parts)} in the store.")
    if present := sorted({file.path for file in plan.files if file.is_present}):
        _warn(f"The workspace has it in {some_paths(present)}; a purge does not touch files there.")


def _warn_of_shared(plan: PurgePlan) -> None:
    for shared in plan.shared:
        _warn(f"Content of {shared.path} stays: {shared.other} has it too. Name both to remove it.")


def _warn(text: str) -> None:
    click.echo(Cell(f"Warning: {clean(text)}", "yellow").styled(), err=True)


def _file_row(file: FoundFile) -> list[Cell]:
    seqs = f"#{file.first}" if file.first == file.last else f"#{file.first} to #{file.last}"
    return [
        Cell("file", "red"),
        Cell(clean(file.session)),
        Cell(clean(file.path), bold=True),
        Cell(f"at {plural(file.trees, 'point')}, {seqs}", dim=True),
    ]


def _event_row(event: FoundEvent) -> list[Cell]:
    return [
        Cell("event", "red"),
        Cell(clean(f"{event.session} #{event.seq}")),
        Cell(clean(event.kind)),
        Cell(clean(event.where[0])),
        Cell(clean(event.hints[0]), dim=True),
    ]


def _print_done(call: CliContext, done: Purged, *, is_search: bool = True) -> None:
    from mulligan.errors import PurgeUnfinished

    if call.json:
        print_json(purge_view(done.plan, done))
    elif not call.quiet:
        _print_result(done, is_search=is_search)
    if not done.is_proved:
        left = "; ".join((*done.unfinished, *done.proof.left))
        raise PurgeUnfinished(f"Bytes of what was purged may be left in {left}.")


def _print_result(done: Purged, *, is_search: bool) -> None:
    for purge in done.purges:
        click.echo(clean(f"Purge {purge.number}: {purge}."))
    if is_search and not done.purges and not done.plan:
        click.echo("There is nothing to remove in the history of the store.")
    if done.is_proved:
        files, read = plural(done.proof.files, "file"), f"{done.proof.bytes:,} bytes"
        click.echo(f"{Cell('✓', 'green').styled()} proved: {files}, {read} scanned, nothing left.")
