"""Capturing: the workspace as a tree of objects, at the cost of what changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from mulligan import codec
from mulligan.codec import Ref
from mulligan.model import Coverage, Digest, LeftOut, ObjectKind
from mulligan.objects.protocol import Bundle
from mulligan.state import nodes
from mulligan.state.document import EMBED_LIMIT, MISSING, Document, settle, settle_root
from mulligan.workspace.content import TooLarge, Unreadable, read_leaf, read_xattrs
from mulligan.workspace.entries import SELF, Directory, encode_entry, to_name
from mulligan.workspace.ignore import Rules
from mulligan.workspace.index import VERSION, Index, Seen, SeenDirectory, root_text
from mulligan.workspace.scan import Changes

TELL_EVERY = 256
"""After how many files read a capture tells how far it is."""

Progress = Callable[[int], None]
"""Is told how many files a capture has read so far."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of a workspace is captured: per file, and in all."""

    max_file_size: int = 4 << 30
    budget: int = 64 << 30


class Captured(msgspec.Struct, frozen=True):
    """A captured workspace: the digest of its tree, what it covers, and the index to go on from."""

    tree: Digest
    coverage: Coverage
    index: Index


class Capture:
    """Brings a tree up to date with the workspace, reading only what a scan found changed."""

    def __init__(
        self,
        root: Path,
        bundle: Bundle,
        index: Index | None,
        limits: Limits,
        progress: Progress = lambda _: None,
    ) -> None:
        self._root = root
        self._prefix = os.fsencode(root) + b"/"
        self._bundle = bundle
        self._limits = limits
        self._progress = progress
        self._index = index
        self._directories = index.directories if index else {}
        self._files, self._bytes = (index.files, index.size) if index else (0, 0)
        start: Any = Ref(index.tree) if index else {}
        self._tree = Document(start, lambda d: bundle.get(ObjectKind.VALUE, d))

    def run(self, changes: Changes, rules: Rules, taken: int) -> Captured:
        """Apply what a scan found and return the captured workspace."""
        for path in changes.gone:
            self._forget(path)
        new = {p: d for p, d in changes.directories.items() if p not in self._directories}
        for path, directory in changes.directories.items():
            self._replace(path, directory)
        for path in new:
            self._name_in_parent(path)
        fresh = self._read_leaves(changes.leaves, new)
        self._add_new(new, fresh)
        for path, directory in changes.directories.items():
            if path not in new:
                self._set((*_keys(path), SELF), self._attributes(path, directory))
        root = self._tree.root
        tree = root.digest if isinstance(root, Ref) else settle_root(root, self._put)
        index = Index(
            version=VERSION,
            root=root_text(self._root),
            rules=rules.identity,
            taken=taken,
            tree=tree,
            directories=self._directories,
            files=self._files,
            size=self._bytes,
        )
        return Captured(tree, self._coverage(), index)

    def _put(self, data: bytes) -> Digest:
        return self._bundle.put(ObjectKind.VALUE, data)

    def _set(self, path: tuple[str, ...], value: Any) -> None:
        self._tree = self._tree.set(path, value)

    def _replace(self, path: bytes, directory: SeenDirectory) -> None:
        """Take a directory as it is now into the index."""
        known = self._directories.get(path)
        if known is not directory:
            if known is not None:
                self._count(known, -1)
            self._count(directory, 1)
            self._directories[path] = directory

    def _count(self, directory: SeenDirectory, sign: int) -> None:
        self._files += sign * len(directory.leaves)
        self._bytes += sign * sum(map(_size, directory.leaves.values()))

    def _keep_leaf(self, directory: SeenDirectory, name: bytes, seen: Seen | None) -> None:
        """Set what is known of a leaf, or that there is none."""
        before = directory.leaves.pop(name, None)
        if before is not None:
            self._files -= 1
            self._bytes -= _size(before)
        if seen is not None:
            self._files += 1
            self._bytes += _size(seen)
            directory.leaves[name] = seen

    def _forget(self, path: bytes) -> None:
        """Take a path, and all that was below it, out of the index and the tree."""
        parent, _, name = path.rpartition(b"/")
        holder = self._directories.get(parent)
        if holder is not None:
            self._keep_leaf(holder, name, None)
            holder.directories.discard(name)
        pending = [path] if path in self._directories else []
        while pending:
            gone = pending.pop()
            directory = self._directories.pop(gone, None)
            if directory is not None:
                self._count(directory, -1)
                pending += [gone + b"/" + child for child in directory.directories]
        keys = _keys(path)
        if self._tree.find(keys) is not MISSING:
            self._tree = self._tree.delete(keys)

    def _name_in_parent(self, path: bytes) -> None:
        """See that a new directory is found from its parent, which may not have been listed."""
        parent, _, name = path.rpartition(b"/")
        if path and parent in self._directories:
            self._directories[parent].directories.add(name)

    def _read_leaves(
        self, leaves: list[bytes], new: dict[bytes, SeenDirectory]
    ) -> dict[bytes, dict[str, Any]]:
        """Read the leaves; those of new directories are returned to be added with them.

        They are read in order, so that a budget ends at the same file whoever lists them.
        """
        fresh: dict[bytes, dict[str, Any]] = {}
        for count, path in enumerate(sorted(leaves), 1):
            if count % TELL_EVERY == 0:
                self._progress(count)
            parent, _, name = path.rpartition(b"/")
            directory = self._directories.get(parent)
            if directory is None:
                continue  # it went away while it was scanned
            entry = self._read(path, name, directory)
            if entry is None:
                continue
            if parent in new:
                fresh.setdefault(parent, {})[to_name(name)] = entry
            else:
                self._set(_keys(path), entry)
        return fresh

    def _read(self, path: bytes, name: bytes, directory: SeenDirectory) -> list[Any] | None:
        """Read one leaf into the index and return its entry, or note why it is left out."""
        directory.left_out.pop(name, None)
        room = self._room(directory.leaves.get(name))
        try:
            read = read_leaf(self._prefix + path, self._bundle, room)
        except (FileNotFoundError, NotADirectoryError):
            self._drop_leaf(path, name, directory)
            return None
        except (TooLarge, Unreadable, OSError) as error:
            self._drop_leaf(path, name, directory)
            directory.left_out[name] = self._reason(error)
            return None
        self._keep_leaf(directory, name, _seen(read.stat))
        return encode_entry(read.leaf)

    def _room(self, known: Seen | None) -> int:
        """Return how large a file may be that takes the place of what is known."""
        others = self._bytes - (_size(known) if known else 0)
        return min(self._limits.max_file_size, self._limits.budget - others)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, OSError):
            return f"it cannot be read: {error.strerror}"
        if not isinstance(error, TooLarge):
            return str(error)
        if error.size > self._limits.max_file_size:
            return f"it is larger than max_file_size, {self._limits.max_file_size} bytes"
        return f"the budget of {self._limits.budget} bytes has no room for it"

    def _drop_leaf(self, path: bytes, name: bytes, directory: SeenDirectory) -> None:
        self._keep_leaf(directory, name, None)
        keys = _keys(path)
        if self._tree.find(keys) is not MISSING:
            self._tree = self._tree.delete(keys)

    def _add_new(self, new: dict[bytes, SeenDirectory], fresh: dict[bytes, dict[str, Any]]) -> None:
        """Build new directories from the bottom up and hang the topmost ones into the tree."""
        built: dict[bytes, dict[str, Any]] = {}
        for path in sorted(new, key=lambda p: p.count(b"/") if p else -1, reverse=True):
            entries = fresh.pop(path, {})
            entries.update(built.pop(path, {}))
            entries[SELF] = self._attributes(path, new[path])
            node = nodes.build_map(entries)
            parent, _, name = path.rpartition(b"/")
            if not path:
                self._tree = self._tree.with_root(node)
            elif parent in new:
                built.setdefault(parent, {})[to_name(name)] = self._settled(node)
            else:
                self._set(_keys(path), node)

    def _settled(self, node: Any) -> Any:
        """Return a node as a reference if it is large, so that it is encoded only once."""
        if len(codec.encode(node)) <= EMBED_LIMIT:
            return node
        return codec.decode(settle(node, self._put))

    def _attributes(self, path: bytes, directory: SeenDirectory) -> list[Any]:
        xattrs = read_xattrs(self._prefix + path)
        return encode_entry(Directory(stat.S_IMODE(directory.mode), directory.mtime, xattrs))

    def _coverage(self) -> Coverage:
        left_out: list[LeftOut] = []
        for path, directory in self._directories.items():
            base = path + b"/" if path else b""
            left_out += [
                LeftOut((base + name).decode("utf-8", "backslashreplace"), rule)
                for name, rule in directory.left_out.items()
            ]
        return Coverage(
            files=self._files,
            directories=len(self._directories),
            bytes=self._bytes,
            left_out=sorted(left_out),
            root=root_text(self._root),
        )


def _keys(path: bytes) -> tuple[str, ...]:
    return tuple(to_name(part) for part in path.split(b"/")) if path else ()


def _size(seen: Seen) -> int:
    return seen.size if stat.S_ISREG(seen.mode) else 0


def _seen(status: os.stat_result) -> Seen:
    return Seen(
        status.st_ino, status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_mode
    )
