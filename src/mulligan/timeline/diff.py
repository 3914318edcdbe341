"""Structural differences between the states of two points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mulligan.document.compare import differences
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import STATE
from mulligan.document.values import format_path
from mulligan.model import FileChange, Path, Point, ValueChange
from mulligan.timeline.undo import nothing_at, outermost

CONVERSATION = "conversation"


class Difference(msgspec.Struct, frozen=True):
    """One path whose value differs: ``change`` is added, removed or changed."""

    path: Path
    change: ValueChange
    before: Any = None
    after: Any = None

    @property
    def place(self) -> str:
        """The path as text."""
        return format_path(self.path)


class Diff(msgspec.Struct, frozen=True):
    """What differs between two points: state, conversation, and files if both have them."""

    before: Point
    after: Point
    state: tuple[Difference, ...]
    conversation: tuple[Difference, ...]
    files: tuple[FileChange, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.state or self.conversation or self.files)


def diff(
    before: Point,
    after: Point,
    old: Document,
    new: Document,
    only: Sequence[Path] | None = None,
) -> Diff:
    """Return the differences between the states of two documents, optionally of some parts."""
    parts = [()] if only is None else outermost(only)
    found = [d for part in parts for d in _part_differences(old, new, part)]
    talk = [d for d in found if d.path[:1] == (CONVERSATION,)]
    rest = [d for d in found if d.path[:1] != (CONVERSATION,)]
    return Diff(before, after, tuple(rest), tuple(talk))


def known_parts(old: Document, new: Document, only: Sequence[Path] | None) -> Sequence[Path] | None:
    """Return the given parts that exist in at least one of two states."""
    if only is None:
        return None
    return [p for p in only if any(d.find((*STATE, *p)) is not MISSING for d in (old, new))]


def _part_differences(old: Document, new: Document, part: Path) -> list[Difference]:
    one, other = old.find((*STATE, *part)), new.find((*STATE, *part))
    if one is MISSING and other is MISSING:
        raise nothing_at(part)
    return [_difference(new, *found) for found in differences(new, one, other, part)]


def _difference(document: Document, path: Path, before: Any, after: Any) -> Difference:
    if before is MISSING:
        return Difference(path, "added", after=document.plain(after))
    if after is MISSING:
        return Difference(path, "removed", before=document.plain(before))
    return Difference(path, "changed", document.plain(before), document.plain(after))
