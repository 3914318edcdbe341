"""Naming tombstones again after damage: the event of the purge that named them is lost."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from mulligan.check.purges import Key, all_tombstones, named_tombstones
from mulligan.engine import Engine
from mulligan.model import ObjectKind, Purge, Tombstone
from mulligan.upkeep.purge.bury import announce


def name_again(engine: Engine) -> int:
    """Add events that name the tombstones that none names any more; return how many those are.

    The caller holds the upkeep lock. A tombstone has a checksum, so it is what a purge wrote.
    """
    with engine.read() as view:
        found, purges = all_tombstones(view), {one.number: one for one in view.purges()}
        named = named_tombstones(engine, view) if found else {}
    unnamed = {key: stone for key, stone in found.items() if named.get(key) != stone}
    for number in sorted({stone.purge for stone in unnamed.values()}):
        purge = purges.get(number) or Purge(number, engine.clock.now(), "", "its record is lost")
        _announce(engine, purge, {k: v for k, v in unnamed.items() if v.purge == number})
    return len(unnamed)


def _announce(engine: Engine, purge: Purge, stones: dict[Key, Tombstone]) -> None:
    objects: list[list[Any]] = []
    events: list[list[Any]] = []
    for key, stone in stones.items():
        left = stone.replacement and bytes(stone.replacement)
        if isinstance(key, bytes):
            objects.append([key, left])
        else:
            events.append([*key, left])
    with engine.pin():
        bundle = engine.bundle()
        put = partial(bundle.put, ObjectKind.VALUE)
        with engine.write(bundle) as txn:
            txn.put_purge(purge)
            # An event of the present: with the time of the purge, the clock would step back.
            now = msgspec.structs.replace(purge, time=engine.clock.now())
            announce(txn, now, sorted(objects), sorted(events), put)
