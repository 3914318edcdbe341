"""Capturing: the workspace as a tree of objects, at the cost of what changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import msgspec

from mulligan.codec import Ref
from mulligan.model import Coverage, Digest, LeftOut, ObjectKind
from mulligan.objects.protocol import Bundle
from mulligan.state import nodes
from mulligan.state.document import MISSING, Document, settle_root
from mulligan.workspace.content import Read, Unreadable, read_leaf
from mulligan.workspace.entries import SELF, Directory, encode_entry, to_name
from mulligan.workspace.ignore import Rules
from mulligan.workspace.index import VERSION, Index, Seen, SeenDirectory
from mulligan.workspace.scan import Changes


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

    def __init__(self, root: Path, bundle: Bundle, index: Index | None, limits: Limits) -> None:
        self._root = root
        self._prefix = os.fsencode(root) + b"/"
        self._bundle = bundle
        self._limits = limits
        self._index = index
        self._directories = index.directories if index else {}
        start: Any = Ref(index.tree) if index else {}
        self._tree = Document(start, lambda d: bundle.get(ObjectKind.VALUE, d))

    def run(self, changes: Changes, rules: Rules, taken: int) -> Captured:
        """Apply what a scan found and return the captured workspace."""
        for path in changes.gone:
            self._forget(path)
        new = {p: d for p, d in changes.directories.items() if p not in self._directories}
        self._directories.update(changes.directories)
        for path in new:
            self._name_in_parent(path)
        fresh = self._read_leaves(changes.leaves, new)
        self._add_new(new, fresh)
        for path, directory in changes.directories.items():
            if path not in new:
                self._set((*_keys(path), SELF), _attributes(directory))
        root = self._tree.root
        tree = root.digest if isinstance(root, Ref) else settle_root(root, self._put)
        index = Index(VERSION, str(self._root), rules.identity, taken, tree, self._directories)
        return Captured(tree, self._coverage(), index)

    def _put(self, data: bytes) -> Digest:
        return self._bundle.put(ObjectKind.VALUE, data)

    def _set(self, path: tuple[str, ...], value: Any) -> None:
        self._tree = self._tree.set(path, value)

    def _forget(self, path: bytes) -> None:
        """Take a path, and all that was below it, out of the index and the tree."""
        parent, _, name = path.rpartition(b"/")
        holder = self._directories.get(parent)
        if holder is not None:
            holder.leaves.pop(name, None)
            holder.directories.discard(name)
        pending = [path] if path in self._directories else []
        while pending:
            gone = pending.pop()
            directory = self._directories.pop(gone, None)
            if directory is not None:
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
        """Read the leaves; those of new directories are returned to be added with them."""
        fresh: dict[bytes, dict[str, Any]] = {}
        for path in leaves:
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
        try:
            self._check_size(path)
            read = read_leaf(self._prefix + path, self._bundle)
        except (FileNotFoundError, NotADirectoryError):
            self._drop_leaf(path, name, directory)
            return None
        except Unreadable as error:
            self._drop_leaf(path, name, directory)
            directory.left_out[name] = str(error)
            return None
        entry = encode_entry(read.leaf)
        directory.leaves[name] = _seen(read, entry)
        return entry

    def _check_size(self, path: bytes) -> None:
        size = os.lstat(self._prefix + path).st_size
        if size > self._limits.max_file_size:
            raise Unreadable(f"it is larger than max_file_size, {self._limits.max_file_size} bytes")

    def _drop_leaf(self, path: bytes, name: bytes, directory: SeenDirectory) -> None:
        directory.leaves.pop(name, None)
        keys = _keys(path)
        if self._tree.find(keys) is not MISSING:
            self._tree = self._tree.delete(keys)

    def _add_new(self, new: dict[bytes, SeenDirectory], fresh: dict[bytes, dict[str, Any]]) -> None:
        """Build new directories from the bottom up and hang the topmost ones into the tree."""
        built: dict[bytes, dict[str, Any]] = {}
        for path in sorted(new, key=lambda p: p.count(b"/") if p else -1, reverse=True):
            entries = fresh.pop(path, {})
            entries.update(built.pop(path, {}))
            entries[SELF] = _attributes(new[path])
            node = nodes.build_map(entries)
            parent, _, name = path.rpartition(b"/")
            if not path:
                self._tree = self._tree.with_root(node)
            elif parent in new:
                built.setdefault(parent, {})[to_name(name)] = node
            else:
                self._set(_keys(path), node)

    def _coverage(self) -> Coverage:
        files = size = 0
        left_out: list[LeftOut] = []
        for path, directory in self._directories.items():
            files += len(directory.leaves)
            base = path + b"/" if path else b""
            left_out += [
                LeftOut((base + name).decode("utf-8", "backslashreplace"), rule)
                for name, rule in directory.left_out.items()
            ]
        return Coverage(files, len(self._directories), size, sorted(left_out))


def _keys(path: bytes) -> tuple[str, ...]:
    return tuple(to_name(part) for part in path.split(b"/")) if path else ()


def _attributes(directory: SeenDirectory) -> list[Any]:
    return encode_entry(Directory(stat.S_IMODE(directory.mode), directory.mtime))


def _seen(read: Read, entry: list[Any]) -> Seen:
    status = read.stat
    return Seen(
        status.st_ino,
        status.st_ctime_ns,
        status.st_mtime_ns,
        status.st_size,
        status.st_mode,
        entry,
    )
