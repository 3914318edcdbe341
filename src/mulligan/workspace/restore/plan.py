"""The plan of a restore: what to create, change and delete, computed from two trees."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from mulligan import codec
from mulligan.codec import Ref
from mulligan.document import nodes
from mulligan.document.compare import differing_entries
from mulligan.document.document import MISSING, Document
from mulligan.document.values import PathLike
from mulligan.errors import DamageError, UnsafeName
from mulligan.model import Digest
from mulligan.workspace.capture.index import Edits
from mulligan.workspace.capture.patch import TreePatch, leaf_in, open_tree, read_patch
from mulligan.workspace.entries import (
    SELF,
    Directory,
    File,
    Leaf,
    Link,
    TreePath,
    decode_entry,
    from_name,
    shown,
    to_name,
)

Entry = File | Link | Directory

_PLAIN = (str, int, bytes)

Encoded = bytes | Raw
_Entries = dict[str, Raw]

_decode_entries = msgspec.msgpack.Decoder(_Entries | None).decode
_decode_extension = msgspec.msgpack.Decoder(msgspec.msgpack.Ext).decode
_decode_branch = msgspec.msgpack.Decoder(tuple[int, int, list[Raw]]).decode

_ORDINARY = re.compile(r"[\w-][\w.-]*", re.ASCII)
"""Matches almost all names; any other name needs a closer check."""


_ESCAPED = re.compile(rb"\\x([89a-f][0-9a-f])")
"""How a byte that is not UTF-8 is displayed."""


class TreeChange(msgspec.Struct, frozen=True):
    """One path that differs: its entry before and after; None where there is none."""

    path: TreePath
    before: Entry | None
    after: Entry | None

    @property
    def action(self) -> str:
        """What to do: create, delete, update, or attributes (mode and times only)."""
        if self.before is None:
            return "create"
        if self.after is None:
            return "delete"
        return "attributes" if _same_content(self.before, self.after) else "update"

    @property
    def place(self) -> str:
        """The path as text."""
        return shown(self.path)


def tree_path(part: PathLike) -> TreePath:
    """Return the path for ``src/app.py`` or ``./src/`` as typed; nothing in it is escaped.

    Bytes that are not text are encoded as by ``os.fsdecode``.
    """
    names = part.split("/") if isinstance(part, str) else map(str, part)
    return tuple(to_name(os.fsencode(name)) for name in names if name not in ("", "."))


def unescaped(path: TreePath) -> TreePath:
    r"""Return the path for a displayed one; ``\xe9`` stands for a byte that is not text."""
    raw = (_ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), from_name(n)) for n in path)
    return tuple(map(to_name, raw))


def tree_changes(
    document: Document,
    start: Digest | None,
    end: Digest | None,
    only: Sequence[TreePath] | None = None,
    edits: Edits | None = None,
) -> list[TreeChange]:
    """Return the changes from one tree to another, optionally only within some paths.

    None is an empty tree. ``edits`` may save reading the base of both trees.
    """
    # Equal digests, equal trees: the usual result of a restore to the present.
    if start == end:
        return []
    if only is None and start is not None and end is not None:
        one, other = read_patch(document, start), read_patch(document, end)
        # Patches of one base differ only where either sets an entry; the base is not read at all.
        if one.base == other.base:
            known = edits.origins if edits and edits.base == one.base else {}
            return list(_patch_changes(document, one, other, known))
    before: Any = {} if start is None else open_tree(document, start).root
    after: Any = {} if end is None else open_tree(document, end).root
    if only is None:
        return _changes(document, before, after, ())
    changes: dict[tuple[TreePath, bool], TreeChange] = {}
    for path in only:
        # The names come from the user or from a tree, and either could be forged.
        for name in path:
            check_name(name)
        one, other = _at(document, before, path), _at(document, after, path)
        ways = [] if other is MISSING else _parent_changes(document, before, after, path)
        for change in [*ways, *_changes(document, one, other, path)]:
            # Several paths may share parents. A deletion and a creation at one path are two
            # changes, in this order.
            changes[change.path, change.after is None] = change
    return list(changes.values())


def _patch_changes(
    document: Document, one: TreePatch, other: TreePatch, origins: Mapping[str, bytes | None]
) -> Iterator[TreeChange]:
    """Yield the changes between two patches of one base: only what either sets can differ.

    ``origins`` are some entries of the base, encoded, None where it has none.
    """
    base = document.with_root(Ref(one.base))

    def entry(patch: TreePatch, key: str, path: TreePath) -> Entry | None:
        if key in patch.entries or key in origins:
            found = patch.entry(key) if key in patch.entries else origins[key]
            return None if found is None else _entry(document, codec.decode(found))
        return _entry(document, leaf_in(base, path))

    keys = one.entries.keys() | other.entries.keys()
    apart = [key for key in keys if one.entries.get(key) != other.entries.get(key)]
    for path, key in sorted((tuple(key.split("/")), key) for key in apart):
        place = path if path[-1] else path[:-1]
        for name in place:
            check_name(name)
        yield TreeChange(place, entry(one, key, path), entry(other, key, path))


def _parent_changes(
    document: Document, before: Any, after: Any, path: TreePath
) -> Iterator[TreeChange]:
    """Yield the directories that must be created for a path to exist."""
    for length in range(1, len(path)):
        way = path[:length]
        old = _node(document, _at(document, before, way))
        if nodes.is_map(old):
            continue
        if old is not MISSING:
            yield TreeChange(way, _entry(document, old), None)
        yield TreeChange(way, None, _entry(document, _at(document, after, (*way, SELF))))


def _at(document: Document, tree: Any, path: TreePath) -> Any:
    return MISSING if tree is MISSING else document.with_root(tree).find(path)


def _changes(document: Document, before: Any, after: Any, path: TreePath) -> list[TreeChange]:
    changes: list[TreeChange] = []
    _add_changes(changes, document, before, after, path)
    return changes


def _add_changes(
    changes: list[TreeChange], document: Document, before: Any, after: Any, path: TreePath
) -> None:
    if _are_equal(before, after):
        return
    old, new = _nodes(document, before, after)
    if nodes.is_map(old) or nodes.is_map(new):
        _add_directory(changes, document, old, new, path)
    elif old is not MISSING or new is not MISSING:
        changes.append(TreeChange(path, _entry(document, old), _entry(document, new)))


def _add_directory(
    changes: list[TreeChange], document: Document, old: Any, new: Any, path: TreePath
) -> None:
    """Add the changes of a directory that exists before, after, or both."""
    # A file in the place of a directory goes before the directory's entries are made.
    if not nodes.is_map(old) and old is not MISSING:
        changes.append(TreeChange(path, _entry(document, old), None))
    # The directory's entries are in the way of the file; ``Apply`` deletes those first.
    if not nodes.is_map(new) and new is not MISSING:
        changes.append(TreeChange(path, None, _entry(document, new)))
    left = old if nodes.is_map(old) else {}
    right = new if nodes.is_map(new) else {}
    for name, one, other in _differing(document, left, right):
        if name == SELF:
            changes.append(TreeChange(path, _entry(document, one), _entry(document, other)))
        else:
            check_name(name)
            _add_changes(changes, document, one, other, (*path, name))


def _differing(document: Document, left: Any, right: Any) -> list[tuple[str, Any, Any]]:
    """Return the names under which two directories differ, with both values, sorted."""
    if not (isinstance(left, dict) and isinstance(right, dict)):
        return differing_entries(document, left, right)
    names = [name for name, one in left.items() if right.get(name, MISSING) != one]
    names += right.keys() - left.keys()
    pairs = ((name, _decoded(left, name), _decoded(right, name)) for name in sorted(names))
    return [(name, one, other) for name, one, other in pairs if not _are_equal(one, other)]


def _decoded(entries: dict[str, Any], name: str) -> Any:
    value = entries.get(name, MISSING)
    return codec.decode(value) if type(value) is Raw else value


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two values are certainly equal; if not, they must be compared in depth."""
    if type(one) is Ref and type(other) is Ref:
        return one.digest == other.digest
    return type(one) is list and type(other) is list and _is_plain(one) and one == other


