"""A model of writers beside a collection: every interleaving, and no needed object is removed.

The model has the steps of docs/FORMAT.md chapter 8 and nothing else. Each protection can be left
out, and then an interleaving exists that loses an object: the search finds it, so it is able to
find such a fault, and each of the protections is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

PARENT, CHILD = "parent", "child"
"""Two objects of the store that nothing refers to at first; the parent refers to the child."""

NEW, UNCOMMITTED = "new", "uncommitted"
"""An object that is stored without an event and refers to the child, and one that is alone."""

_OBJECTS = frozenset[str]
NONE: _OBJECTS = frozenset()


class Rules(NamedTuple):
    """The protections; each can be left out."""

    pins: bool = True
    fresh: bool = True
    grace: bool = True
    usable: bool = True
    second_look: bool = True


class World(NamedTuple):
    """The journal, the frames, one writer and the collector."""

    index: _OBJECTS = frozenset({PARENT, CHILD})
    frames: _OBJECTS = frozenset({PARENT, CHILD})
    events: _OBJECTS = NONE
    condemned: _OBJECTS = NONE
    in_force: bool = False
    is_marking: bool = False
    fresh: _OBJECTS = NONE
    writer: int = 0
    is_pinned: bool = False
    pinned_at: int = 0
    found: _OBJECTS = NONE
    collector: int = 0
    candidates: _OBJECTS = NONE
    kept: _OBJECTS = NONE
    dead: _OBJECTS = NONE
    period: int = 0


def children(objects: _OBJECTS) -> _OBJECTS:
    return frozenset({CHILD}) if objects & {PARENT, NEW} else NONE


def is_sound(world: World) -> bool:
    """Whether everything that events need is in the index, and its bytes are there."""
    needed = world.events | children(world.events)
    return needed <= world.index and needed <= world.frames


# Steps of a writer. An operation is pinned, looks objects up, and commits what it did not find.


def pin(world: World) -> World:
    return world._replace(is_pinned=True, pinned_at=world.collector)


def look_up(world: World, rules: Rules) -> World:
    hidden = world.condemned if world.in_force and rules.usable else NONE
    return world._replace(found=world.index - hidden)


def commit(world: World, *objects: str, event: str | None = None) -> World:
    """Store what was not found, which takes it off the list; end the operation."""
    stored = frozenset(objects) - world.found
    return world._replace(
        index=world.index | stored,
        frames=world.frames | stored,
        condemned=world.condemned - stored if world.in_force else world.condemned,
        fresh=world.fresh | stored if world.is_marking else world.fresh,
        events=world.events | ({event} if event else NONE),
        is_pinned=False,
    )


def direct(world: World, rules: Rules) -> World | None:
    """An operation refers to the parent."""
    steps = [
        lambda: pin(world),
        lambda: look_up(world, rules),
        lambda: commit(world, PARENT, CHILD, event=PARENT),
    ]
    return steps[world.writer]() if world.writer < len(steps) else None


def two_operations(world: World, rules: Rules) -> World | None:
    """One operation stores a new object without an event; a second one refers to it."""
    # The second finds the new object or stores it again. It never looks for the child, if it does.
    again = (NEW,) if NEW in world.found else (NEW, CHILD)
    steps = [
        lambda: pin(world),
        lambda: look_up(world, rules),
        lambda: commit(world, NEW, CHILD),
        lambda: pin(world),
        lambda: look_up(world, rules),
        lambda: commit(world, *again, event=NEW),
    ]
    return steps[world.writer]() if world.writer < len(steps) else None


def flushed_early(world: World, rules: Rules) -> World | None:
    """A frame is written, below the acknowledged length, and its entry is committed later."""
    steps = [
        lambda: pin(world),
        lambda: world._replace(frames=world.frames | {UNCOMMITTED}),
        lambda: commit(world, UNCOMMITTED, event=UNCOMMITTED)._replace(frames=world.frames),
    ]
    return steps[world.writer]() if world.writer < len(steps) else None


WRITERS = {"direct": direct, "two operations": two_operations, "flushed early": flushed_early}


def collector(world: World, rules: Rules) -> World | None:
    """Return the world after the collector's next step; None if it is done, or has to wait."""
    roots = world.events | (children(world.fresh) if rules.fresh else NONE)
    needed = roots | children(roots)
    is_waiting = rules.pins and rules.grace and world.is_pinned and world.pinned_at <= world.period
    match world.collector:
        case 0:
            return world._replace(is_marking=True, fresh=NONE)
        case 1:
            return world._replace(candidates=world.index)
        case 2:
            return world._replace(kept=needed)
        case 3:
            return world._replace(condemned=world.candidates - world.kept)
        case 4:  # one transaction, which has seen every commit
            return world._replace(in_force=True, condemned=world.condemned - needed)
        case 5 | 9:  # a grace period starts
            return world._replace(period=world.collector)
        case 6 if not is_waiting:
            return world._replace(condemned=world.condemned - needed)
        case 7:
            left = world.index - world.condemned
            return world._replace(index=left, condemned=NONE, in_force=False, is_marking=False)
        case 8:
            return world._replace(dead=world.frames - world.index)
        case 10 if not is_waiting:
            # What was stored again meanwhile has a frame of its own, so it is not among the dead.
            again = world.index if rules.second_look else NONE
            return world._replace(frames=world.frames - (world.dead - again))
    return None


def faults(rules: Rules, kind: str) -> set[World]:
    """Return the unsound worlds that some interleaving reaches."""
    seen: set[World] = set()
    pending = [World()]
    while pending:
        world = pending.pop()
        if world in seen:
            continue
        seen.add(world)
        if (after := WRITERS[kind](world, rules)) is not None:
            pending.append(after._replace(writer=world.writer + 1))
        if (after := collector(world, rules)) is not None:
            pending.append(after._replace(collector=world.collector + 1))
    return {world for world in seen if not is_sound(world)}


@pytest.mark.parametrize("kind", WRITERS)
def test_no_interleaving_removes_a_needed_object(kind: str) -> None:
    assert faults(Rules(), kind) == set()


@pytest.mark.parametrize(
    ("rules", "kind"),
    [
        (Rules(pins=False), "direct"),
        (Rules(grace=False), "direct"),
        (Rules(usable=False), "direct"),
        (Rules(fresh=False), "two operations"),
        (Rules(pins=False), "two operations"),
        (Rules(pins=False), "flushed early"),
        (Rules(second_look=False), "flushed early"),
    ],
)
def test_without_a_protection_an_object_is_lost(rules: Rules, kind: str) -> None:
    assert faults(rules, kind) != set()
