"""Differences between two points: state, conversation and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from mulligan.views.files import file_change_view
from mulligan.views.points import point_view

if TYPE_CHECKING:
    from mulligan.model import FileChange
    from mulligan.timeline.diff import Diff, Difference

Patch = Callable[["FileChange"], str | None]
"""Returns the unified diff of a file; None where there is none to show."""


def difference_view(difference: Difference) -> dict[str, Any]:
    """Return one difference of the state; a value that is not there is left out."""
    view = {"path": difference.place, "change": difference.change}
    if difference.change != "added":
        view["before"] = difference.before
    if difference.change != "removed":
        view["after"] = difference.after
    return view


def difference_views(found: Iterable[Difference]) -> list[dict[str, Any]]:
    """Return differences of the state."""
    return [difference_view(difference) for difference in found]


def all_differences(diff: Diff) -> list[Difference]:
    """Return the differences of the state, then those of the conversation."""
    return [*diff.state, *diff.conversation]


def diff_view(
    diff: Diff, pending: dict[str, Any] | None = None, patch: Patch | None = None
) -> dict[str, Any]:
    """Return what differs; with ``patch`` each file has its unified diff.

    ``pending`` is the pending restore because of which present files may be half restored.
    """
    return {
        "before": point_view(diff.before),
        "after": point_view(diff.after),
        "state": difference_views(diff.state),
        "conversation": difference_views(diff.conversation),
        "files": [_file_view(change, patch) for change in diff.files],
        "pending": pending,
    }


def _file_view(change: FileChange, patch: Patch | None) -> dict[str, Any]:
    view = file_change_view(change)
    return view if patch is None else {**view, "patch": patch(change)}
