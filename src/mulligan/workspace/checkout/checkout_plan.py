"""The plan of a checkout: its directories, parents first, and its files by object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from mulligan.document import nodes
from mulligan.document.document import Document
from mulligan.model import DIGEST_SIZE, Digest
from mulligan.workspace.capture.ignore import is_of_store
from mulligan.workspace.entries import (
    FILE,
    SELF,
    Directory,
    Leaf,
    TreePath,
    from_name,
    to_name,
)
from mulligan.workspace.restore.plan import Entry, TreeChange, check_name, read_entry

_FIELDS = 5
"""Number of fields in the entry of a file without extended attributes."""


class DirectoryNode:
    """A directory that is being written; its handle is -1 while it is closed."""

    __slots__ = ("above", "handle", "name")

    def __init__(
        self, above: DirectoryNode | None = None, name: bytes = b"", handle: int = -1
    ) -> None:
        self.above = above
        self.name = name
        self.handle = handle

    @property
    def path(self) -> TreePath:
        """Its path in the tree."""
        return () if self.above is None else (*self.above.path, to_name(self.name))


class SingleChunkFile(NamedTuple):
    """A file with one object and no extended attributes, as almost all are."""

    place: DirectoryNode
    name: bytes
    mode: int
    mtime: int


Made = DirectoryNode | SingleChunkFile
"""What was made in the target directory and must be synced."""


class CheckoutPlan:
    """What to write into an empty directory, once all names are known to be safe."""

    def __init__(self) -> None:
        self.root = DirectoryNode()
        self.directories: list[tuple[DirectoryNode, Directory]] = []
        """Parents first."""
        self.wholes: dict[Digest, list[SingleChunkFile]] = {}
        self.leaves: list[tuple[DirectoryNode, bytes, Leaf]] = []
        """The rest: symlinks, and files that are not a ``SingleChunkFile``."""

    @property
    def count(self) -> int:
        """Number of files, symlinks and directories."""
        wholes = sum(map(len, self.wholes.values()))
        return wholes + len(self.leaves) + len(self.directories)

    def add_tree(self, document: Document) -> None:
        """Add a whole tree; raises ``UnsafeName``."""
        pending = [(self.root, document.resolved(document.root))]
        while pending:
            place, node = pending.pop()
            entries = node if type(node) is dict else document.entries(node)
            for name, value in entries.items():
                if name == SELF:
                    self._add(place, read_entry(document, value))
                    continue
                check_name(name)
                if is_of_store(from_name(name)):
                    continue  # reserved for the copy's own pointer
                if type(value) is list and _is_whole(value):
                    whole = SingleChunkFile(place, from_name(name), value[1], value[2])
                    self.wholes.setdefault(value[4], []).append(whole)
                    continue
                child, below = DirectoryNode(place, from_name(name)), document.resolved(value)
                if nodes.is_map(below):
                    pending.append((child, below))
                else:
                    self._add(child, read_entry(document, value))

    def add_steps(self, steps: Iterable[TreeChange]) -> None:
        """Add parts of a tree: the changes that create them from nothing, parents first."""
        places: dict[TreePath, DirectoryNode] = {(): self.root}
        for path, entry in ((step.path, step.after) for step in steps):
            if any(is_of_store(from_name(name)) for name in path):
                continue
            place = self.root
            if path:
                place = DirectoryNode(places[path[:-1]], from_name(path[-1]))
            if isinstance(entry, Directory):
                places[path] = place
            if entry is not None:
                self._add(place, entry)

    def _add(self, place: DirectoryNode, entry: Entry) -> None:
        if isinstance(entry, Directory):
            self.directories.append((place, entry))
        elif place.above is not None:
            self.leaves.append((place.above, place.name, entry))


def _is_whole(value: list[Any]) -> bool:
    chunks = value[-1]
    return (
        len(value) == _FIELDS
        and value[0] == FILE
        and type(chunks) is bytes
        and len(chunks) == DIGEST_SIZE
    )
