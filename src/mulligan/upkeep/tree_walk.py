"""Walking trees object by object, so that what they share is looked at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from mulligan.codec import MapBranch, Ref
from mulligan.document.document import LoadBytes
from mulligan.model import Digest
from mulligan.workspace.capture.patch import PATCH
from mulligan.workspace.entries import FILE, SELF, TreePath, file_chunks

Pending = list[tuple[Digest, TreePath]]
"""Objects of trees that are still to be looked at, with their paths."""


class TreeFile(NamedTuple):
    """A file of a tree."""

    path: TreePath
    chunks: tuple[Digest, ...]


def tree_part(value: Any, path: TreePath, pending: Pending, load: LoadBytes) -> Iterator[TreeFile]:
    """Yield the files in one object of a tree; what it refers to is added to ``pending``."""
    stack: list[tuple[Any, TreePath]] = [(value, path)]
    while stack:
        value, at = stack.pop()
        if isinstance(value, Ref):
            pending.append((value.digest, at))
        elif isinstance(value, MapBranch):
            stack += [(slot, at) for slot in value.slots]
        elif isinstance(value, dict):
            stack += [(item, (*at, name)) for name, item in value.items() if name != SELF]
        elif isinstance(value, list) and value[:1] == [PATCH]:
            pending.append((value[1].digest, ()))
            stack += [(item, tuple(key.split("/"))) for key, item in value[2].items()]
        elif isinstance(value, list) and value[:1] == [FILE]:
            if isinstance(value[4], Ref):
                pending.append((value[4].digest, at))
            yield TreeFile(at, file_chunks(load, value[4]))
