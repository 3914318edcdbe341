"""mulligan restore."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mulligan.cli.confirm import confirm, warn_of_open_files
from mulligan.cli.context import (
    CliContext,
    Command,
    accept_option,
    dry_run_option,
    example,
    files_options,
    touch_option,
    warn_of_agents,
    yes_option,
)
from mulligan.cli.errors import HalfDone
from mulligan.cli.parts import WORKSPACE, parts_from_here
from mulligan.cli.render.effects import refuse_left_behind
from mulligan.cli.render.files import outline, tell_source
from mulligan.cli.render.pending import (
    abandon_pending,
    go_on,
    interruptible,
    warn_of_pending,
)
from mulligan.cli.render.preview import DRY_RUN, PREVIEW, print_preview, print_unapplied
from mulligan.cli.render.restored import exit_if_incomplete, print_problems, print_restored
from mulligan.cli.render.text import Cell, clean, place, plural, print_json
from mulligan.errors import CheckpointDamaged
from mulligan.views.restores import copy_view, is_workspace, preview_restore, preview_view

if TYPE_CHECKING:
    from mulligan import Point, Problem, Session
    from mulligan.views.restores import Preview

NOTHING_TO_DO = "Nothing to restore: everything already matches the point."
NOTHING_ELSE = "There is nothing else to restore."
EXAMPLE = example(
    "mulligan restore @latest --dry-run",
    "mulligan restore tests-green --only src/app.py --only memory",
    "mulligan restore tests-green --to /tmp/look",
    "mulligan restore --continue",
)


@click.command("restore", cls=Command, epilog=EXAMPLE)
@click.argument("point", required=False)
@click.option(
    "--only", multiple=True, metavar="PART", help="Only this: memory, workspace, src/app.py."
)
@click.option(
    "--to",
    "copy_to",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the files into this new or empty directory, and touch nothing else.",
)
@click.option("--partial", is_flag=True, help="Restore what is left of a damaged checkpoint.")
@dry_run_option
@click.option("-v", "--verbose", is_flag=True, help="List every change of a coding agent's state.")
@click.option("--continue", "goes_on", is_flag=True, help="Finish a restore that was interrupted.")
@click.option("--abandon", is_flag=True, help="End an interrupted restore; no file changes.")
@accept_option
@yes_option
@touch_option
@files_options
@click.pass_obj
def command(
    call: CliContext,
    point: str | None,
    only: tuple[str, ...],
    copy_to: Path | None,
    partial: bool,
    dry_run: bool,
    verbose: bool,
    goes_on: bool,
    abandon: bool,
    accept: bool,
    yes: bool,
    touch: bool,
) -> None:
    """Bring state and files of POINT back, or parts of them.

    A PART is a component of the state (memory, agents/coder), all files (workspace), or one file
    or directory. Its path starts at the top of the workspace (src/app.py; workspace/memory if the
    state has a component of that name) or here (./app.py; in a subdirectory also app.py, unless
    there is one at the top).

    First, a safety checkpoint keeps the present; `mulligan undo` brings it back. The command asks
    for confirmation only on a terminal. Files that no checkpoint covers are left alone, except tool
    caches (__pycache__) of files that change. The exit code is 83 when some files could not be
    restored.

    Effects after POINT (`mulligan effects`) are undone first where they have an undo command. If
    others exist that cannot be undone, nothing is restored without --accept-left-behind.

    An interrupted restore (Ctrl-C, a crash) is finished first. --continue does only that,
    `mulligan undo` reverses it, and --abandon leaves files and state as they are now.
    """
    if goes_on or abandon:
        others = bool(only or copy_to or partial or dry_run or touch)
        _end(call, point, goes_on=goes_on, abandon=abandon, others=others)
        return
    if point is None:
        raise click.UsageError("Missing argument 'POINT'; `mulligan log` lists the checkpoints.")
    if partial and only:
        raise click.UsageError("--partial and --only exclude each other.")
    _check(call, only, copy_to, touch=touch)
    if copy_to is not None:
        _copy(call, point, only, copy_to, dry_run=dry_run, partial=partial)
        return
    # Not recovered yet: a dry run must change nothing, and the user may still decline.
    session = call.open_session(files=True, recover=False)
    warn_of_pending(session)
    with interruptible(session), call.working():
        places = (session.head, session.point(point))
        parts = parts_from_here(only, call.directory, session, places)
        if partial:
            parts = session.internal.intact_parts(point)
            _warn_of_lost(call, session, point)
        preview = preview_restore(session, point, parts, call.directory)
    if preview and not call.json:
        _warn_of_consumed(session, preview)
        warn_of_agents(session)
        warn_of_open_files(preview.files.open_files)
    if not call.json and not call.quiet:
        limit = None if dry_run or verbose else PREVIEW
        print_preview(preview, limit, touch=touch, verbose=verbose)
        _explain_source(session, preview)
    if dry_run or not (preview or preview.pending or preview.effects):
        _leave(call, session, preview, dry_run=dry_run)
        return
    if not accept:
        refuse_left_behind(preview.effects)
    confirm(call, "Restore?", yes=yes, default=not preview.files.open_files)
    with interruptible(session):
        # After the confirmation, and before the restore that was asked for.
        call.recover(session)
        with call.working():
            # The point as it was resolved for the preview: a label may have moved since.
            done = session.restore(
                preview.state.after, preview.parts, touch=touch, accept_left_behind=accept
            )
    print_restored(call, done, {**preview_view(preview), "pending": None})


def _warn_of_lost(
    call: CliContext, session: Session, point: str, parts: tuple[str, ...] | None = None
) -> None:
    """Name what a partial restore cannot bring back."""
    try:
        session.internal.refuse_damaged(point, parts)
    except CheckpointDamaged as error:
        if not call.json:
            click.echo(clean(f"Warning: {error} Only the rest of it comes back."), err=True)


def _leave(call: CliContext, session: Session, preview: Preview, *, dry_run: bool) -> None:
    """Report a restore that changes nothing; files that cannot be restored are a failure."""
    problems = preview.files.problems
    if not dry_run:
        # The files match, but the program that wrote them may not have synced them.
        problems = (*problems, *session.internal.make_files_durable())
    said = DRY_RUN if preview else NOTHING_ELSE if problems else NOTHING_TO_DO
    print_unapplied(call, preview, "restore", said)
    if not dry_run:
        print_problems(call, problems)
        exit_if_incomplete(problems)


def _end(
    call: CliContext, point: str | None, *, goes_on: bool, abandon: bool, others: bool
) -> None:
    """Finish an interrupted restore, or abandon it."""
    if point is not None or others or goes_on == abandon:
        raise click.UsageError("--continue and --abandon take no POINT and no other options.")
    session = call.open_session(files=goes_on, recover=False)
    if goes_on:
        go_on(call, session)
    else:
        abandon_pending(call, session)


def _check(call: CliContext, only: tuple[str, ...], copy_to: Path | None, *, touch: bool) -> None:
    if "" in only:
        raise click.UsageError("--only needs the name of a part; omit it to restore everything.")
    if call.no_files and copy_to is not None:
        raise click.UsageError("--to and --no-files exclude each other.")
    if touch and (call.no_files or copy_to is not None):
        raise click.UsageError("--touch is for files that are restored in place.")
    if call.no_files and any(is_workspace(part) for part in only):
        raise click.UsageError("--only workspace and --no-files exclude each other.")


def _warn_of_consumed(session: Session, preview: Preview) -> None:
    """Name what other agents have already used of the work that is rolled back."""
    from mulligan.recovery.resume_agent import consumed

    point = preview.state.after
    names = [part.split("/")[1] for part in preview.parts or () if part.startswith("agents/")]
    if point.session != session.name:
        return  # not a rollback: the point is on another timeline
    for name in names:
        for one in consumed(session, name, point):
            said = f"Warning: {one.by} has {one.how} {one.what} {one.id} of {name} (#{one.seq})"
            click.echo(Cell(clean(said), "yellow").styled(), err=True)


def _explain_source(session: Session, preview: Preview) -> None:
    """Say where the files come from when the point itself has none."""
    if preview.directory is None or not (outline(preview.files.files) or preview.parts is None):
        return
    point = preview.state.after
    held = session.internal.files_at(point)
    if held is None:
        said = f"{place(point)} holds no files; they stay as they are."
        click.echo(clean(said), err=True)
        return
    root = held.coverage.root if held.coverage else ""
    if root and session.files.directory is None and Path(root) != preview.directory:
        click.echo(f"These files were captured in {clean(root)}.", err=True)
    tell_source(session, point, held)


def _copy(
    call: CliContext,
    point: str,
    named: tuple[str, ...],
    to: Path,
    *,
    dry_run: bool,
    partial: bool,
) -> None:
    """Write the files of a point into another directory."""
    session = call.open_to_look()
    only = parts_from_here(named, call.project, session, (session.point(point),))
    if partial:
        only = session.internal.intact_files(point)
        _warn_of_lost(call, session, point, (WORKSPACE,))
    else:
        session.internal.refuse_damaged(point, only or (WORKSPACE,))
    plan = session.internal.plan_copy(point, only)
    problems = [] if dry_run else _copied(session, plan.point, to, only)
    if call.json:
        print_json(copy_view(plan, only, to.absolute(), None if dry_run else problems))
    elif not call.quiet:
        written = plural(sum(change.kind != "directory" for change in plan.files), "file")
        done = "would be written" if dry_run else "were not all written" if problems else "written"
        click.echo(clean(f"{written} of {place(plan.point)} {done} to {to}."))
        click.echo("Nothing else was touched." if not dry_run else "Nothing was: a dry run.")
    print_problems(call, problems)
    exit_if_incomplete(problems)


def _copied(
    session: Session, point: Point, to: Path, only: tuple[str, ...] | None
) -> list[Problem]:
    """Write the files, and report what Ctrl-C leaves behind."""
    try:
        return session.files.copy(point, to, only)
    except KeyboardInterrupt:
        if not to.is_dir() or not any(to.iterdir()):
            raise
        raise HalfDone(
            clean(f"Interrupted: {to} holds only a part of the files."),
            "Nothing else was touched. Delete that directory, or name another one.",
        ) from None
