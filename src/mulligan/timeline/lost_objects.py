"""Which paths of trees and of the state lead to objects that the store no longer has.

Trees and states share most of their parts, so what is known of a part is kept by its digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from mulligan import codec
from mulligan.codec import ListBranch, MapBranch, OrderedBranch, Ref
from mulligan.document.nodes import references
from mulligan.engine import Engine
from mulligan.errors import MulliganError, PurgedContent
from mulligan.model import Digest
from mulligan.workspace.capture.patch import is_patch
from mulligan.workspace.entries import FILE, SELF, TreePath, split_chunks


class LostFile(NamedTuple):
    """A file that lacks some of its content: its size, and the chunks that are lost."""

    size: int
    chunks: tuple[Digest, ...]


LostPath = tuple[TreePath, LostFile | None]
"""A path that is lost; without a file, everything below it is."""


class LostInTrees:
    """Finds the paths of trees that are lost."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[Digest, list[LostPath]] = {}
        self.missing: set[Digest] = set()
        """The objects that were looked for and are not there, or are of no use without others."""
        self._is_broken = False

    def lost_in(self, tree: Digest) -> list[LostPath]:
        """Return the paths of a tree that cannot be restored, in order."""
        found = self._lost_in(tree)
        # Here, not where a file is looked at: one that a patch replaces is not lost.
        for _, file in found:
            self.missing.update(file.chunks if file else ())
        return found

    def _lost_in(self, tree: Digest) -> list[LostPath]:
        if tree not in self._known:
            above, self._is_broken = self._is_broken, False
            self._known[tree] = sorted(self._in_node(tree), key=lambda lost: lost[0])
            if self._is_broken:
                self.missing.add(tree)  # it is there, and cannot be read to its end
            self._is_broken = above
        return self._known[tree]

    def _in_node(self, digest: Digest) -> list[LostPath]:
        try:
            node = codec.decode(self._engine.load(digest))
        except PurgedContent:
            return []
        except MulliganError:
            self.missing.add(digest)
            return [((), None)]
        if is_patch(node):
            if any(file is None for _, file in self._lost_in(node[1].digest)):
                self.missing.add(digest)  # it cannot be applied to what is left of its base
            return self._in_patch(node[1].digest, node[2])
        return self._in_entry(node)

    def _in_patch(self, base: Digest, entries: dict[str, Any]) -> list[LostPath]:
        set_ = {tuple(path.split("/")) for path in entries}
        found = [lost for lost in self._lost_in(base) if lost[0] not in set_]
        for path, entry in entries.items():
            found += _below(tuple(path.split("/")), self._in_entry(entry))
        return found

    def _in_entry(self, entry: Any) -> list[LostPath]:
        """Return what is lost of an entry: a reference, a directory, a file or a symlink."""
        if isinstance(entry, Ref):
            return self._lost_in(entry.digest)
        if isinstance(entry, dict):
            found = self._in_attributes(entry.get(SELF))
            for name, inner in entry.items():
                if name != SELF:
                    found += _below((name,), self._in_entry(inner))
            return found
        if isinstance(entry, MapBranch):
            # A lost part of a large directory: which names it had is unknown.
            return [lost for slot in entry.slots for lost in self._in_entry(slot)]
        if isinstance(entry, list) and len(entry) > 4 and entry[0] == FILE:
            return self._in_attributes(entry[5:]) or self._in_file(entry[3], entry[4])
        return []

    def _in_attributes(self, value: Any) -> list[LostPath]:
        """Return that an entry is lost if its extended attributes are, which may be objects."""
        lost = set(self._without(references(value)))
        self.missing |= lost
        return [((), None)] if lost else []

    def _in_file(self, size: int, chunks: Any) -> list[LostPath]:
        try:
            if isinstance(chunks, Ref):
                chunks = codec.decode(self._engine.load(chunks.digest))
        except PurgedContent:
            return []
        except MulliganError:
            self.missing.add(chunks.digest)
            self._is_broken = True
            return [((), None)]
        lost = self._without(split_chunks(chunks))
        return [((), LostFile(size, lost))] if lost else []

    def _without(self, digests: Iterable[Digest]) -> tuple[Digest, ...]:
        """Return the objects that are not there; what was purged is not lost."""
        found = tuple(digest for digest in digests if not self._engine.objects.has(digest))
        if not found:
            return ()
        with self._engine.read() as view:
            purged = view.tombstones(found)
        return tuple(digest for digest in found if digest not in purged)


def _below(path: TreePath, lost: list[LostPath]) -> list[LostPath]:
    return [((*path, *inner), file) for inner, file in lost]


class LostInState:
    """Finds the paths of states that are lost."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[Digest, bool] = {}
        self.missing: set[Digest] = set()
        """The objects that were looked for and are not there."""

    def lost_below(self, digest: Digest) -> bool:
        """Whether a value, or one that it refers to, is lost."""
        if digest not in self._known:
            self._known[digest] = self._is_lost(digest)
        return self._known[digest]

    def _is_lost(self, digest: Digest) -> bool:
        try:
            value = codec.decode(self._engine.load(digest))
        except PurgedContent:
            return False
        except MulliganError:
            self.missing.add(digest)
            return True
        return any([self.lost_below(inner) for inner in references(value)])  # noqa: C419 -- all of them

    def lost_paths(self, root: Any) -> list[str]:
        """Return the paths below ``state`` that are lost, and the other parts of a document."""
        found = ["/".join(path) or "." for path in self._paths(root, ())]
        return [path.removeprefix("state/") for path in found]

    def _paths(self, value: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        if isinstance(value, Ref):
            if not self.lost_below(value.digest):
                return []
            try:
                value = codec.decode(self._engine.load(value.digest))
            except MulliganError:
                return [path]
        if isinstance(value, dict):
            return [p for key, inner in value.items() for p in self._paths(inner, (*path, key))]
        if isinstance(value, list):
            items = enumerate(value)
            return [p for at, inner in items for p in self._paths(inner, (*path, str(at)))]
        if isinstance(value, MapBranch | OrderedBranch):
            return [p for slot in value.slots for p in self._paths(slot, path)]
        if isinstance(value, ListBranch):
            lost = [p for slot in value.slots for p in self._paths(slot, path)]
            # Which items of a long list they are depends on its shape; the list is named.
            return [path] if lost else []
        return []
