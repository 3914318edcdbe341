"""The document: an immutable value addressed by paths, loaded from objects on demand."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from mulligan import codec
from mulligan.codec import ListBranch, MapBranch, OrderedBranch, Ref
from mulligan.document import nodes
from mulligan.document.values import format_path
from mulligan.errors import InvalidPath, PathNotFound
from mulligan.model import Digest, Path

EMBED_LIMIT = 4096
"""The largest encoding embedded in its parent; a larger value becomes a separate object."""

Put = Callable[[bytes], Digest]
LoadBytes = Callable[[Digest], bytes]


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""Represents the absence of a value; None is a value."""


class Document:
    """A frozen value, and how to load its parts."""

    __slots__ = ("_load_bytes", "root")

    def __init__(self, root: Any, load_bytes: LoadBytes) -> None:
        self.root = root
        self._load_bytes = load_bytes

    def with_root(self, root: Any) -> Document:
        """Return a document with another root over the same objects."""
        return Document(root, self._load_bytes)

    def _load(self, ref: Ref) -> Any:
        return codec.decode(self._load_bytes(ref.digest))

    def find(self, path: Path) -> Any:
        """Return the frozen value at a path, or ``MISSING``."""
        value = self.root
        for part in path:
            # Plain dicts first: every write takes dozens of these steps, and most are of this kind.
            if type(value) is dict:
                value = value.get(part, MISSING)
            else:
                value = self._child(nodes.resolve(value, self._load), part)
            if value is MISSING:
                return MISSING
        return value

    def normal(self, path: Path) -> Path:
        """Return the path with list indexes as non-negative integers."""
        value, parts = self.root, []
        for part in path:
            node = nodes.resolve(value, self._load)
            if nodes.is_list(node):
                index = _index(part, nodes.size(node))
                part = part if index is None else index
            parts.append(part)
            value = self._child(node, part)
        return tuple(parts)

    def set(self, path: Path, value: Any) -> Document:
        """Return the document with the value set at the path; missing dicts are created."""
        return self.with_root(self._updated(self.root, path, 0, lambda _: value))

    def delete(self, path: Path) -> Document:
        """Return the document without the value at the path; raises ``PathNotFound``."""
        if self.find(path) is MISSING:
            raise PathNotFound(f"There is nothing at {format_path(path)!r} to delete.")
        if not path:
            return self.with_root({})
        return self.with_root(self._updated(self.root, path, 0, lambda _: MISSING))

    def extend(self, path: Path, items: list[Any]) -> Document:
        """Return the document with items appended to the list at the path, created if missing."""

        def extended(old: Any) -> Any:
            node = nodes.resolve([] if old is MISSING else old, self._load)
            if not nodes.is_list(node):
                raise InvalidPath(f"The value at {format_path(path)!r} is not a list.")
            return nodes.list_extend(node, items, self._load)

        return self.with_root(self._updated(self.root, path, 0, extended))

    def stored(self, ref: Ref) -> bytes:
        """Return the encoding of a value that is a separate object."""
        return self._load_bytes(ref.digest)

    def resolved(self, value: Any) -> Any:
        """Return the node that a frozen value refers to."""
        return nodes.resolve(value, self._load)

    def items(self, node: Any) -> list[Any]:
        """Return the items of a resolved list."""
        return list(node if type(node) is list else nodes.list_items(node, self._load))

    def slice(self, node: Any, start: int, stop: int) -> list[Any]:
        """Return the items ``start..stop - 1`` of a resolved list; no other segment is loaded."""
        return nodes.list_slice(node, start, stop, self._load)

    def spliced(self, node: Any, start: int, items: list[Any]) -> Any:
        """Return a resolved list with other items from ``start`` on; it shares those before."""
        return nodes.list_extend(nodes.list_truncate(node, start, self._load), items, self._load)

    def entries(self, node: Any) -> dict[str, Any]:
        """Return the entries of a resolved dict by sorted key."""
        return dict(sorted(nodes.map_items(node, self._load)))

    def plain(self, value: Any) -> Any:
        """Return a frozen value as plain Python values that the caller may modify."""
        if value is None or type(value) in (str, int, float, bool, bytes):
            return value
        with gc_paused():
            return codec.plain_decoder(self._load_bytes)(codec.encode(value))

    def _child(self, node: Any, part: str | int) -> Any:
        if type(node) is dict:
            return node.get(part, MISSING)  # the most frequent case; no key is a number
        if nodes.is_map(node):
            return nodes.map_get(node, part, MISSING, self._load) if type(part) is str else MISSING
        if nodes.is_list(node):
            index = _index(part, nodes.size(node))
            return MISSING if index is None else nodes.list_get(node, index, self._load)
        return MISSING

    def _updated(self, value: Any, path: Path, at: int, change: Callable[[Any], Any]) -> Any:
        """Return the value with ``change`` applied at the end of the path."""
        if at == len(path):
            return change(value)
        part = path[at]
        if type(value) is dict and type(part) is str and part in value:
            child = self._updated(value[part], path, at + 1, change)
            # The most frequent case: the dict keeps its size, and so its shape.
            if child is not MISSING:
                return {**value, part: child}
            return self._with_entry(value, part, MISSING)
        node = {} if value is MISSING else nodes.resolve(value, self._load)
        child = self._updated(self._child(node, part), path, at + 1, change)
        if nodes.is_map(node) and isinstance(part, str):
            return self._with_entry(node, part, child)
        if nodes.is_list(node):
            return self._with_item(node, path[: at + 1], child)
        raise InvalidPath(
            f"{format_path(path)!r} leads through {format_path(path[:at]) or 'the root'!r}, "
            f"which has no part {part!r}."
        )

    def _with_entry(self, node: Any, key: str, child: Any) -> Any:
        if child is MISSING:
            return nodes.map_delete(node, key, self._load)
        return nodes.map_set(node, key, child, self._load)

    def _with_item(self, node: Any, path: Path, child: Any) -> Any:
        index = _index(path[-1], nodes.size(node))
        if index is None:
            raise InvalidPath(
                f"{format_path(path)!r} is not an item of a list of {nodes.size(node)}.",
                hint="Use append or extend to add items.",
            )
        if child is not MISSING:
            return nodes.list_set(node, index, child, self._load)
        # All later items move, so every later segment changes; the earlier ones are shared.
        return self.spliced(node, index, self.slice(node, index + 1, nodes.size(node)))


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector: it would search for cycles in values that have none."""
    # The caller may have disabled it; leave that as it is.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _index(part: str | int, length: int) -> int | None:
    """Return the list position that a path part refers to, or None if there is none."""
    if isinstance(part, str):
        if not part.removeprefix("-").isdecimal():
            return None
        part = int(part)
    index = part + length if part < 0 else part
    return index if 0 <= index < length else None


def settle(value: Any, put: Put) -> bytes:
    """Return the canonical encoding of a frozen value, with large parts stored as objects."""
    # Encoded as a whole first: most values are small, and then their parts need no look.
    data = codec.encode(value)
    if len(data) <= EMBED_LIMIT:
        return data
    data = _with_settled_parts(value, put, data)
    if len(data) <= EMBED_LIMIT:
        return data
    return codec.encode(Ref(put(data)))


def settle_root(value: Any, put: Put) -> Digest:
    """Store a whole frozen value as an object, whatever its size, and return its digest."""
    data = codec.encode(value)
    if len(data) > EMBED_LIMIT:
        data = _with_settled_parts(value, put, data)
    return put(data)


def _with_settled_parts(value: Any, put: Put, data: bytes) -> bytes:
    def part(child: Any) -> msgspec.Raw:
        return msgspec.Raw(settle(child, put))

    if isinstance(value, dict):
        return codec.encode({key: part(child) for key, child in value.items()})
    if isinstance(value, list):
        return codec.encode([part(child) for child in value])
    if isinstance(value, ListBranch):
        return codec.encode(ListBranch(value.height, value.count, [part(s) for s in value.slots]))
    if isinstance(value, MapBranch):
        return codec.encode(MapBranch(value.depth, value.count, [part(s) for s in value.slots]))
    if isinstance(value, OrderedBranch):
        slots = [part(s) for s in value.slots]
        return codec.encode(OrderedBranch(value.height, value.keys, value.counts, slots))
    return data
