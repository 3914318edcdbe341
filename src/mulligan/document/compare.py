"""Compare frozen values: equality by digest, and differences as changes or as a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mulligan import codec
from mulligan.codec import ListBranch, MapBranch, OrderedBranch
from mulligan.document import nodes, ordered
from mulligan.document.document import MISSING, Document, settle
from mulligan.document.fold import APPEND, DELETE, SET, Change
from mulligan.model import Path

MAX_SINGLE = 16
"""Up to this many items of a list are changed one by one, or removed from its end."""

Difference = tuple[Path, Any, Any]
"""A path with the frozen values before and after; ``MISSING`` where there is none."""


def same(one: Any, other: Any) -> bool:
    """Whether two frozen values are equal, including their types; nothing is loaded."""
    if one is MISSING or other is MISSING:
        return one is other
    # Encodings are canonical: equal bytes are equal values, and large parts are digests.
    return settle(one, codec.value_digest) == settle(other, codec.value_digest)


def differences(
    document: Document, before: Any, after: Any, path: Path = ()
) -> Iterator[Difference]:
    """Yield the smallest differences between two frozen values, in path order."""
    if same(before, after):
        return
    old, new = _resolved(document, before), _resolved(document, after)
    if nodes.is_map(old) and nodes.is_map(new):
        yield from _map_differences(document, old, new, path)
    elif nodes.is_list(old) and nodes.is_list(new):
        yield from _list_differences(document, old, new, path)
    else:
        yield path, before, after


def is_same_content(document: Document, one: Any, other: Any) -> bool:
    """Whether two frozen values are equal in what they hold, however that is divided into objects.

    After a purge, a value may be stored in another shape than the one of its content.
    """
    found = list(differences(document, one, other))
    if any(MISSING in (before, after) for _, before, after in found):
        # A key that a purge changed is not where its hash would put it.
        return bool(document.plain(one) == document.plain(other))
    return all(document.plain(before) == document.plain(after) for _, before, after in found)


def derive(document: Document, before: Any, after: Any, path: Path) -> Iterator[Change]:
    """Yield the changes that turn one frozen value into another; list appends are detected."""
    if same(before, after):
        return
    old, new = _resolved(document, before), _resolved(document, after)
    if nodes.is_map(old) and nodes.is_map(new):
        for key, one, other in differing_entries(document, old, new):
            yield from derive(document, one, other, (*path, key))
    elif nodes.is_list(old) and nodes.is_list(new):
        yield from _derive_list(document, old, new, path)
    elif after is MISSING:
        yield DELETE, {"path": list(path)}
    else:
        yield SET, {"path": list(path), "value": after}


def splice(
    document: Document, old: Any, path: Path, start: int, later: list[Any], apart: Sequence[int]
) -> Iterator[Change]:
    """Yield the changes that replace the items of a resolved list from ``start`` on.

    ``apart`` are the indexes of the items that differ, as far as both lists go.
    """
    before, after = nodes.size(old), start + len(later)
    is_few = len(apart) <= MAX_SINGLE and len(apart) * 2 <= after
    if (not is_few and len(apart) * 2 > len(later)) or before - after > MAX_SINGLE or not after:
        # It refers to the segments that the list has already, so only what is later is stored.
        yield SET, {"path": list(path), "value": document.spliced(old, start, later)}
        return
    for index in apart:
        (present,) = document.slice(old, index, index + 1)
        yield from derive(document, present, later[index - start], (*path, index))
    if after > before:
        values = nodes.build_list(later[before - start :])
        yield APPEND, {"path": list(path), "values": values}
    for index in range(before - 1, after - 1, -1):
        yield DELETE, {"path": [*path, index]}


def _resolved(document: Document, value: Any) -> Any:
    return value if value is MISSING else document.resolved(value)


def _map_differences(document: Document, old: Any, new: Any, path: Path) -> Iterator[Difference]:
    for key, one, other in differing_entries(document, old, new):
        yield from differences(document, one, other, (*path, key))


def differing_entries(document: Document, old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """Return the keys of two resolved dicts whose values differ, with both values, sorted."""
    return sorted(_entries_apart(document, old, new), key=lambda entry: entry[0])


def _entries_apart(document: Document, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the keys whose values differ; equal branches of large dicts are skipped."""
    if isinstance(old, MapBranch) and isinstance(new, MapBranch):
        # Branches of the same depth divide keys alike, so slots are compared pairwise.
        for one, other in zip(old.slots, new.slots, strict=True):
            if not same(one, other):
                yield from _entries_apart(document, _slot(document, one), _slot(document, other))
        return
    if isinstance(old, OrderedBranch) and isinstance(new, OrderedBranch):
        left, right = _leaves_apart(document, old, new)
    else:
        left, right = document.entries(old), document.entries(new)
    for key in left.keys() | right.keys():
        one, other = left.get(key, MISSING), right.get(key, MISSING)
        if not same(one, other):
            yield key, one, other


