"""Trees of objects out of the index: each directory that changed is written once, with no reading.

Every directory is an object of its own, so a change costs the directories above it and nothing of
what lies beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Raw

from mulligan import codec
from mulligan.codec import MapBranch, Ref
from mulligan.model import Digest
from mulligan.state import nodes
from mulligan.state.document import EMBED_LIMIT, Put, settle
from mulligan.workspace.entries import SELF, Directory, Leaf, encode_entry, to_name
from mulligan.workspace.index import Nodes, SeenDirectory

MOST_KEPT = 1024
"""How many directories are kept as nodes, so that they need not be made again."""

Directories = Mapping[bytes, SeenDirectory]
Changed = dict[bytes, set[bytes]]
"""The names that changed in directories; the empty name stands for a directory itself."""


def stored_entry(entry: Leaf | Directory, put: Put) -> bytes:
    """Return the bytes of an entry in its directory; a very long one becomes an object."""
    return settle(encode_entry(entry), put)


def stored_tree(directories: Directories, changed: Changed, put: Put, kept: Nodes) -> Digest:
    """Make objects of the directories that changed, and of all above; return the whole tree.

    What was made of a directory is kept for the next time, when only the names that changed need
    to be set in it. ``changed`` and ``kept`` are brought up to date.
    """
    for path in [path for path in changed if path in directories]:
        for up in _upwards(path):
            parent, _, name = up.rpartition(b"/")
            changed.setdefault(parent, set()).add(name)
    tree = None
    # From the last to the first, what is in a directory comes before the directory itself, and
    # close to it, so that they are found close together.
    above = [path for path in changed if path in directories]
    for path in sorted(above, key=_parts, reverse=True):
        node = _node(path, directories, changed[path], kept)
        tree = put(_settled_parts(node, put))
        directories[path].reference = codec.encode(Ref(tree))
    assert tree is not None  # noqa: S101 -- the root is always one of them
    return tree


def _node(path: bytes, directories: Directories, changed: Iterable[bytes], kept: Nodes) -> Any:
    """Return the node of a directory whose own directories have been stored, and keep it."""
    node = kept.pop(path, None)
    if node is None:
        node = nodes.build_map(_entries(path, directories))
    else:
        node = _renewed(node, path, directories, changed)
    kept[path] = node
    if len(kept) > MOST_KEPT:
        del kept[next(iter(kept))]
    return node


def _entries(path: bytes, directories: Directories) -> dict[str, Raw]:
    """Return all that is in a directory, encoded."""
    directory, base = directories[path], _base(path)
    parts = [(name, seen.entry) for name, seen in directory.leaves.items()]
    inner = [(name, directories.get(base + name)) for name in directory.directories]
    parts += [(name, seen.reference) for name, seen in inner if seen is not None]
    try:
        entries = {name.decode(): Raw(part) for name, part in parts}
    except UnicodeDecodeError:
        entries = {to_name(name): Raw(part) for name, part in parts}
    entries[SELF] = Raw(directory.entry)
    return entries


def _renewed(node: Any, path: bytes, directories: Directories, names: Iterable[bytes]) -> Any:
    """Return a directory's node with what it now holds under the given names."""
    for name in names:
        part = _part(path, name, directories)
        if part is not None:
            node = nodes.map_set(node, to_name(name), Raw(part), _never)
        elif nodes.map_get(node, to_name(name), None, _never) is not None:
            node = nodes.map_delete(node, to_name(name), _never)
    return node


def _part(path: bytes, name: bytes, directories: Directories) -> bytes | None:
    """Return what a directory holds under a name, which is empty for its own attributes."""
    directory = directories[path]
    if not name:
        return directory.entry
    if name in directory.directories:
        inner = directories.get(_base(path) + name)
        return None if inner is None else inner.reference
    leaf = directory.leaves.get(name)
    return None if leaf is None else leaf.entry


def _never(ref: Ref) -> Any:
    raise AssertionError(f"{ref} is no part of a node in the making")


def _base(path: bytes) -> bytes:
    return path + b"/" if path else b""


def _settled_parts(node: Any, put: Put) -> bytes:
    """Return the encoding of a node with every large part of it made an object.

    As ``settle_root`` has it, but no entry is looked into: they are settled before they come here.
    """
    if isinstance(node, MapBranch):
        slots = [slot if slot is None else Raw(_settled(slot, put)) for slot in node.slots]
        node = MapBranch(node.depth, node.count, slots)
    return codec.encode(node)


def _settled(node: Any, put: Put) -> bytes:
    data = _settled_parts(node, put)
    return data if len(data) <= EMBED_LIMIT else codec.encode(Ref(put(data)))


def _upwards(path: bytes) -> Iterator[bytes]:
    """Yield a directory and all above it."""
    yield path
    while path:
        path = path.rpartition(b"/")[0]
        yield path


def _parts(path: bytes) -> bytes:
    """Return a key by which what is below a directory follows it directly."""
    return path.replace(b"/", b"\0")
