"""Files as text: what differs, and what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from mulligan.cli.render.streams import wrapped
from mulligan.cli.render.text import SHORT_ID, Cell, clean, columns, plural, shorten, size
from mulligan.views.files import octal

if TYPE_CHECKING:
    from pathlib import Path

    from mulligan import Point, Session
    from mulligan.model import Coverage, FileChange, HeldFiles, LeftOut

GIT = ".git"
DRAFT = ".mulligan-draft-"
"""The prefix of the temporary names that a restore uses beside the files it replaces."""

SHOWN_PATHS = 3
WIDEST_PATH = 70
STORE_RULE = "ignored by .mulligan"
"""The rule that leaves the store itself out; it is never shown."""

_SIGNS = {
    "added": ("+", "green"),
    "removed": ("-", "red"),
    "changed": ("~", "yellow"),
    "renamed": ("→", "cyan"),
    "attributes": ("~", "yellow"),
}
DIFFERS = {
    "added": "added",
    "removed": "removed",
    "changed": "changed",
    "renamed": "renamed",
    "attributes": "with other attributes",
}
TO_DO = {
    "added": "to create",
    "removed": "to delete",
    "changed": "to update",
    "renamed": "to rename",
    "attributes": "to give other attributes",
}
"""The same changes as facts, and as what a restore is about to do."""


class Outline(msgspec.Struct, frozen=True):
    """The changes worth listing, and one line for each group of other changes."""

    listed: list[FileChange]
    asides: list[str]

    def __bool__(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.listed or self.asides)


def outline(changes: Sequence[FileChange], *, full: bool = False) -> Outline:
    """Return the changes to list; those of git, temporary names and mere times are only counted."""
    kept = _telling(changes)
    if full:
        return Outline(kept, [])
    inside = [change for change in kept if GIT in change.path.split("/")]
    others = [change for change in kept if GIT not in change.path.split("/")]
    work = [change for change in others if not _is_of_restore(change)]
    times = [change for change in work if _is_times(change)]
    asides = []
    if inside:
        asides.append(f"{plural(len(inside), 'path')} in {GIT}")
    if len(work) < len(others):
        count = plural(len(others) - len(work), "file")
        asides.append(f"{count} that a restore keeps beside others until it ends")
    if times:
        asides.append(f"{plural(len(times), 'file')} with other times or extended attributes only")
    return Outline([change for change in work if not _is_times(change)], asides)


def _telling(changes: Sequence[FileChange]) -> list[FileChange]:
    """Return the changes without directories that are only added or removed with their content."""
    holders = {
        (change.change, change.path[:end])
        for change in changes
        for end, character in enumerate(change.path)
        if character == "/"
    }
    return [c for c in changes if c.kind != "directory" or (c.change, c.path) not in holders]


def counted(changes: Sequence[FileChange], words: dict[str, str]) -> str:
    """Return the number of changes of each kind."""
    counts: Counter[str] = Counter(change.change for change in changes)
    return ", ".join(f"{counts[name]:,} {word}" for name, word in words.items() if counts[name])


def change_lines(changes: Sequence[FileChange], limit: int | None = None) -> list[str]:
    """Return a line for each change, up to a limit."""
    shown = changes[:limit]
    lines = list(columns([_row(change) for change in shown]))
    if len(shown) < len(changes):
        lines.append(Cell(f"… and {len(changes) - len(shown):,} more", dim=True).styled())
    return lines


def details(change: FileChange) -> str:
    """Return what differs, in a few words."""
    if change.change == "renamed":
        return f"from {clean(change.old_path or '')}"
    if change.change == "attributes":
        return _modes(change) or "times or extended attributes"
    if change.kind != "file":
        return change.kind
    sizes = [size(count) for count in (change.old_size, change.size) if count is not None]
    return ", ".join(part for part in (" → ".join(sizes), _modes(change)) if part)


def coverage_text(coverage: Coverage | None) -> str:
    """Return how many files a checkpoint holds."""
    if coverage is None:
        return ""
    if coverage.refused is not None:
        return "no files"
    held = f" ({size(coverage.bytes)})" if coverage.bytes else ""
    return f"{plural(coverage.files, 'file')}{held}"


def without_store(found: Iterable[LeftOut]) -> list[LeftOut]:
    """Return what is left out, except the store, which always is."""
    return [left for left in found if left.rule != STORE_RULE]


def left_out_lines(found: Iterable[LeftOut]) -> list[str]:
    """Return one line per rule: how many paths it leaves out, and the first ones."""
    by_rule: dict[str, list[str]] = {}
    for left in without_store(found):
        by_rule.setdefault(left.rule, []).append(left.path)
    rows = [
        [Cell(clean(rule)), Cell(f"{len(paths):,}"), Cell(some_paths(paths), dim=True)]
        for rule, paths in by_rule.items()
    ]
    return list(columns(rows))


def some_paths(paths: Sequence[str]) -> str:
    """Return the first few paths."""
    more = ", …" if len(paths) > SHOWN_PATHS else ""
    return ", ".join(shorten(clean(path), WIDEST_PATH) for path in paths[:SHOWN_PATHS]) + more


def _row(change: FileChange) -> list[Cell]:
    sign, colour = _SIGNS[change.change]
    path = clean(change.path) + ("/" if change.kind == "directory" else "")
    return [Cell(f"{sign} {path or '.'}", colour), Cell(details(change))]


def _is_of_restore(change: FileChange) -> bool:
    return change.path.rpartition("/")[2].startswith(DRAFT)


def _is_times(change: FileChange) -> bool:
    return change.change == "attributes" and not _modes(change)


def _modes(change: FileChange) -> str:
    if change.old_mode == change.mode or change.old_mode is None or change.mode is None:
        return ""
    return f"mode {octal(change.old_mode)} → {octal(change.mode)}"


def warn_of_conflicts(conflicts: Iterable[str]) -> None:
    """Name the other sessions that changed the same files."""
    start = "Warning: "
    for conflict in conflicts:
        said = start + wrapped(clean(conflict), len(start))
        click.echo(Cell(said, "yellow").styled(), err=True)


def warn_of_shared_git(copy: Path) -> None:
    """Warn of a copy of a git worktree, which git takes for the worktree itself."""
    from mulligan.locate.git import git_outside

    git = git_outside(copy)
    if git is not None:
        start = "Warning: "
        said = f"{copy / GIT} names {git}, as in the directory that was copied: git has one index "
        said += "and one HEAD for both, and a commit in one is a commit in the other. Before you "
        said += "use git there, remove that file, or replace it by a repository of its own."
        said = start + wrapped(clean(said), len(start))
        click.echo(Cell(said, "yellow").styled(), err=True)


def tell_source(session: Session, point: Point, held: HeldFiles) -> None:
    """Say where the files of a point come from when the point itself has none."""
    if held.checkpoint is None:
        click.echo(f"These files are those of the restore #{held.seq}.", err=True)
    elif held.seq != (named := session.checkpoints.at(point)).seq:
        source = f"#{held.seq} ({held.checkpoint[:SHORT_ID]})"
        said = f"#{named.seq} of {named.session} holds no files; those of {source} count."
        click.echo(clean(said), err=True)