def _leaves_apart(
    document: Document, old: OrderedBranch, new: OrderedBranch
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries of the leaves that two ordered dicts do not share."""
    sides: list[list[tuple[str, Any]]] = [[("", old)], [("", new)]]
    for height in range(max(old.height, new.height), 0, -1):
        sides = [_opened(document, side, height) for side in sides]
        # What begins at the same key and is the same has the same entries.
        one, other = map(dict, sides)
        equal = {key for key in one.keys() & other.keys() if same(one[key], other[key])}
        sides = [[pair for pair in side if pair[0] not in equal] for side in sides]
    left, right = ({k: v for _, leaf in side for k, v in _leaf(document, leaf)} for side in sides)
    return left, right


def _opened(document: Document, side: list[tuple[str, Any]], height: int) -> list[tuple[str, Any]]:
    """Return the slots of branches of a height, with the keys at which they begin."""
    found: list[tuple[str, Any]] = []
    for start, slot in side:
        node = document.resolved(slot)
        is_opened = isinstance(node, OrderedBranch) and node.height == height
        if is_opened and not ordered.is_unsorted(node):
            found += ordered.starts(node, start)
        else:
            found.append((start, node))
    return found


def _leaf(document: Document, slot: Any) -> Iterator[tuple[str, Any]]:
    return nodes.map_items(slot, document.resolved)


def _slot(document: Document, slot: Any) -> Any:
    return {} if slot is None else document.resolved(slot)


def _list_differences(document: Document, old: Any, new: Any, path: Path) -> Iterator[Difference]:
    start = _common_items(document, old, new)
    left, right = _from(document, old, start), _from(document, new, start)
    for offset in range(max(len(left), len(right))):
        one = left[offset] if offset < len(left) else MISSING
        other = right[offset] if offset < len(right) else MISSING
        yield from differences(document, one, other, (*path, start + offset))


def _derive_list(document: Document, old: Any, new: Any, path: Path) -> Iterator[Change]:
    start = _common_items(document, old, new)
    left, right = _from(document, old, start), _from(document, new, start)
    pairs = enumerate(zip(left, right, strict=False), start)
    apart = [index for index, (one, other) in pairs if not same(one, other)]
    yield from splice(document, old, path, start, right, apart)


def _common_items(document: Document, old: Any, new: Any) -> int:
    """Return the length of the common prefix of two lists, by whole segments where possible."""
    count = 0
    for one, other in zip(_segments(document, old), _segments(document, new), strict=False):
        if not same(one, other):
            pairs = zip(document.resolved(one), document.resolved(other), strict=False)
            for a, b in pairs:
                if not same(a, b):
                    break
                count += 1
            return count
        # Every segment but the last is full; the last one is corrected below.
        count += nodes.FAN
    return min(count, nodes.size(old), nodes.size(new))


def _segments(document: Document, node: Any) -> Iterator[Any]:
    """Yield the segments of a list without loading them."""
    node = document.resolved(node) if not isinstance(node, ListBranch) else node
    if not isinstance(node, ListBranch):
        yield node
    elif node.height == 1:
        yield from node.slots
    else:
        for slot in node.slots:
            yield from _segments(document, slot)


def _from(document: Document, node: Any, start: int) -> list[Any]:
    """Return the items of a list from a position on, without loading earlier segments."""
    return document.slice(node, start, nodes.size(node))
