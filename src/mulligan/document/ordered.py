"""Large dicts in the order of their keys: neighbours are stored together.

Keys that are added in their order, such as times or counters, change the last leaf alone. Where
leaves begin is decided by the hashes of keys, so the shape depends on the content alone:

- a key has level n if its hash begins with n groups of five zero bits;
- a branch of height h begins a new slot at every key of level h or higher, except where a slot
  further up begins; below height 1 are leaves, plain dicts;
- a tree is as high as its highest level; only the first slot can be empty, and is None then.

A leaf has 32 entries on average, and a branch as many slots. A purge that changes a key at which a
slot begins leaves the branch without keys, *unsorted*: its slots are then searched one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from blake3 import blake3

from mulligan.codec import OrderedBranch, Ref

GROUP_BITS = 5
HASH_BITS = 64

Load = Callable[[Ref], Any]


def level(key: str) -> int:
    """Return the height up to which a key begins a slot; most keys have level 0."""
    start = int.from_bytes(blake3(key.encode()).digest(HASH_BITS // 8), "big")
    return (HASH_BITS - start.bit_length()) // GROUP_BITS


def build(entries: dict[str, Any]) -> Any:
    """Return the node for a dict: a branch, or a leaf if no key begins a slot."""
    keys = sorted(entries)
    levels = [level(key) for key in keys]
    return _built(entries, keys, levels, max(levels, default=0), is_first=True)


def get(node: Any, key: str, load: Load) -> Any:
    """Return the leaf that has a key, if any has; None if there is none."""
    while isinstance(node, OrderedBranch):
        node = _resolved(node.slots[_place(node, key, load)], load)
    return node


def put(node: OrderedBranch, key: str, value: Any, load: Load) -> OrderedBranch:
    """Return the dict with one entry set."""
    high = level(key)
    if high and key in (get(node, key, load) or ()):
        high = 0  # it begins its slots already
    while node.height < high:
        node = OrderedBranch(node.height + 1, [], [node.count], [node])
    found: OrderedBranch = _with(node, key, value, high, load)
    return found


def delete(node: OrderedBranch, key: str, load: Load) -> Any:
    """Return the dict without a key that it contains."""
    found = _without(node, key, load)
    # No higher than needed: the shape must depend on the content alone, not on its history.
    while isinstance(found, OrderedBranch) and len(found.slots) == 1:
        found = _resolved(found.slots[0], load)
    return {} if found is None else found


def items(node: Any, load: Load) -> Iterator[tuple[str, Any]]:
    """Yield the entries in the order of their keys."""
    node = _resolved(node, load)
    if isinstance(node, OrderedBranch):
        for slot in node.slots:
            yield from items(slot, load)
    elif node is not None:
        yield from sorted(node.items())


def is_unsorted(node: OrderedBranch) -> bool:
    """Whether a purge has changed keys at which slots begin."""
    return len(node.slots) != len(node.keys) + 1


def starts(node: OrderedBranch, start: str) -> list[tuple[str, Any]]:
    """Return the slots of a branch with the keys at which they begin."""
    return [pair for pair in zip((start, *node.keys), node.slots, strict=True) if pair[1]]


def _built(
    entries: dict[str, Any], keys: list[str], levels: list[int], height: int, *, is_first: bool
) -> Any:
    if not height:
        return {key: entries[key] for key in keys} or None
    # A key that begins a slot further up begins none here: it is the first in any case.
    cuts = [at for at, high in enumerate(levels) if high >= height and (at or is_first)]
    ends = zip((0, *cuts), (*cuts, len(keys)), strict=True)
    slots = [
        _built(entries, keys[a:b], levels[a:b], height - 1, is_first=is_first and not number)
        for number, (a, b) in enumerate(ends)
    ]
    return _branch(height, [keys[at] for at in cuts], [_size(slot) for slot in slots], slots)


def _with(node: Any, key: str, value: Any, high: int, load: Load) -> Any:
    """Return a node with an entry set; the key begins a slot in branches up to height ``high``."""
    node = _resolved(node, load)
    if not isinstance(node, OrderedBranch):
        return {**(node or {}), key: value}
    at = _place(node, key, load)
    if node.height > high or is_unsorted(node):
        new = [_with(node.slots[at], key, value, high, load)]
        return _spliced(node, at, at + 1, new, node.keys)
    before, after = _split(node.slots[at], key, node.height - 1, load)
    if after is None:
        after = _empty(node.height - 1)
    # Below, it is the first key already, and begins no slot of its own.
    new = [before, _with(after, key, value, 0, load)]
    return _spliced(node, at, at + 1, new, [*node.keys[:at], key, *node.keys[at:]])


def _without(node: Any, key: str, load: Load) -> Any:
    """Return a node without a key; where it began a slot, that slot joins the one before it."""
    node = _resolved(node, load)
    if not isinstance(node, OrderedBranch):
        return {k: v for k, v in node.items() if k != key} or None
    at = _place(node, key, load)
    left = _without(node.slots[at], key, load)
    if not at or is_unsorted(node) or node.keys[at - 1] != key:
        return _spliced(node, at, at + 1, [left], node.keys)
    joined = _joined(node.slots[at - 1], left, load)
    return _spliced(node, at - 1, at + 1, [joined], [*node.keys[: at - 1], *node.keys[at:]])


def _split(node: Any, key: str, height: int, load: Load) -> tuple[Any, Any]:
    """Return what is before a key that a node does not have, and what is after it."""
    node = _resolved(node, load)
    if node is None:
        return None, None
    if not isinstance(node, OrderedBranch):
        before = {k: v for k, v in node.items() if k < key}
        return before or None, {k: v for k, v in node.items() if k > key} or None
    if is_unsorted(node):
        parts = [_split(slot, key, height - 1, load) for slot in node.slots]
        one, other = ([part[side] for part in parts] for side in (0, 1))
        return (
            _branch(height, [], list(map(_size, one)), one),
            _branch(height, [], list(map(_size, other)), other),
        )
    at = _place(node, key, load)
    one, other = _split(node.slots[at], key, height - 1, load)
    counts = [*node.counts[:at], _size(one)], [_size(other), *node.counts[at + 1 :]]
    return (
        _branch(height, node.keys[:at], counts[0], [*node.slots[:at], one]),
        _branch(height, node.keys[at:], counts[1], [other, *node.slots[at + 1 :]]),
    )


def _joined(left: Any, right: Any, load: Load) -> Any:
    """Return two nodes of the same height as one."""
    left, right = _resolved(left, load), _resolved(right, load)
    if left is None or right is None:
        return right if left is None else left
    if not isinstance(left, OrderedBranch):
        return {**left, **right}
    if is_unsorted(left) or is_unsorted(right):
        slots = [*left.slots, *right.slots]
        return OrderedBranch(left.height, [], [*left.counts, *right.counts], slots)
    middle = _joined(left.slots[-1], right.slots[0], load)
    return OrderedBranch(
        left.height,
        [*left.keys, *right.keys],
        [*left.counts[:-1], _size(middle), *right.counts[1:]],
        [*left.slots[:-1], middle, *right.slots[1:]],
    )


def _spliced(node: OrderedBranch, start: int, stop: int, new: list[Any], keys: list[str]) -> Any:
    """Return a branch with other slots from ``start`` to ``stop``."""
    counts, slots = node.counts.copy(), node.slots.copy()
    counts[start:stop], slots[start:stop] = map(_size, new), new
    return _branch(node.height, keys, counts, slots)


def _branch(height: int, keys: list[str], counts: list[int], slots: list[Any]) -> Any:
    """Return a branch, or None if there is nothing in it."""
    return OrderedBranch(height, keys, counts, slots) if any(counts) else None


def _empty(height: int) -> Any:
    """Return a node without entries that one can be set in."""
    return OrderedBranch(height, [], [0], [_empty(height - 1)]) if height else {}


def _size(node: Any) -> int:
    """Return the number of entries of a node that is loaded."""
    if node is None:
        return 0
    return node.count if isinstance(node, OrderedBranch) else len(node)


def _place(node: OrderedBranch, key: str, load: Load) -> int:
    """Return the slot that has a key, or that it belongs into."""
    if not is_unsorted(node):
        return bisect_right(node.keys, key)
    found = (at for at, slot in enumerate(node.slots) if _has(slot, key, load))
    return next(found, len(node.slots) - 1)


def _has(slot: Any, key: str, load: Load) -> bool:
    return key in (get(_resolved(slot, load), key, load) or ())


def _resolved(slot: Any, load: Load) -> Any:
    return load(slot) if type(slot) is Ref else slot
