"""Build trees of objects from the index: each changed directory is written once, nothing is read.

Every directory is an object of its own, so a change costs the directories above it and nothing of
their siblings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Raw

from mulligan import codec
from mulligan.codec import MapBranch, Ref
from mulligan.document import nodes
from mulligan.document.document import EMBED_LIMIT, Put, settle
from mulligan.model import Digest
from mulligan.workspace.capture.index import Kept, Nodes, SeenDirectory
from mulligan.workspace.entries import SELF, Directory, Leaf, encode_entry, to_name

MAX_KEPT_NODES = 256
"""Maximum number of large directories whose nodes are kept for reuse."""

Directories = Mapping[bytes, SeenDirectory]
Changed = dict[bytes, set[bytes]]
"""The names that changed, by directory; the empty name is the directory itself."""


def stored_entry(entry: Leaf | Directory, put: Put) -> bytes:
    """Return the bytes of an entry in its directory; a very long one becomes an object."""
    return settle(encode_entry(entry), put)


def stored_tree(directories: Directories, changed: Changed, put: Put, kept: Nodes) -> Digest:
    """Store the changed directories and all their parents; return the whole tree.

    The node of a large directory is kept for the next time, when only the changed names need to be
    set in it. ``changed`` and ``kept`` are updated.
    """
    for path in [path for path in changed if path in directories]:
        for up in _upwards(path):
            parent, _, name = up.rpartition(b"/")
            changed.setdefault(parent, set()).add(name)
    tree = None
    # In reverse order, children come just before their parent. A parent needs their digests, and
    # objects written together are later read together.
    above = [path for path in changed if path in directories]
    for path in sorted(above, key=_parts, reverse=True):
        tree = put(_encoded(path, directories, changed[path], put, kept))
        directories[path].reference = codec.encode(Ref(tree))
    assert tree is not None  # noqa: S101 -- the root is always one of them
    return tree


def _encoded(
    path: bytes, directories: Directories, changed: Iterable[bytes], put: Put, kept: Nodes
) -> bytes:
    """Return the encoding of a directory whose subdirectories have been stored."""
    before = kept.pop(path, None)
    # Below FAN entries a directory is a plain map: there is no node to keep.
    if len(directories[path].leaves) + len(directories[path].directories) < nodes.FAN:
        return _small(path, directories)
    if before is None:
        entries = {to_name(name): Raw(part) for name, part in _parts_of(path, directories).items()}
        entries[SELF] = Raw(directories[path].entry)
        node = nodes.build_trie(entries)
    else:
        node = _renewed(before.node, path, directories, changed)
    if not isinstance(node, MapBranch):
        return codec.encode(node)
    after = _settled(node, put, before)
    kept[path] = after
    # The oldest goes: dicts keep their order, and a directory that changes again is inserted again.
    if len(kept) > MAX_KEPT_NODES:
        del kept[next(iter(kept))]
    return codec.encode(MapBranch(node.depth, node.count, after.slots))


def _small(path: bytes, directories: Directories) -> bytes:
    """Return the canonical encoding of a small directory, assembled by hand.

    A change involves several of them, and this takes a third of the codec's time.
    """
    parts, heads = _parts_of(path, directories), codec.TEXT_HEADS
    if not b"".join(parts).isascii():
        parts = {to_name(name).encode(): part for name, part in parts.items()}
    start = codec.map_head(len(parts) + 1) + heads[0] + directories[path].entry
    entries = [heads[len(name)] + name + part for name, part in sorted(parts.items())]
    return start + b"".join(entries)


def _parts_of(path: bytes, directories: Directories) -> dict[bytes, bytes]:
    """Return everything in a directory, encoded."""
    directory, base = directories[path], _base(path)
    parts = {name: seen.entry for name, seen in directory.leaves.items()}
    for name in directory.directories:
        inner = directories.get(base + name)
        if inner is not None:
            parts[name] = inner.reference
    return parts


def _renewed(node: MapBranch, path: bytes, directories: Directories, names: Iterable[bytes]) -> Any:
    """Return a directory's node with the current entries of the given names."""
    for name in names:
        part = part_of(path, name, directories)
        if part is not None:
            node = nodes.trie_set(node, to_name(name), Raw(part), _never)
        elif nodes.map_get(node, to_name(name), None, _never) is not None:
            node = nodes.trie_delete(node, to_name(name), _never)
    return node


def part_of(path: bytes, name: bytes, directories: Directories) -> bytes | None:
    """Return what a directory holds under a name; empty for its own attributes."""
    directory = directories[path]
    if not name:
        return directory.entry
    if name in directory.directories:
        inner = directories.get(_base(path) + name)
        return None if inner is None else inner.reference
    leaf = directory.leaves.get(name)
    return None if leaf is None else leaf.entry


def _never(ref: Ref) -> Any:
    raise AssertionError(f"{ref} is not part of a node under construction")


def _base(path: bytes) -> bytes:
    return path + b"/" if path else b""


def _settled(node: MapBranch, put: Put, before: Kept | None) -> Kept:
    """Return a large directory with every large part stored as an object.

    Like ``settle_root``, except that entries are not inspected (they are settled already), and
    unchanged parts are not encoded again.
    """
    old = before.node.slots if before else [None] * len(node.slots)
    known = before.slots if before else old
    slots = [
        # Identity is enough: an unchanged slot is the same object in the persistent node.
        encoded if slot is was else Raw(_settled_slot(slot, put))
        for slot, was, encoded in zip(node.slots, old, known, strict=True)
    ]
    return Kept(node, slots)


def _settled_slot(slot: Any, put: Put) -> bytes:
    if isinstance(slot, MapBranch):
        inner = [part if part is None else Raw(_settled_slot(part, put)) for part in slot.slots]
        slot = MapBranch(slot.depth, slot.count, inner)
    data = codec.encode(slot)
    return data if len(data) <= EMBED_LIMIT else codec.encode(Ref(put(data)))


def _upwards(path: bytes) -> Iterator[bytes]:
    """Yield a directory and all its parents."""
    yield path
    while path:
        path = path.rpartition(b"/")[0]
        yield path


def _parts(path: bytes) -> bytes:
    """Return a sort key that places everything below a directory directly after it."""
    return path.replace(b"/", b"\0")
