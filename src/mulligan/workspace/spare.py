"""What a restore leaves alone: what no checkpoint covers, stores, and the objects of git."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from mulligan.workspace.entries import Directory, from_name, shown
from mulligan.workspace.ignore import is_of_store
from mulligan.workspace.plan import Step, TreePath

_OBJECTS = re.compile(
    rb"(^|/)([^/]*\.git|\.git/modules/.+)/objects(/([0-9a-f]{2}|pack|info)(/|$)|$)"
)
"""Where git keeps its objects: in repositories, bare ones, and those of submodules."""


def spare(steps: list[Step], uncovered: Collection[str]) -> tuple[list[Step], list[Step]]:
    """Divide steps into those to take and those that would touch what is to be left alone.

    ``uncovered`` is what the present or the point's checkpoint left out, in text: what is or was
    there nobody knows. Git objects are never deleted, so that commits stay reachable by undo.
    Stores and pointers to stores are never touched. A directory stays when something in it does.
    """
    covered = set(uncovered)
    kept = {place for path in covered for place in _above(path.split("/"))}
    alone = {step.path for step in steps if _is_spared(step, covered)}
    kept |= {place for path in alone for place in _above(_shown_parts(path))}
    todo: list[Step] = []
    left: list[Step] = []
    for step in steps:
        stays = step.path in alone or (_removes_directory(step) and step.place in kept)
        (left if stays else todo).append(step)
    return todo, left


def left_out_above(path: TreePath, uncovered: Collection[str]) -> str | None:
    """Return what was left out that a path is, or lies in."""
    if not uncovered:
        return None
    parts = _shown_parts(path)
    places = ("/".join(parts[:length]) for length in range(1, len(parts) + 1))
    return next((place for place in places if place in uncovered), None)


def _is_spared(step: Step, uncovered: Collection[str]) -> bool:
    if step.after is None and _is_git_object(step.path):
        return True
    if any(is_of_store(from_name(name)) for name in step.path):
        return True  # a checkpoint of an earlier version may hold a file of that name
    return left_out_above(step.path, uncovered) is not None


def _is_git_object(path: TreePath) -> bool:
    return _OBJECTS.search(b"/".join(map(from_name, path))) is not None


def _removes_directory(step: Step) -> bool:
    return step.after is None and isinstance(step.before, Directory)


def _shown_parts(path: TreePath) -> list[str]:
    return [shown((name,)) for name in path]


def _above(parts: list[str]) -> Iterator[str]:
    return ("/".join(parts[:length]) for length in range(1, len(parts)))
