"""Patches: a tree stored as another one plus the few entries that differ from it.

A change deep in a large tree makes every directory above it a new object. A patch lists the changed
entries only, so its cost does not depend on the size of the tree. It represents the tree that
results from setting these entries in its base. The base is never a patch itself, and a patch
neither adds nor removes directories.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.msgpack import Ext

from mulligan import codec
from mulligan.codec import Ref
from mulligan.document import nodes
from mulligan.document.document import MISSING, Document
from mulligan.errors import DamageError
from mulligan.model import DIGEST_SIZE, Digest
from mulligan.workspace.entries import DIRECTORY, FILE, LINK

PATCH = "p"
"""The first item of a patch; a directory is stored as a dict instead."""

_NOTHING = Raw(codec.encode(None))
"""Represents an entry that the base has and the tree does not."""

_FIRST = codec.encode([PATCH, None, {}])[:1]

_REFERENCE = codec.encode(Ref(Digest(bytes(DIGEST_SIZE))))[:3]
_A_DIRECTORY = codec.encode(DIRECTORY)
_A_LEAF = (codec.encode(FILE), codec.encode(LINK))

_decode = msgspec.msgpack.Decoder(tuple[Literal["p"], Ext, dict[str, Raw]]).decode


class TreePatch(NamedTuple):
    """The base, and the encoded entries by path; a directory's own path ends with a slash."""

    base: Digest
    entries: dict[str, Raw]

    def entry(self, path: str) -> Raw | None:
        """Return the entry set at a path, or None if the patch removes it."""
        entry = self.entries[path]
        return None if entry == _NOTHING else entry


def encode_patch(base: Digest, entries: Mapping[str, bytes | None]) -> bytes:
    """Return a patch with these encoded entries; None removes an entry."""
    parts = {path: _NOTHING if part is None else Raw(part) for path, part in entries.items()}
    return codec.encode([PATCH, Ref(base), parts])


def read_patch(document: Document, tree: Digest) -> TreePatch:
    """Return a tree as a patch; a tree stored in full is its own base."""
    data = document.stored(Ref(tree))
    # The first byte tells an array (patch) from a map (directory) without decoding either.
    if data[:1] != _FIRST:
        return TreePatch(tree, {})
    try:
        _, base, entries = _decode(data)
    except msgspec.DecodeError as error:
        raise DamageError(f"Tree {tree.hex()} is neither directory nor patch: {error}.") from error
    if base.code != codec.EXT_REF or len(bytes(base.data)) != DIGEST_SIZE:
        raise DamageError(f"Tree {tree.hex()} is a patch without a base.")
    # Checked here, because later code takes entries apart without checks.
    for path, entry in entries.items():
        if not _is_entry(path, bytes(entry)):
            raise DamageError(f"Tree {tree.hex()} is a patch with an invalid entry at {path!r}.")
    return TreePatch(Digest(bytes(base.data)), entries)


def open_tree(document: Document, tree: Digest) -> Document:
    """Return a tree as a document; a patch is applied to its base."""
    patch = read_patch(document, tree)
    found = document.with_root(Ref(patch.base))
    # Sorted, so that damage is always reported for the same path.
    for key in sorted(patch.entries):
        path, entry = tuple(key.split("/")), patch.entry(key)
        before = leaf_in(found, path)
        if entry is not None:
            found = found.set(path, codec.decode(entry))
        elif before is not MISSING:
            found = found.delete(path)
    return found


def is_patch(value: Any) -> bool:
    """Whether a decoded tree is a patch."""
    return isinstance(value, list) and len(value) == 3 and value[0] == PATCH


def _is_entry(path: str, entry: bytes) -> bool:
    """Whether encoded bytes can be the entry at a path, judging by their first bytes."""
    if entry[:3] == _REFERENCE:
        return True  # a reference to a very long entry
    if path.endswith("/") or not path:
        return entry[1:3] == _A_DIRECTORY
    return entry[1:3] in _A_LEAF or entry == bytes(_NOTHING)


def leaf_in(tree: Document, path: tuple[str, ...]) -> Any:
    """Return what a tree has where a patch sets an entry, or ``MISSING``.

    Raises ``DamageError`` where no patch may apply: outside a directory, or at a directory.
    """
    holder = tree.resolved(tree.find(path[:-1]))
    if nodes.is_map(holder):
        found = tree.with_root(holder).find(path[-1:])
        if found is MISSING or not nodes.is_map(tree.resolved(found)):
            return found
    raise DamageError(f"A tree is patched at {'/'.join(path)!r}, where no patch can apply.")
