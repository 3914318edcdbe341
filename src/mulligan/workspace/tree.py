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
from mulligan.workspace.index import SeenDirectory


def stored_entry(entry: Leaf | Directory, put: Put) -> bytes:
    """Return the bytes of an entry in its directory; a very long one becomes an object."""
    return settle(encode_entry(entry), put)


def stored_tree(
    directories: Mapping[bytes, SeenDirectory], changed: Iterable[bytes], put: Put
) -> Digest:
    """Make objects of the directories that changed, and of all above; return the whole tree."""
    above = {up for path in changed if path in directories for up in _upwards(path)}
    tree = None
    # From the last to the first, what is in a directory comes before the directory itself, and
    # close to it, so that they are found close together.
    for path in sorted(above | {b""}, key=_parts, reverse=True):
        tree = put(_settled_parts(_node(path, directories), put))
        directories[path].reference = codec.encode(Ref(tree))
    assert tree is not None  # noqa: S101 -- the root is always one of them
    return tree


def _node(path: bytes, directories: Mapping[bytes, SeenDirectory]) -> Any:
    """Return the node of a directory whose own directories have been stored."""
    directory = directories[path]
    base = path + b"/" if path else b""
    parts = [(name, seen.entry) for name, seen in directory.leaves.items()]
    inner = [(name, directories.get(base + name)) for name in directory.directories]
    parts += [(name, seen.reference) for name, seen in inner if seen is not None]
    try:
        entries = {name.decode(): Raw(part) for name, part in parts}
    except UnicodeDecodeError:
        entries = {to_name(name): Raw(part) for name, part in parts}
    entries[SELF] = Raw(directory.entry)
    return nodes.build_map(entries)


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
