"""Files whose content was purged: a restore leaves them alone, whatever is there now."""

from __future__ import annotations

from collections.abc import Iterable

from mulligan.document.document import Document
from mulligan.engine import Engine
from mulligan.model import Digest, LeftOut
from mulligan.workspace.entries import File
from mulligan.workspace.restore.plan import Entry, TreeChange, tree_changes


def purged_paths(engine: Engine, changes: Iterable[TreeChange]) -> dict[str, str]:
    """Return the paths of changes from or to purged content, each with when, by whom and why.

    What is there now stays: of a purged file, no checkpoint holds the bytes to bring it back.
    """
    chunks: dict[Digest, list[str]] = {}
    for change in changes:
        for entry in (change.before, change.after):
            for chunk in _chunks(entry):
                chunks.setdefault(chunk, []).append(change.place)
    rules = purged_chunks(engine, chunks)
    return {path: rules[chunk] for chunk in rules for path in chunks[chunk]}


def purged_files(engine: Engine, tree: Digest) -> dict[str, str]:
    """Return the paths of a tree whose content was purged, each with when, by whom and why."""
    with engine.read() as view:
        if not view.last_purge():
            return {}
    return purged_paths(engine, tree_changes(Document({}, engine.load), None, tree))


def purged_chunks(engine: Engine, chunks: Iterable[Digest]) -> dict[Digest, str]:
    """Return those of the chunks that were purged, each with when, by whom and why."""
    with engine.read() as view:
        found = view.tombstones(chunks)
        named = {purge.number: str(purge) for purge in view.purges()} if found else {}
    return {chunk: named[stone.purge] for chunk, stone in found.items()}


def left_alone(purged: dict[str, str]) -> tuple[LeftOut, ...]:
    """Return purged paths as what a restore does not touch."""
    return tuple(LeftOut(path, rule) for path, rule in sorted(purged.items()))


def _chunks(entry: Entry | None) -> tuple[Digest, ...]:
    return entry.chunks if isinstance(entry, File) else ()
