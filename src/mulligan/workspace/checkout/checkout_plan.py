"""The plan of a checkout: its directories, parents first, and its files by object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mulligan.document import nodes
from mulligan.document.document import Document
from mulligan.model import DIGEST_SIZE, Digest
from mulligan.workspace.capture.ignore import is_of_store
from mulligan.workspace.entries import (
    FILE,
    SELF,
    Directory,
    File,
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

    node: DirectoryNode
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
        self.single_chunk_files: dict[Digest, list[SingleChunkFile]] = {}
        self.leaves: list[tuple[DirectoryNode, bytes, Leaf]] = []
        """The rest: symlinks, and files that are not a ``SingleChunkFile``."""
        self.purged: list[tuple[TreePath, str]] = []
        """Files that cannot be written because their content was purged, and why."""

    @property
    def count(self) -> int:
        """Number of files, symlinks and directories."""
        files = sum(map(len, self.single_chunk_files.values()))
        return files + len(self.leaves) + len(self.directories)

    @property
    def chunks(self) -> set[Digest]:
        """The chunks of all files."""
        files = (leaf for _, _, leaf in self.leaves if isinstance(leaf, File))
        return {chunk for file in files for chunk in file.chunks} | self.single_chunk_files.keys()

    def drop_purged(self, purged: Mapping[Digest, str]) -> None:
        """Leave files out whose content was purged; ``purged`` says why for each chunk."""
        for chunk in purged.keys() & self.single_chunk_files.keys():
            for file in self.single_chunk_files.pop(chunk):
                self.purged.append(((*file.node.path, to_name(file.name)), purged[chunk]))
        leaves, self.leaves = self.leaves, []
        for node, name, leaf in leaves:
            chunks = leaf.chunks if isinstance(leaf, File) else ()
            found = next((chunk for chunk in chunks if chunk in purged), None)
            if found is None:
                self.leaves.append((node, name, leaf))
            else:
                self.purged.append(((*node.path, to_name(name)), purged[found]))

    def add_tree(self, document: Document) -> None:
        """Add a whole tree; raises ``UnsafeName``."""
        # A stack instead of recursion: trees may be deeper than Python's limit.
        pending = [(self.root, document.resolved(document.root))]
        while pending:
            node, content = pending.pop()
            entries = content if type(content) is dict else document.entries(content)
            for name, value in entries.items():
                if name == SELF:
                    self._add(node, read_entry(document, value))
                    continue
                check_name(name)
                if is_of_store(from_name(name)):
                    continue  # reserved for the copy's own pointer
                # The common case first, without decoding: it dominates in a tree of 100,000 files.
                if type(value) is list and _is_single_chunk(value):
                    target = SingleChunkFile(node, from_name(name), value[1], value[2])
                    self.single_chunk_files.setdefault(value[4], []).append(target)
                    continue
                child, below = DirectoryNode(node, from_name(name)), document.resolved(value)
                if nodes.is_map(below):
                    pending.append((child, below))
                else:
                    self._add(child, read_entry(document, value))

    def add_changes(self, changes: Iterable[TreeChange]) -> None:
        """Add parts of a tree: the changes that create them from nothing, parents first."""
        directories_by_path: dict[TreePath, DirectoryNode] = {(): self.root}
        for path, entry in ((change.path, change.after) for change in changes):
            if any(is_of_store(from_name(name)) for name in path):
                continue
            node = self.root
            if path:
                node = DirectoryNode(directories_by_path[path[:-1]], from_name(path[-1]))
            if isinstance(entry, Directory):
                directories_by_path[path] = node
            if entry is not None:
                self._add(node, entry)

    def _add(self, node: DirectoryNode, entry: Entry) -> None:
        if isinstance(entry, Directory):
            self.directories.append((node, entry))
        elif node.above is not None:
            self.leaves.append((node.above, node.name, entry))


def _is_single_chunk(value: list[Any]) -> bool:
    chunks = value[-1]
    return (
        len(value) == _FIELDS
        and value[0] == FILE
        and type(chunks) is bytes
        and len(chunks) == DIGEST_SIZE
    )
