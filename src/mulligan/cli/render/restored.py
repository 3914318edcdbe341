"""What a restore, an undo or a redo did, as text, and its exit code."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import CliContext
from mulligan.cli.render.text import SHORT_ID, Cell, clean, place, plural, print_json
from mulligan.views.restores import NOT_PREVIEWED, parts_view, restored_view

if TYPE_CHECKING:
    from mulligan import Problem, Restored
    from mulligan.model import LeftOut

INCOMPLETE = 83
SHOWN_PROBLEMS = 20

_VANISHED = os.strerror(errno.ENOENT)
_ADVICE = {
    errno.EROFS: "Make the filesystem writable (`mount -o remount,rw`)",
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space within the quota",
    errno.EACCES: "Make these and their directories writable",
    errno.EPERM: "Make these writable (`lsattr` shows what is immutable, `ls -l` whose it is)",
    errno.EBUSY: "Unmount what is mounted there",
    errno.EISDIR: "Move these out of the way",
    errno.ENOTEMPTY: "Move these out of the way",
    errno.ENOTDIR: "Move these out of the way",
}
"""What to do about a path that the system refused, by errno."""

SEE_EACH = "Fix the cause given for each"
_OPPOSITE = {"restore": "undo", "undo": "redo", "redo": "undo"}
_DONE = {"restore": "Restored", "undo": "Undone", "redo": "Redone"}


def print_restored(
    call: CliContext, done: Restored, preview: Mapping[str, Any] = NOT_PREVIEWED
) -> None:
    """Print what was done, where the previous state is kept, and how to undo it.

    ``preview`` holds the fields of the preview, for JSON.
    The exit code is that of ``RestoreIncomplete`` when some files could not be restored.
    """
    if call.json:
        print_json(restored_view(done, call.directory, preview))
    elif call.quiet:
        click.echo(done.safety.id)
    else:
        _print(done)
    print_purged(call, done.purged)
    print_problems(call, done.problems)
    exit_if_incomplete(done.problems)


def print_purged(call: CliContext, left_alone: Iterable[LeftOut]) -> None:
    """Name the files that are left as they are because their content was purged."""
    for left in () if call.json else left_alone:
        said = f"{left.path} is left as it is: its content was {left.rule}."
        click.echo(Cell(clean(said), "yellow").styled(), err=True)


def print_problems(call: CliContext, problems: Sequence[Problem]) -> None:
    """Name the paths that could not be restored."""
    if not problems or call.json:
        return
    count = f"{plural(len(problems), 'path')} could not be restored:"
    click.echo(Cell(count, "red", bold=True).styled(), err=True)
    for problem in problems[:SHOWN_PROBLEMS]:
        click.echo(f"  {clean(problem.where)}: {clean(problem.detail)}", err=True)
    if len(problems) > SHOWN_PROBLEMS:
        click.echo(f"  … and {len(problems) - SHOWN_PROBLEMS:,} more; --json has all", err=True)
    click.echo(f"Everything else is done. {_advice(problems)}, then do it again.", err=True)


def _advice(problems: Sequence[Problem]) -> str:
    from mulligan.model import DIFFERS
    from mulligan.workspace.capture.snapshot import IN_USE
    from mulligan.workspace.restore.fileops import TOO_MANY_FILES
    from mulligan.workspace.restore.protect import LEFT_ALONE
    from mulligan.workspace.restore.swap import CHANGED

    if any(problem.detail.startswith(TOO_MANY_FILES) for problem in problems):
        return "Allow more open files with `ulimit -n 1024`"
    if any(" is damaged: " in problem.detail for problem in problems):
        return "Repair the store with `mulligan verify --repair`"
    if any("cannot be read" in problem.detail for problem in problems):
        return "Make these readable and writable"
    if any(IN_USE in problem.detail for problem in problems):
        return "Close the programs that have these open"
    if all(problem.detail.startswith(LEFT_ALONE) for problem in problems):
        return "Move these out of the way"
    if all(problem.detail.startswith((CHANGED, DIFFERS, _VANISHED)) for problem in problems):
        return "Wait for the programs that change these"
    advised = {_advice_on(problem.detail) for problem in problems}
    return advised.pop() if len(advised) == 1 else SEE_EACH


def _advice_on(detail: str) -> str:
    """Return advice for paths that the system refused to write."""
    found = (advice for code, advice in _ADVICE.items() if os.strerror(code) in detail)
    return next(found, SEE_EACH)


def exit_if_incomplete(problems: Sequence[Problem]) -> None:
    """End the command with its exit code if there are problems."""
    if problems:
        raise click.exceptions.Exit(INCOMPLETE)


def _print(done: Restored) -> None:
    safety = Cell(done.safety.id[:SHORT_ID], "yellow").styled()
    parts = parts_view(done.only, done.workspace) or _everything(done)
    was = "as it was" if len(parts) == 1 else "as they were"
    what = f"{_DONE[done.mode]}: {', '.join(parts)} {was} at {place(done.point)}"
    # The plan lists files; this count has the directories as well, whose times come back last.
    files = f" ({plural(done.files, 'path')}, directories included)" if done.files else ""
    click.echo(clean(f"{what}{files}."))
    click.echo(f"What was there before is kept in the safety checkpoint {safety};")
    click.echo(f"{_OPPOSITE[done.mode]} with `mulligan {_OPPOSITE[done.mode]}`.")


def _everything(done: Restored) -> list[str]:
    return ["the state"] if done.workspace == () else ["state", "files"]