def check_name(name: str) -> None:
    """Refuse a name that could escape the workspace; only a forged tree has one."""
    if _ORDINARY.fullmatch(name):
        return
    try:
        raw = from_name(name)
    except UnicodeEncodeError:
        raw = b""
    # Also refuses a second spelling of a valid name, which would be another key for the same file.
    unsafe = raw in (b"", b".", b"..") or b"/" in raw or b"\x00" in raw
    if unsafe or to_name(raw) != name:
        raise UnsafeName(f"A tree holds the name {name!r}, which no file can have.")


def _node(document: Document, value: Any) -> Any:
    return value if value is MISSING else document.resolved(value)


def _nodes(document: Document, before: Any, after: Any) -> tuple[Any, Any]:
    """Return both nodes; for two directories only what may differ, with entries still encoded."""
    if not (type(before) is Ref and type(after) is Ref):
        return _node(document, before), _node(document, after)
    one, other = document.stored(before), document.stored(after)
    try:
        return _unlike(document, one, other)
    except msgspec.DecodeError:  # not both are directories
        return codec.decode(one), codec.decode(other)


def _unlike(document: Document, one: Encoded, other: Encoded) -> tuple[_Entries, _Entries]:
    """Return the entries of two directories, without the equal parts of large ones."""
    left, right = _opened(document, one), _opened(document, other)
    if isinstance(left, list) and isinstance(right, list):
        slots = zip(left, right, strict=True)
        parts = [_unlike(document, one, other) for one, other in slots if one != other]
        return _joined(part for part, _ in parts), _joined(part for _, part in parts)
    return _whole(document, left), _whole(document, right)


