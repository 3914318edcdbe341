"""Searching trees for files at paths: which chunks are theirs alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mulligan import codec
from mulligan.engine import Engine
from mulligan.model import Digest
from mulligan.upkeep.known_lost import KnownLosses
from mulligan.upkeep.tree_walk import tree_part
from mulligan.workspace.entries import TreePath


class PathChunks(NamedTuple):
    """The chunks of files at and below some paths, each with a path that has it.

    ``others`` are those of them that a file elsewhere has as well.
    """

    own: dict[Digest, TreePath]
    others: dict[Digest, TreePath]


def chunks_at(engine: Engine, trees: Iterable[Digest], targets: Iterable[TreePath]) -> PathChunks:
    """Return the chunks that files at and below paths have in any of the trees."""
    walk = _Walk(engine, list(targets))
    for tree in trees:
        walk.tree(tree)
    shared = walk.inside.keys() & walk.outside.keys()
    own = {chunk: path for chunk, path in walk.inside.items() if chunk not in shared}
    return PathChunks(own, {chunk: walk.outside[chunk] for chunk in shared})


class _Walk:
    def __init__(self, engine: Engine, targets: list[TreePath]) -> None:
        self._losses = KnownLosses(engine)
        self._targets = targets
        self._seen: set[Digest | tuple[Digest, TreePath]] = set()
        self.inside: dict[Digest, TreePath] = {}
        self.outside: dict[Digest, TreePath] = {}

    def tree(self, tree: Digest) -> None:
        """Walk a tree; parts that it shares with others and that no target is in only once."""
        pending: list[tuple[Digest, TreePath]] = [(tree, ())]
        while pending:
            digest, path = pending.pop()
            key = (digest, path) if self._concerns(path) else digest
            if key in self._seen:
                continue
            self._seen.add(key)
            value = codec.decode(self._losses.load(digest))
            for file in tree_part(value, path, pending, self._losses.load):
                found = self.inside if self._is_inside(file.path) else self.outside
                for chunk in file.chunks:
                    found.setdefault(chunk, file.path)

    def _is_inside(self, path: TreePath) -> bool:
        return any(path[: len(target)] == target for target in self._targets)

    def _concerns(self, path: TreePath) -> bool:
        """Whether a target is at, above or below a path."""
        return any(path[: len(target)] == target[: len(path)] for target in self._targets)
