"""The options of ``verify`` that repair a store, and what they print."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mulligan.cli.confirm import can_ask, confirm
from mulligan.cli.context import CliContext
from mulligan.cli.render.progress import ProgressLine, can_show_progress
from mulligan.cli.render.text import SHORT_ID, Cell, clean, plural, print_json, size

if TYPE_CHECKING:
    from mulligan.repair.store import Repaired

T = TypeVar("T")
BROKEN = 60
SHOWN = 20
"""How many lines of a kind are printed; --json has all."""

_META = "mulligan.cli.repair"


def repair_options(function: Callable[..., T]) -> Callable[..., T]:
    """Add the options that repair a store to ``verify``."""
    for name, text in reversed(
        (
            ("--repair", "Rebuild what is damaged, and name what is lost."),
            ("--dry-run", "With --repair: say what would be done, and change nothing."),
            ("--discard", "Delete the damaged originals that repairs kept."),
            ("--yes", "With --discard: do not ask for confirmation."),
        )
    ):
        names = ("-y", name) if name == "--yes" else (name,)
        option = click.option(*names, is_flag=True, expose_value=False, callback=_note, help=text)
        function = option(function)
    return function


def _note(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value:
        context.meta.setdefault(_META, set()).add(option.name)


def has_repaired(call: CliContext) -> bool:
    """Repair the store if the options say so; return whether they did."""
    asked: set[str] = click.get_current_context().meta.get(_META, set())
    if not asked:
        return False
    if not {"repair", "discard"} & asked:
        raise click.UsageError("--dry-run and --yes go with --repair or --discard.")
    if {"discard", "dry_run"} <= asked:
        raise click.UsageError("--dry-run and --discard exclude each other.")
    store, project = _found(call)
    if "discard" in asked:
        # Before anything: a repair that then deletes nothing is not what was asked for.
        _refuse_unasked(call, store, yes="yes" in asked, repairs="repair" in asked)
    repaired = None
    if "repair" in asked:
        repaired = _repair(store, project, dry_run="dry_run" in asked)
    discarded = _discard(call, store, yes="yes" in asked) if "discard" in asked else None
    _show(call, repaired, discarded, dry_run="dry_run" in asked)
    return True


def _found(call: CliContext) -> tuple[Path, Path | None]:
    """Return the store to repair, and its project; FORMAT need not be readable."""
    from mulligan.errors import StoreNotFound
    from mulligan.repair.store import repairable

    try:
        return repairable(call.store)
    except StoreNotFound:
        if call.store:
            raise
        # The pointer may be gone; stores are also found by their project's path.
        from mulligan.cli.find_store import state_home
        from mulligan.locate.find import nearest

        found = nearest(Path.cwd(), state_home())
        return found.store, found.directory


def _repair(store: Path, project: Path | None, *, dry_run: bool) -> Repaired:
    from mulligan.repair.store import repair_store

    line = ProgressLine() if can_show_progress() else None
    try:
        return repair_store(
            store,
            os.environ,
            project=project,
            dry_run=dry_run,
            progress=lambda what: line.show(clean(f"repairing {what}")) if line else None,
        )
    finally:
        if line is not None:
            line.clear()


def _refuse_unasked(call: CliContext, store: Path, *, yes: bool, repairs: bool) -> None:
    """Refuse to delete originals without ``--yes`` where there is no terminal to ask on."""
    from mulligan.repair.originals import kept_originals

    if not yes and not can_ask(call) and (repairs or kept_originals(store)):
        raise click.UsageError(
            "Deleted originals cannot be brought back, and there is no terminal to ask on: "
            "nothing was changed. --yes deletes them."
        )


def _discard(call: CliContext, store: Path, *, yes: bool) -> int:
    from mulligan.repair.originals import discard_originals, kept_originals

    if kept_originals(store):
        confirm(call, "Delete the damaged originals?", yes=yes, default=False)
    return discard_originals(store)


def _show(
    call: CliContext, repaired: Repaired | None, discarded: int | None, *, dry_run: bool
) -> None:
    if call.json:
        from mulligan.views.repair import repair_view

        print_json(repair_view(repaired, discarded, dry_run=dry_run))
    else:
        if repaired is not None:
            _print(repaired, dry_run=dry_run, quiet=call.quiet)
        if discarded is not None and not call.quiet:
            said = f"{size(discarded)} of damaged originals deleted."
            click.echo(said if discarded else "There were no damaged originals.")
    if repaired is not None and not (repaired.ok and not (dry_run and repaired.steps)):
        raise click.exceptions.Exit(BROKEN)


def _print(repaired: Repaired, *, dry_run: bool, quiet: bool) -> None:
    for step in repaired.steps:
        _line("✗", "red", step.what, f"{step.found}")
        click.echo(f"    {'a repair would say: ' if dry_run else ''}{clean(step.done)}")
    would_be = "would be " if dry_run else ""
    _some([f"{would_be}healed: {clean(line)}" for line in repaired.healed], "+", "green")
    _some([f"lost: {clean(line)}" for line in repaired.lost_events], "✗", "red")
    unknown = [f"may be lost, if there were any: {clean(line)}" for line in repaired.may_be_lost]
    _some(unknown, "✗", "red")
    _print_damaged(repaired, dry_run=dry_run)
    for session, paths in repaired.current.items():
        named = ", ".join(map(clean, paths[:3])) + (" …" if len(paths) > 3 else "")
        _line("✗", "red", "lost", f"the newest state of session {session!r} lacks {named}")
    for problem in repaired.report.problems if repaired.report else ():
        _line("✗", "red", "still broken", f"{problem.where}: {problem.detail}")
    if quiet:
        return
    _print_end(repaired, dry_run=dry_run)


def _print_damaged(repaired: Repaired, *, dry_run: bool) -> None:
    lines = []
    verb = "would lack" if dry_run else "lost"
    for one in repaired.damaged:
        label = f" ({one.label})" if one.label else ""
        lacks = "; ".join(one.loss.parts)
        lines.append(f"checkpoint {one.id[:SHORT_ID]}{label} #{one.seq} {verb} {lacks}")
    _some(list(map(clean, lines)), "✗", "red")
    nearest = {one.loss.nearest for one in repaired.damaged if one.loss.nearest}
    if repaired.damaged:
        named = ", ".join(sorted(identity[:SHORT_ID] for identity in nearest)[:3])
        what = "checkpoint is" if len(nearest) == 1 else "checkpoints are"
        where = f"The nearest intact {what} {named}. " if nearest else ""
        click.echo(f"{where}`mulligan restore ID --partial` restores what is left of one.")


def _print_end(repaired: Repaired, *, dry_run: bool) -> None:
    sign = Cell("✓", "green").styled()
    if dry_run:
        count = plural(len(repaired.steps), "repair")
        said = f"{count} to make; nothing was changed." if repaired.steps else "Nothing to repair."
        click.echo(said)
    elif repaired.ok and repaired.steps:
        click.echo(f"{sign} Repaired; nothing is lost, and everything was verified.")
    elif repaired.ok:
        click.echo(f"{sign} Nothing to repair; everything was verified.")
    elif repaired.report and repaired.report.ok:
        click.echo("Everything else is intact, and was verified.")
    for place in repaired.originals:
        click.echo(f"The damaged originals are in {clean(place)}")
    if repaired.originals:
        click.echo("`mulligan verify --discard` deletes them.")


def _some(lines: list[str], sign: str, colour: str) -> None:
    for line in lines[:SHOWN]:
        click.echo(f"{Cell(sign, colour).styled()} {line}")
    if len(lines) > SHOWN:
        click.echo(f"  and {len(lines) - SHOWN} more; --json lists all")


def _line(sign: str, colour: str, what: str, detail: str) -> None:
    click.echo(f"{Cell(f'{sign} {what}', colour).styled()}  {clean(detail)}")