def _whole(document: Document, opened: _Entries | list[Raw]) -> _Entries:
    if isinstance(opened, dict):
        return opened
    return _joined(_whole(document, _opened(document, slot)) for slot in opened)


def _joined(parts: Iterable[_Entries]) -> _Entries:
    return {name: value for part in parts for name, value in part.items()}


def _opened(document: Document, data: Encoded) -> _Entries | list[Raw]:
    """Return the entries of an encoded directory, or the slots of a large one."""
    try:
        return _decode_entries(data) or {}
    except msgspec.ValidationError:
        extension = _decode_extension(data)
    if extension.code == codec.EXT_REF:
        return _opened(document, document.stored(Ref(Digest(bytes(extension.data)))))
    return _decode_branch(extension.data)[2]


def _entry(document: Document, value: Any) -> Entry | None:
    return None if value is MISSING else read_entry(document, value)


def read_entry(document: Document, value: Any) -> Entry:
    """Return an entry of a tree from its frozen value."""
    # Almost all entries consist of plain values, and there may be very many of them.
    found = value if _is_plain(value) else document.plain(value)
    if not isinstance(found, list):
        raise DamageError("A tree holds something that is neither file nor directory.")
    return decode_entry(found)


def _is_plain(value: Any) -> bool:
    return type(value) is list and all(type(field) in _PLAIN for field in value)


def _same_content(before: Entry, after: Entry) -> bool:
    if isinstance(before, File) and isinstance(after, File):
        return before.chunks == after.chunks
    if isinstance(before, Link) and isinstance(after, Link):
        return before.target == after.target
    return isinstance(before, Directory) and isinstance(after, Directory)


def leaf(entry: Entry | None) -> Leaf | None:
    """Return the entry if it is a file or a symlink."""
    return entry if isinstance(entry, File | Link) else None
