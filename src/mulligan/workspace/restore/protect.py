"""What a restore leaves alone: what no checkpoint covers, stores, and the objects of git."""

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
"""How the reason begins why something is still there that is in the way of a restore."""


class ProtectedSplit(NamedTuple):
    """Steps to take, steps that would touch what is left alone, and the caches that go.

    ``uncovered`` is what stays uncovered then.
    """

    todo: list[TreeChange]
    left: list[TreeChange]
    caches: Caches
    uncovered: set[str]


def divide(
    root: bytes, rules: Rules, steps: list[TreeChange], uncovered: Collection[str]
) -> ProtectedSplit:
    """Divide steps as :func:`split_protected` does; caches do not keep a directory that goes."""
    caches = caches_in(root, rules, steps, uncovered)
    kept = set(uncovered).difference(map(shown, caches))
    todo, left = split_protected(steps, kept)
    gone = {step.path for step in todo if _removes_directory(step)}
    going = [path for path in caches if path[:-1] in gone]
    stay = set(uncovered).difference(map(shown, going))
    return ProtectedSplit(todo, left, Caches(rules, going, todo), stay)


def split_protected(
    steps: list[TreeChange], uncovered: Collection[str]
) -> tuple[list[TreeChange], list[TreeChange]]:
    """Divide steps into those to take and those that would touch what is to be left alone.

    ``uncovered`` is what the present or the point's checkpoint left out, in text: what is or was
    there nobody knows. Git objects are not deleted while their repository stays, so that commits
    stay reachable; they go with a repository that goes as a whole, of which the present's
    checkpoint holds everything. Stores and pointers to stores are never touched. A directory stays
    when something in it does.
    """
    covered = set(uncovered)
    kept = {place for path in covered for place in _above(path.split("/"))}
    gone = {s.path for s in steps if _removes_directory(s) and s.place not in kept}
    alone = {step.path for step in steps if _is_protected(step, covered, gone)}
    kept |= {place for path in alone for place in _above(_shown_parts(path))}
    todo: list[TreeChange] = []
    left: list[TreeChange] = []
    for step in steps:
        stays = step.path in alone or (_removes_directory(step) and step.place in kept)
        (left if stays else todo).append(step)
    return todo, left


def in_the_way(left: list[TreeChange], rules: Mapping[str, str]) -> tuple[Problem, ...]:
    """Return what keeps files from being brought back: paths that are left out, by their rules."""
    wanted = [step.path for step in left if step.after is not None]
    places = {place for path in wanted if (place := left_out_above(path, rules)) is not None}
    return tuple(
        Problem("file", place, f"{LEFT_ALONE}, no checkpoint holds it: {rules[place]}")
        for place in sorted(places)
    )


def left_out_above(path: TreePath, uncovered: Collection[str]) -> str | None:
    """Return what was left out that a path is, or lies in."""
    if not uncovered:
        return None
    parts = _shown_parts(path)
    places = ("/".join(parts[:length]) for length in range(1, len(parts) + 1))
    return next((place for place in places if place in uncovered), None)


def _is_protected(step: TreeChange, uncovered: Collection[str], gone: Collection[TreePath]) -> bool:
    if step.after is None:
        repository = _repository(step.path)
        if repository is not None and repository not in gone:
            return True
    if any(is_of_store(from_name(name)) for name in step.path):
        return True  # a checkpoint of an earlier version may hold a file of that name
    return left_out_above(step.path, uncovered) is not None


def _repository(path: TreePath) -> TreePath | None:
    """Return the directory of the git repository that a path is an object of, if it is one."""
    found = _OBJECTS.search(b"/".join(map(from_name, path)))
    if found is None:
        return None
    return path[: found.string[: found.end(2)].count(b"/") + 1]


def _removes_directory(step: TreeChange) -> bool:
    return step.after is None and isinstance(step.before, Directory)


def _shown_parts(path: TreePath) -> list[str]:
    return [shown((name,)) for name in path]


def _above(parts: list[str]) -> Iterator[str]:
    return ("/".join(parts[:length]) for length in range(1, len(parts)))
