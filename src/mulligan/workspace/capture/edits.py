"""Edits: what changed in a workspace since one of its trees was stored in full.

While they are few, a capture stores them as a patch to that tree.
"""

from __future__ import annotations

from collections.abc import Iterator

from mulligan.document.document import Put
from mulligan.model import Digest
from mulligan.workspace.capture.index import Edits
from mulligan.workspace.capture.patch import encode_patch
from mulligan.workspace.capture.tree import Changed, Directories, part_of
from mulligan.workspace.entries import to_name

MAX_PATCH_ENTRIES = 128
"""Maximum number of entries in a patch; with more, the tree is stored in full as a new base."""

MAX_PATCH_BYTES = 64 << 10
"""Maximum size of a patch in bytes."""

MAX_TOUCHED_ENTRIES = 4 * MAX_PATCH_ENTRIES
"""Maximum number of entries tracked because they may change back to what the base has."""


def fits_in_patch(edits: Edits, changed: Changed, directories: Directories) -> bool:
    """Record the current entries of the names that will change; False if a patch cannot hold them.

    Call it before the directories are brought up to date.
    """
    if sum(map(len, changed.values())) > MAX_TOUCHED_ENTRIES:
        return False
    for path, name in _each(changed):
        directory, raw = directories.get(path), _raw(path, name)
        if directory is None or name in directory.directories or (name and raw in directories):
            return False  # a directory appears or vanishes
        key = _key(path, name)
        if key not in edits.origins:
            edits.origins[key] = part_of(path, name, directories)
    return len(edits.origins) <= MAX_TOUCHED_ENTRIES


def patched(edits: Edits, changed: Changed, directories: Directories, put: Put) -> Digest | None:
    """Return the tree as its base plus a patch, or None if the patch is too large.

    ``changed`` is what :func:`fits_in_patch` recorded; the directories are up to date.
    """
    for path, name in _each(changed):
        key, part = _key(path, name), part_of(path, name, directories)
        # An entry that is as in the base again leaves the patch, so a rollback yields the base's
        # own digest.
        if part == edits.origins[key]:
            edits.now.pop(key, None)
        else:
            edits.now[key] = part
    # Equal trees keep their digest where that is free; comparisons then stop at once.
    if not edits.now:
        return edits.base
    if len(edits.now) > MAX_PATCH_ENTRIES:
        return None
    data = encode_patch(edits.base, edits.now)
    return put(data) if len(data) <= MAX_PATCH_BYTES else None


def touch(edits: Edits, changed: Changed) -> None:
    """Add to the names that changed since the base was stored."""
    for path, names in changed.items():
        edits.touched.setdefault(path, set()).update(names)


def _each(changed: Changed) -> Iterator[tuple[bytes, bytes]]:
    return ((path, name) for path, names in changed.items() for name in names)


def _key(path: bytes, name: bytes) -> str:
    """Return the path of an entry as a patch stores it; an empty name is the directory itself."""
    raw = _raw(path, name)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "/".join(map(to_name, raw.split(b"/")))


def _raw(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path else name
