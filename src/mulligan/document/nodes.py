"""Persistent containers: small ones are plain dicts and lists, large ones are trees.

A frozen value is never changed in place; an update copies the nodes on its path and shares the
rest. The shape of a tree depends on its content alone, so equal values have equal digests:

- a list of up to ``FAN`` items is one segment; a longer one is a tree of full segments;
- a dict of up to ``FAN`` entries is one leaf; one of up to ``MAX_TRIE`` is a trie over the hashes
  of its keys, and so is a directory of any size; a larger one is a tree by sorted keys: see
  ``mulligan.document.ordered``.

Any slot may hold a ``Ref`` to a node that has not been loaded; ``load`` resolves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from blake3 import blake3

from mulligan.codec import ListBranch, MapBranch, OrderedBranch, Ref
from mulligan.document import ordered
from mulligan.errors import DamageError
from mulligan.model import Digest

FAN = 64
"""Items per list segment, children per list branch, and entries per dict leaf."""

WAYS = 16

MAX_TRIE = 1_024
"""Entries of a dict that is a trie. One that an earlier version has written may be larger."""

Load = Callable[[Ref], Any]

# Tuples: a union of types would be built again at every call, of which a write makes hundreds.
_LISTS = (list, ListBranch)
_MAPS = (dict, MapBranch, OrderedBranch)
_BRANCHES = (ListBranch, MapBranch, OrderedBranch)


def references(value: Any) -> Iterator[Digest]:
    """Yield the digests that a frozen value refers to, without loading its objects."""
    if isinstance(value, Ref):
        yield value.digest
    elif isinstance(value, dict):
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)
    elif isinstance(value, _BRANCHES):
        yield from references(value.slots)


def resolve(value: Any, load: Load) -> Any:
    """Return the node that a reference points to, or the value itself."""
    return load(value) if type(value) is Ref else value


def is_list(node: Any) -> bool:
    """Whether the resolved node is a list."""
    return isinstance(node, _LISTS)


def is_map(node: Any) -> bool:
    """Whether the resolved node is a dict."""
    return isinstance(node, _MAPS)


def size(node: Any) -> int:
    """Return the number of items or entries of a resolved container."""
    return node.count if isinstance(node, _BRANCHES) else len(node)


# --- lists -----------------------------------------------------------------------------------


def build_list(items: list[Any]) -> Any:
    """Return the node for a list."""
    height = 0
    while len(items) > FAN ** (height + 1):
        height += 1
    return _build_level(items, height)


def list_get(node: Any, index: int, load: Load) -> Any:
    """Return an item; the index must be within bounds."""
    node = resolve(node, load)
    while isinstance(node, ListBranch):
        capacity = FAN**node.height
        node = resolve(node.slots[index // capacity], load)
        index %= capacity
    return node[index]


def list_set(node: Any, index: int, item: Any, load: Load) -> Any:
    """Return the list with one item replaced; the index must be within bounds."""
    node = resolve(node, load)
    if not isinstance(node, ListBranch):
        return [*node[:index], item, *node[index + 1 :]]
    slot, inner = divmod(index, FAN**node.height)
    slots = list(node.slots)
    slots[slot] = list_set(slots[slot], inner, item, load)
    return ListBranch(node.height, node.count, slots)


def list_extend(node: Any, items: list[Any], load: Load) -> Any:
    """Return the list with items appended; it shares full segments with the old one."""
    node = resolve(node, load)
    if not isinstance(node, ListBranch):
        return build_list([*node, *items])
    slots = _extended_slots(node, items, load)
    height, count = node.height, node.count + len(items)
    while len(slots) > FAN:
        slots = _grouped(slots, height, count)
        height += 1
    return ListBranch(height, count, slots)


def list_slice(node: Any, start: int, stop: int, load: Load) -> list[Any]:
    """Return the items ``start..stop - 1``, within bounds; other segments are not loaded."""
    node = resolve(node, load)
    if not isinstance(node, ListBranch):
        return list(node[start:stop])
    capacity = FAN**node.height
    items: list[Any] = []
    for base in range(start // capacity * capacity, stop, capacity):
        part = node.slots[base // capacity]
        items += list_slice(part, max(start - base, 0), min(stop - base, capacity), load)
    return items


def list_truncate(node: Any, count: int, load: Load) -> Any:
    """Return the first ``count`` items of a list; it shares full segments with the old one."""
    if count == 0:
        return []
    node = _cut(resolve(node, load), count, load)
    # No higher than needed: the shape must depend on the content alone, not on its history.
    while isinstance(node, ListBranch) and len(node.slots) == 1:
        node = resolve(node.slots[0], load)
    return node


def list_items(node: Any, load: Load) -> Iterator[Any]:
    """Yield the items of a list in order."""
    node = resolve(node, load)
    if isinstance(node, ListBranch):
        for slot in node.slots:
            yield from list_items(slot, load)
    else:
        yield from node


def _cut(node: Any, count: int, load: Load) -> Any:
    """Return a node of the same height with its first items; there must be at least one."""
    if not isinstance(node, ListBranch):
        return node[:count]
    full, rest = divmod(count, FAN**node.height)
    slots = node.slots[:full]
    if rest:
        slots.append(_cut(resolve(node.slots[full], load), rest, load))
    return ListBranch(node.height, count, slots)


def _build_level(items: list[Any], height: int) -> Any:
    if height == 0:
        return list(items)
    capacity = FAN**height
    chunks = (items[i : i + capacity] for i in range(0, len(items), capacity))
    return ListBranch(height, len(items), [_build_level(chunk, height - 1) for chunk in chunks])


def _extended_slots(node: ListBranch, items: list[Any], load: Load) -> list[Any]:
    capacity = FAN**node.height
    last = resolve(node.slots[-1], load)
    room = capacity - size(last)
    slots = node.slots[:-1]
    # Fill the last segment first, so that all others stay full and shared.
    slots.append(_fill(last, items[:room], load) if room and items else node.slots[-1])
    for i in range(room, len(items), capacity):
        slots.append(_build_level(items[i : i + capacity], node.height - 1))
    return slots


def _fill(node: Any, items: list[Any], load: Load) -> Any:
    """Return a node of the same height with the items added; they must fit."""
    if not isinstance(node, ListBranch):
        return [*node, *items]
    return ListBranch(node.height, node.count + len(items), _extended_slots(node, items, load))


def _grouped(slots: list[Any], height: int, count: int) -> list[Any]:
    full = FAN ** (height + 1)
    groups = [slots[i : i + FAN] for i in range(0, len(slots), FAN)]
    rest = count - full * (len(groups) - 1)
    counts = [full] * (len(groups) - 1) + [rest]
    return [ListBranch(height, n, group) for n, group in zip(counts, groups, strict=True)]


# --- dicts -----------------------------------------------------------------------------------


def build_map(entries: dict[str, Any]) -> Any:
    """Return the node for a dict."""
    return build_trie(entries) if len(entries) <= MAX_TRIE else ordered.build(entries)


def map_get(node: Any, key: str, default: Any, load: Load) -> Any:
    """Return the value of a key."""
    node = resolve(node, load)
    while isinstance(node, MapBranch):
        node = resolve(node.slots[way_of(key, node.depth)], load)
    if isinstance(node, OrderedBranch):
        node = ordered.get(node, key, load)
    return default if node is None else node.get(key, default)


def map_set(node: Any, key: str, value: Any, load: Load) -> Any:
    """Return the dict with one entry set."""
    node = resolve(node, load)
    if type(node) is dict and (len(node) < FAN or key in node):
        return {**node, key: value}  # the most frequent case, without a look at the others
    if isinstance(node, OrderedBranch):
        return ordered.put(node, key, value, load)
    found = trie_set(node, key, value, load)
    # Only when it grows: to convert a large one that an earlier version has written, all of it
    # would have to be loaded.
    if size(node) == MAX_TRIE < size(found):
        return ordered.build(dict(map_items(found, load)))
    return found


def map_delete(node: Any, key: str, load: Load) -> Any:
    """Return the dict without a key that it contains."""
    node = resolve(node, load)
    if not isinstance(node, OrderedBranch):
        return trie_delete(node, key, load)
    # Back to a trie: the shape must depend on the content alone, not on its history.
    if node.count - 1 <= MAX_TRIE:
        return build_trie({k: v for k, v in map_items(node, load) if k != key})
    return ordered.delete(node, key, load)


def map_items(node: Any, load: Load) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a dict, in no particular order."""
    node = resolve(node, load)
    if isinstance(node, OrderedBranch):
        yield from ordered.items(node, load)
    elif isinstance(node, MapBranch):
        for slot in node.slots:
            if slot is not None:
                yield from map_items(slot, load)
    else:
        yield from node.items()


