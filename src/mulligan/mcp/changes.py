"""Differences of files and state, short enough for a model to read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from mulligan.mcp.inputs import DiffInput
from mulligan.mcp.outputs import DiffOutput, FileChangeOutput, PointOutput, StateChange, shaped
from mulligan.views.diffs import all_differences
from mulligan.views.encoding import to_json
from mulligan.views.file_diffs import FileContents
from mulligan.views.files import file_change_view
from mulligan.views.points import point_view

if TYPE_CHECKING:
    from mulligan.model import FileChange
    from mulligan.session import Session
    from mulligan.timeline.diff import Diff

MAX_FILES = 300
MAX_VALUES = 100
MAX_VALUE_CHARACTERS = 300
MAX_PATCH_CHARACTERS = 40_000
"""Of all diffs together; the rest is counted as truncated."""

T = TypeVar("T")


class Shown(msgspec.Struct, Generic[T], frozen=True):
    """The first ones, and whether there are more."""

    shown: list[T]
    more: bool


def file_changes(changes: Iterable[FileChange]) -> Shown[FileChangeOutput]:
    """Return the paths that differ, the first of many."""
    found = list(changes)
    shown = [shaped(file_change_view(one), FileChangeOutput) for one in found[:MAX_FILES]]
    return Shown(shown, len(found) > len(shown))


def state_changes(diff: Diff) -> Shown[StateChange]:
    """Return the values that differ, the first of many, cut to a line each."""
    found = all_differences(diff)
    shown = [
        StateChange(
            one.place,
            one.change,
            None if one.change == "added" else _short(one.before),
            None if one.change == "removed" else _short(one.after),
        )
        for one in found[:MAX_VALUES]
    ]
    return Shown(shown, len(found) > len(shown))


def diff_output(session: Session, diff: Diff, given: DiffInput, root: Path) -> DiffOutput:
    """Return what differs, with diffs of text as long as there is room."""
    files, state = file_changes(diff.files), state_changes(diff)
    shown, cut = files.shown, False
    if given.patch:
        contents = FileContents(session, diff.before, diff.after if given.after else None, root)
        shown, cut = _with_patches(diff.files[: len(shown)], shown, contents)
    return DiffOutput(
        before=shaped(point_view(diff.before), PointOutput),
        after=shaped(point_view(diff.after), PointOutput),
        files=shown,
        state=state.shown,
        truncated=files.more or state.more or cut,
    )


def _with_patches(
    changes: Iterable[FileChange], shown: list[FileChangeOutput], contents: FileContents
) -> tuple[list[FileChangeOutput], bool]:
    room, cut, found = MAX_PATCH_CHARACTERS, False, []
    for change, output in zip(changes, shown, strict=True):
        patch = contents.patch(change).text if room else None
        if patch is not None and len(patch) > room:
            patch, cut = None, True
        room -= len(patch or "")
        found.append(msgspec.structs.replace(output, patch=patch or None))
    return found, cut


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else to_json(value, indent=None)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]} …"
