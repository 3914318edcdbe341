"""What a restore never touches: uncovered files, stores, and git objects."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from mulligan.model import Problem
from mulligan.workspace.capture.ignore import Rules, is_of_store
from mulligan.workspace.entries import Directory, TreePath, from_name, shown
from mulligan.workspace.restore.caches import Caches, caches_in
from mulligan.workspace.restore.plan import TreeChange

_OBJECTS = re.compile(
    rb"(^|/)([^/]*\.git|\.git/modules/.+)/objects(/([0-9a-f]{2}|pack|info)(/|$)|$)"
)
"""Where git keeps its objects: in repositories, bare ones, and those of submodules."""

LEFT_ALONE = "it is left alone"
"""Prefix of the reason when something in the way of a restore is left alone."""


class ProtectedSplit(NamedTuple):
    """Changes to apply, changes that would touch protected paths, and the caches to remove.

    ``uncovered`` is what is still uncovered afterwards.
    """

    todo: list[TreeChange]
    left: list[TreeChange]
    caches: Caches
    uncovered: set[str]


def divide(
    root: bytes, rules: Rules, changes: list[TreeChange], uncovered: Collection[str]
) -> ProtectedSplit:
    """Split changes like :func:`split_protected`; caches do not keep a deleted directory."""
    caches = caches_in(root, rules, changes, uncovered)
    kept = set(uncovered).difference(map(shown, caches))
    # Caches count as covered here: otherwise each would keep its directory from being deleted.
    todo, left = split_protected(changes, kept)
    gone = {change.path for change in todo if _removes_directory(change)}
    going = [path for path in caches if path[:-1] in gone]
    stay = set(uncovered).difference(map(shown, going))
    return ProtectedSplit(todo, left, Caches(rules, going, todo), stay)


def split_protected(
    changes: list[TreeChange], uncovered: Collection[str]
) -> tuple[list[TreeChange], list[TreeChange]]:
    """Split changes into those to apply and those that would touch protected paths.

    ``uncovered`` lists, as text, what the present or the point's checkpoint left out: its content
    is unknown. Git objects are not deleted while their repository stays, so that commits stay
    reachable. They are deleted with a repository that is deleted as a whole, since the present's
    checkpoint holds all of it. Stores and pointers to stores are never touched. A directory stays
    if anything in it does.
    """
    covered = set(uncovered)
    kept = {place for path in covered for place in _above(path.split("/"))}
    gone = {s.path for s in changes if _removes_directory(s) and s.place not in kept}
    alone = {change.path for change in changes if _is_protected(change, covered, gone)}
    # A directory that holds anything protected cannot be removed either.
    kept |= {place for path in alone for place in _above(_shown_parts(path))}
    todo: list[TreeChange] = []
    left: list[TreeChange] = []
    for change in changes:
        stays = change.path in alone or (_removes_directory(change) and change.place in kept)
        (left if stays else todo).append(change)
    return todo, left


def in_the_way(left: list[TreeChange], rules: Mapping[str, str]) -> tuple[Problem, ...]:
    """Return what blocks files from being restored: paths that are left out, by their rules."""
    wanted = [change.path for change in left if change.after is not None]
    places = {place for path in wanted if (place := left_out_above(path, rules)) is not None}
    return tuple(
        Problem("file", place, f"{LEFT_ALONE}, no checkpoint holds it: {rules[place]}")
        for place in sorted(places)
    )


def left_out_above(path: TreePath, uncovered: Collection[str]) -> str | None:
    """Return the left-out path that is, or contains, a path."""
    if not uncovered:
        return None
    parts = _shown_parts(path)
    places = ("/".join(parts[:length]) for length in range(1, len(parts) + 1))
    return next((place for place in places if place in uncovered), None)


def _is_protected(
    change: TreeChange, uncovered: Collection[str], gone: Collection[TreePath]
) -> bool:
    # Git shares objects between commits, and stashes and reflogs may need those that the target
    # lacks.
    if change.after is None:
        repository = _repository(change.path)
        if repository is not None and repository not in gone:
            return True
    if any(is_of_store(from_name(name)) for name in change.path):
        return True  # a checkpoint of an earlier version may hold such a file
    return left_out_above(change.path, uncovered) is not None


def _repository(path: TreePath) -> TreePath | None:
    """Return the git repository whose object a path is, or None."""
    found = _OBJECTS.search(b"/".join(map(from_name, path)))
    if found is None:
        return None
    return path[: found.string[: found.end(2)].count(b"/") + 1]


def _removes_directory(change: TreeChange) -> bool:
    return change.after is None and isinstance(change.before, Directory)


def _shown_parts(path: TreePath) -> list[str]:
    return [shown((name,)) for name in path]


def _above(parts: list[str]) -> Iterator[str]:
    return ("/".join(parts[:length]) for length in range(1, len(parts)))