# --- tries -----------------------------------------------------------------------------------


def build_trie(entries: dict[str, Any], depth: int = 0) -> Any:
    """Return the node for a directory, or for a dict that is not very large."""
    if len(entries) <= FAN:
        return entries
    parts: list[dict[str, Any]] = [{} for _ in range(WAYS)]
    for key, value in entries.items():
        parts[way_of(key, depth)][key] = value
    slots = [build_trie(part, depth + 1) if part else None for part in parts]
    return MapBranch(depth, len(entries), slots)


def trie_set(node: Any, key: str, value: Any, load: Load, depth: int = 0) -> Any:
    """Return the trie with one entry set."""
    node = resolve(node, load)
    if not isinstance(node, MapBranch):
        return build_trie({**(node or {}), key: value}, depth)
    slots = list(node.slots)
    way = way_of(key, node.depth)
    before = _slot_size(slots[way], load)
    slots[way] = trie_set(slots[way], key, value, load, node.depth + 1)
    return MapBranch(node.depth, node.count + _slot_size(slots[way], load) - before, slots)


def trie_delete(node: Any, key: str, load: Load) -> Any:
    """Return the trie without a key that it contains."""
    node = resolve(node, load)
    if not isinstance(node, MapBranch):
        return {k: v for k, v in node.items() if k != key}
    # Back to a leaf: the shape must depend on the content alone, not on its history.
    if node.count - 1 <= FAN:
        return {k: v for k, v in map_items(node, load) if k != key}
    slots = list(node.slots)
    way = way_of(key, node.depth)
    slots[way] = trie_delete(slots[way], key, load) or None
    return MapBranch(node.depth, node.count - 1, slots)


def _slot_size(slot: Any, load: Load) -> int:
    return 0 if slot is None else size(resolve(slot, load))


def way_of(key: str, depth: int) -> int:
    """Return the slot of a key at a depth: four bits of its hash, so one of sixteen."""
    # A digest has 64 half bytes; keys that agree in all of them are not expected to exist.
    if depth >= 64:
        raise DamageError("A dictionary of the state is nested deeper than its keys' hashes.")
    byte = blake3(key.encode()).digest()[depth // 2]
    return byte >> 4 if depth % 2 == 0 else byte & 15
