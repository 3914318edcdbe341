"""Tombstones whose records are lost, from the events of the purges that name them.

Without its tombstone, what is left of a purged event cannot be told from damage, and a purged file
would be stored again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mulligan import codec
from mulligan.errors import DamageError, MissingObject
from mulligan.journal.found_records import FoundRecords
from mulligan.journal.rebuild_chain import PlacedEvent
from mulligan.journal.records import NUMBER, PLACE, decode_tombstone, encode, encode_tombstone
from mulligan.model import Digest, Purge, Tombstone

PURGED = "upkeep.purged"
"""The kind of the event that names tombstones; see ``mulligan.document.fold``."""

Load = Callable[[Digest], bytes]


def add_tombstones(found: FoundRecords, events: Iterable[PlacedEvent], load: Load) -> bool:
    """Add the tombstones and purges that events name, if they were not found; return whether."""
    added = [_added(found, event, load) for event in events if event.kind == PURGED]
    return any(added)


def _added(found: FoundRecords, event: PlacedEvent, load: Load) -> bool:
    try:
        payload = codec.plain_decoder(load)(codec.encode(event.payload))
        purge = Purge(payload["purge"], event.time, payload["by"], payload["reason"])
        named = dict(_named(payload["record"], purge.number))
        key = NUMBER.pack(purge.number)
    # A large list is in objects, which may be lost as well. Then the tombstones stay lost.
    except (DamageError, MissingObject, KeyError, TypeError, ValueError):
        return False
    missing = {key: stone for key, stone in named.items() if _is_newer(found, key, stone)}
    for of, stone in missing.items():
        found.tables["purged"][of] = encode_tombstone(stone)
    if is_lost := key not in found.tables["purges"]:
        # Not known to be finished: the next upkeep erases the bytes once more.
        found.tables["purges"][key] = encode(purge)
    return bool(missing) or is_lost


def _named(record: Any, purge: int) -> Iterable[tuple[bytes, Tombstone]]:
    for digest, other in record["objects"]:
        yield bytes(digest), Tombstone(purge, other and Digest(other))
    for number, seq, body in record["events"]:
        yield PLACE.pack(number, seq), Tombstone(purge, Digest(body))


def _is_newer(found: FoundRecords, key: bytes, stone: Tombstone) -> bool:
    known = found.tables["purged"].get(key)
    return known is None or decode_tombstone(known).purge < stone.purge
