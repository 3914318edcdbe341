"""Making a new tree out of an old one: each directory that changed is read and written once."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from mulligan import codec
from mulligan.codec import Ref
from mulligan.model import Digest
from mulligan.state import nodes
from mulligan.state.document import MISSING, LoadBytes, Put, settle_root
from mulligan.workspace.entries import to_name


class TreeEdits:
    """Changes to a tree, collected by directory; directories are paths from the root, ``b""``.

    Every directory is an object of its own, so a change costs the directories above it and
    nothing of what lies beside them.
    """

    def __init__(self, tree: Digest | None, load: LoadBytes) -> None:
        self._tree = tree
        self._load_bytes = load
        self._edits: dict[bytes, dict[str, Any]] = {}
        self._new: set[bytes] = set()
        self._old: dict[bytes, Any] = {}

    def begin(self, directory: bytes) -> None:
        """Begin a directory anew, with nothing in it."""
        self._new.add(directory)
        self._edits.setdefault(directory, {})

    def set(self, directory: bytes, name: str, entry: Any) -> None:
        """Let a name in a directory stand for an entry, or for nothing if that is ``MISSING``."""
        edits = self._edits.get(directory)
        if edits is None:
            edits = self._edits[directory] = {}
        edits[name] = entry

    def written(self, present: Container[bytes], put: Put) -> Digest:
        """Make objects of the directories that changed and are present; return the whole tree."""
        levels: dict[int, set[bytes]] = {}
        for path in self._edits:
            levels.setdefault(_depth(path), set()).add(path)
        for depth in range(max(levels, default=0), 0, -1):
            for path in sorted(levels.get(depth, ())):
                if path in present:
                    parent, _, name = path.rpartition(b"/")
                    self.set(parent, to_name(name), Ref(settle_root(self._edited(path), put)))
                    levels.setdefault(depth - 1, set()).add(parent)
        if self._tree is None or self._edits:
            self._tree = settle_root(self._edited(b""), put)
        return self._tree

    def _edited(self, path: bytes) -> Any:
        """Return the node of a directory with its changes."""
        node, edits = self._before(path), self._edits.pop(path, {})
        if isinstance(node, dict):
            merged = {**node, **edits}
            return nodes.build_map({k: v for k, v in merged.items() if v is not MISSING})
        for name, entry in edits.items():
            if entry is not MISSING:
                node = nodes.map_set(node, name, entry, self._load)
            elif nodes.map_get(node, name, MISSING, self._load) is not MISSING:
                node = nodes.map_delete(node, name, self._load)
        return node

    def _before(self, path: bytes) -> Any:
        """Return the node of a directory in the old tree; an empty one if there was none."""
        if path in self._new:
            return {}
        node = self._old.get(path)
        if node is None:
            node = self._old[path] = self._loaded(path)
        return node

    def _loaded(self, path: bytes) -> Any:
        if not path:
            return {} if self._tree is None else self._load(Ref(self._tree))
        parent, _, name = path.rpartition(b"/")
        found = nodes.map_get(self._before(parent), to_name(name), {}, self._load)
        node = nodes.resolve(found, self._load)
        return node if nodes.is_map(node) else {}

    def _load(self, ref: Ref) -> Any:
        return codec.decode(self._load_bytes(ref.digest))


def _depth(path: bytes) -> int:
    return path.count(b"/") + 1 if path else 0
