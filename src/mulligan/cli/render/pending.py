"""A pending restore of files: how it is reported, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from mulligan.cli.render.text import SHORT_ID, Cell, clean, place, print_json
from mulligan.errors import DiskFull, NothingToUndo, RestorePending
from mulligan.session.names import a

if TYPE_CHECKING:
    from mulligan import Restored, Session
    from mulligan.cli.context import CliContext
    from mulligan.model import PendingRestore, UndoMode

MAIN = "main"
ROOM = "`mulligan prune` frees space of the store; `mulligan du` shows what takes it."


def pending_lines(session: Session) -> list[str]:
    """Return the lines that describe a pending restore and how to end it; none without one."""
    pending = session.files.pending
    if pending is None:
        return []
    what = f"{a(pending.mode).capitalize()} to {place(pending.point)}"
    if pending.is_running:
        return [clean(f"{what} of the files in {pending.directory} is under way.")]
    said = f"{what} was interrupted: the files in {pending.directory} are half restored."
    return [clean(said), f"Nothing is lost. {ways(session, pending)}"]


def ways(session: Session, pending: PendingRestore) -> str:
    """Return the commands that finish, undo or abandon a pending restore."""
    program = "mulligan" if session.name == MAIN else f"mulligan -s {clean(session.name)}"
    back = "redo" if pending.mode == "undo" else "undo"
    return (
        f"`{program} restore --continue` finishes it, `{program} {back}` takes it back, "
        f"`{program} restore --abandon` leaves the files as they are."
    )


def warn_of_pending(session: Session) -> None:
    """Warn of a pending restore, in a command that only reads."""
    for line in pending_lines(session):
        click.echo(Cell(line, "yellow").styled(), err=True)


def tell_of_recovery(done: Restored) -> None:
    """Report that a restore was finished first."""
    what = a(done.mode).capitalize()
    said = f"{what} to {place(done.point)} had been interrupted and was finished first;"
    click.echo(clean(said), err=True)
    click.echo(f"the earlier files are in the checkpoint {done.safety.id[:SHORT_ID]}.", err=True)


def tell_of_recovery_error(session: Session) -> None:
    """Warn that the files match no checkpoint, and say how to fix that."""
    pending = session.files.pending
    what = f"{a(pending.mode)} to {place(pending.point)}" if pending else "a restore"
    click.echo(clean(f"Warning: {what} of the files was interrupted halfway."), err=True)
    click.echo(clean(f"It cannot be finished: {session.files.recovery_error}"), err=True)
    if pending is not None:
        click.echo(f"Fix that first, then: {ways(session, pending)}", err=True)


def undo_or_redo(
    call: CliContext,
    session: Session,
    mode: UndoMode,
    *,
    accept: bool,
    yes: bool,
    touch: bool,
) -> None:
    """Undo or redo, and print the result; an interrupted one is finished instead."""
    # Every command that looks at a session imports this module, and only restores need these.
    from mulligan.cli.render.preview import show_and_check
    from mulligan.cli.render.restored import print_restored
    from mulligan.views.restores import NOT_PREVIEWED

    # Before the restore begins to wait for locks: the answer may be no.
    with interruptible(session):
        open_files = show_and_check(call, session, mode, yes=yes, touch=touch)
    pending = session.files.pending
    with call.working(), interruptible(session):
        done = None
        # An interrupted undo is finished by undo, not undone: the user asked for it twice.
        if pending is not None and pending.mode == mode:
            done = session.files.recover()
        if done is None:
            walk = session.undo if mode == "undo" else session.redo
            done = walk(touch=touch, accept_left_behind=accept)
    print_restored(call, done, {**NOT_PREVIEWED, "open_files": open_files})


def go_on(call: CliContext, session: Session) -> None:
    """Finish the pending restore, and print the result."""
    from mulligan.cli.render.restored import print_restored

    pending = _required(session)
    with call.working(), interruptible(session):
        done = session.files.recover()
    if done is None and session.files.pending is not None:
        raise RestorePending(
            f"{a(pending.mode).capitalize()} of files in {pending.directory} is not finished.",
            hint="Nothing was touched. Do this in that directory, and without --no-files.",
        )
    if done is None:
        raise NothingToUndo("Another process has finished it in the meantime.")
    print_restored(call, done)


def abandon_pending(call: CliContext, session: Session) -> None:
    """End the pending restore as it is, and print how to undo it."""
    from mulligan.views.restores import abandoned_view, pending_view

    pending, view = _required(session), pending_view(session)
    session.files.abandon()
    back = "redo" if pending.mode == "undo" else "undo"
    if call.json:
        print_json(abandoned_view(pending, view))
    elif not call.quiet:
        what = f"Abandoned: {a(pending.mode)} to {place(pending.point)}."
        click.echo(clean(f"{what} Files and state stay as they are now;"))
        click.echo(f"`mulligan {back}` brings back what was there before it.")


def _left_pending(session: Session) -> PendingRestore | None:
    """Return the pending restore of this directory."""
    pending = session.files.pending
    return None if pending is None or pending.is_running else pending


def _required(session: Session) -> PendingRestore:
    pending = session.files.pending
    if pending is None:
        raise NothingToUndo("No restore is pending: there is nothing to continue or abandon.")
    return pending


@contextmanager
def interruptible(session: Session) -> Iterator[None]:
    """Report what Ctrl-C or a failure leaves behind: a half-done restore, if it had started."""
    before = session.head.seq
    try:
        yield
    except DiskFull as error:
        error.hint = f"{error.hint} {ROOM} {_left_by_full_disk(session, before)}"
        raise
    except KeyboardInterrupt:
        pending = _left_pending(session)
        if pending is None:
            raise
        from mulligan.cli.errors import HalfDone

        raise HalfDone(
            clean(f"Interrupted: the files in {pending.directory} are half restored."),
            f"Nothing is lost. {ways(session, pending)}",
        ) from None


def _left_by_full_disk(session: Session, before: int) -> str:
    """Return what has become of the files since an event."""
    from mulligan.timeline.undo import restores

    pending = _left_pending(session)
    if pending is not None:
        half = f"The files in {clean(pending.directory)} are half restored"
        return f"{half}: {ways(session, pending)}"
    if any("files" in event.payload for event in restores(session.events(since=before))):
        return "Files were restored before that."
    # Files change only once a restore is pending: after its safety checkpoint.
    return "No file was changed."
