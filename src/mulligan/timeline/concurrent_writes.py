"""Writes that are concurrent with a restore of files: they stay.

A restore of files takes a while, and an interrupted one may be finished much later. Other processes
write to the state meanwhile, and their calls return: what they wrote is durable and must not be
lost. So a restore brings the state back as of when it started: every path that was changed after
that keeps the newest value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mulligan.document import nodes
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import APPEND, DELETE, SET, STATE
from mulligan.journal.protocol import View
from mulligan.model import Event, Path
from mulligan.timeline.undo import outermost

MergeUnit = Callable[[Path], Path]
"""Returns what is kept as a whole when a path was written: the path, or the record around it."""


def changed_after(
    view: View, number: int, seq: int, until: int, document: Document, merge_unit: MergeUnit
) -> list[Path]:
    """Return the paths of the state that the events after ``seq`` changed, outermost only.

    ``document`` is any of the session: parts of large events are loaded through it.
    """
    events = view.events(number, seq + 1, until)
    return outermost([merge_unit(path) for event in events for path in _changed(event, document)])


def keep_concurrent_writes(target: Document, now: Document, paths: list[Path]) -> Document:
    """Return the target with the newest values at the paths."""
    for path in paths:
        target = _with_newest(target, now, _keepable(target, now, path))
    return target


def _changed(event: Event, document: Document) -> Iterator[Path]:
    if event.kind in (SET, APPEND, DELETE):
        yield tuple(event.payload["path"])
    elif "changes" in event.payload:
        for change in document.items(document.resolved(event.payload["changes"])):
            path, *_ = document.resolved(change)
            yield tuple(document.resolved(path))


def _keepable(target: Document, now: Document, path: Path) -> Path:
    """Return the path, or what has to be kept as a whole: a list, or what else is in the way."""
    for length in range(len(path)):
        above = (*STATE, *path[:length])
        if any(not _is_map_or_missing(document, above) for document in (now, target)):
            return path[:length]
    return path


def _is_map_or_missing(document: Document, place: Path) -> bool:
    found = document.find(place)
    return found is MISSING or nodes.is_map(document.resolved(found))


def _with_newest(target: Document, now: Document, path: Path) -> Document:
    place = (*STATE, *path)
    newest = now.find(place)
    if newest is not MISSING:
        return target.set(place, newest)
    return target if target.find(place) is MISSING else target.delete(place)
