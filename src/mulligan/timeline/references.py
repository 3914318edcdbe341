"""What an event refers to: the objects that must exist as long as the event does.

References inside of values have a type of their own. Besides, some events name trees and keyframes
by their bare digests. A new kind of event that does so must be added here, and a test holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mulligan.codec import ListBranch, MapBranch, OrderedBranch
from mulligan.document.fold import CHECKPOINT, RESTORE_BEGUN, RESTORED
from mulligan.document.nodes import references
from mulligan.model import DIGEST_SIZE, Digest, Event

WORKSPACE, KEYFRAME = "workspace", "keyframe"

_BARE: dict[str, tuple[tuple[str, ...], ...]] = {
    CHECKPOINT: ((WORKSPACE,),),
    RESTORE_BEGUN: (("tree",), ("before",), ("present",)),
    RESTORED: (("files", "before"), ("files", "after")),
}
"""Where the payloads of events name trees by bare digests."""


def event_references(event: Event, *, is_pruned: bool = False) -> Iterator[Digest]:
    """Yield the digests that an event refers to; a pruned checkpoint no longer needs its tree."""
    yield from references(event.payload)
    if not is_pruned:
        yield from tree_references(event)


def tree_references(event: Event) -> Iterator[Digest]:
    """Yield the trees that an event refers to."""
    for path in _BARE.get(event.kind, ()):
        found = event.payload
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, bytes) and len(found) == DIGEST_SIZE:
            yield Digest(found)


def bare_digests(value: Any) -> Iterator[bytes]:
    """Yield every byte string in a frozen value that may be a list of digests.

    Trees list the chunks of files so. Other byte strings of such a length are yielded too: who
    marks what they seem to name keeps a little too much at worst.
    """
    if isinstance(value, bytes):
        if value and len(value) % DIGEST_SIZE == 0:
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from bare_digests(item)
    elif isinstance(value, list):
        for item in value:
            yield from bare_digests(item)
    elif isinstance(value, ListBranch | MapBranch | OrderedBranch):
        yield from bare_digests(value.slots)
