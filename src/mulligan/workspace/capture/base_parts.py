"""Base trees: what is left of one that is needed only because patches refer to it.

A file that every one of these patches replaces or removes is in none of their trees, so its content
is not needed. The base itself is: patches are applied to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from mulligan import codec
from mulligan.codec import MapBranch, Ref
from mulligan.document import nodes
from mulligan.document.document import LoadBytes
from mulligan.model import Digest
from mulligan.workspace.entries import FILE, file_chunks

_Names = dict[str, Any]
"""The names of hidden files below a directory: a dict for a directory, the path for a file."""


class BaseParts(NamedTuple):
    """A base tree, taken apart along the paths that patches set.

    ``hidden`` are the files at these paths: the chunks of each, joined. ``opened`` are the objects
    that lead to one; they are needed, and not everything that they refer to is. ``whole`` are all
    other parts of these objects, as frozen values; everything that they refer to is needed.
    """

    opened: list[Digest]
    whole: list[Any]
    hidden: dict[str, bytes]


def base_parts(base: Digest, paths: Iterable[str], load: LoadBytes) -> BaseParts:
    """Return the parts of a base tree; ``paths`` are those that all patches to it set."""
    parts = BaseParts([], [], {})
    pending: list[tuple[Any, _Names | str]] = [(Ref(base), _by_name(paths))]
    while pending:
        value, names = pending.pop()
        if not names:
            parts.whole.append(value)
        elif isinstance(value, Ref):
            parts.opened.append(value.digest)
            pending.append((codec.decode(load(value.digest)), names))
        elif isinstance(names, str):
            _hide(value, names, parts, load)
        elif isinstance(value, MapBranch):
            slots = enumerate(value.slots)
            pending += [(slot, _in_slot(names, value.depth, way)) for way, slot in slots]
        elif isinstance(value, dict):
            pending += [(item, names.get(name, {})) for name, item in value.items()]
        elif value is not None:
            parts.whole.append(value)
    return parts


def _by_name(paths: Iterable[str]) -> _Names:
    found: _Names = {}
    # Sorted: in a forged patch, a file may have the path of a directory.
    for path in sorted(paths):
        *above, name = path.split("/")
        at: _Names | str = found
        for one in above:
            at = at if isinstance(at, str) else at.setdefault(one, {})
        # A directory's own entry has no content.
        if name and isinstance(at, dict):
            at[name] = path
    return found


def _in_slot(names: _Names, depth: int, way: int) -> _Names:
    return {name: inner for name, inner in names.items() if nodes.way_of(name, depth) == way}


def _hide(entry: Any, path: str, parts: BaseParts, load: LoadBytes) -> None:
    if not (isinstance(entry, list) and len(entry) > 4 and entry[0] == FILE):
        parts.whole.append(entry)
        return
    if isinstance(entry[4], Ref):
        # The list of chunks stays: it is a part of the tree, and no content.
        parts.opened.append(entry[4].digest)
    parts.hidden[path] = b"".join(file_chunks(load, entry[4]))
    parts.whole.append(entry[5:])
