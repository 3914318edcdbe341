"""Freeing: return the storage of dead frames to the filesystem.

A frame is dead when no entry of the index leads to it. A bundle that was flushed and is not yet
committed looks the same, so dead stretches are freed only after a grace period and a second look:

1. Note how much of each area is acknowledged. What is written there was put inside of a pin that
   started earlier.
2. Wait for a grace period: those pins have ended, committed or not.
3. Look at the index. Stretches without an entry stay dead: new entries lead to new frames.
4. Remove areas without live frames, and give back the dead stretches of the others. This needs no
   new storage, so it works on a full disk.
5. Move live objects out of frames that are mostly dead, wait for a second grace period for readers
   that know the old locations, and go on with step 3.

The caller holds the upkeep lock, so no collection takes entries out of the index meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import groupby, islice

import msgspec

from mulligan.engine import Engine
from mulligan.errors import DamageError, DiskFull
from mulligan.failpoints import Failpoint
from mulligan.model import Digest, Location
from mulligan.objects.protocol import Entry, OwnedArea
from mulligan.upkeep.slices import SliceSize, Stop, Stopped, check, never
from mulligan.upkeep.space.grace import wait_grace_period
from mulligan.upkeep.space.layout_plan import FrameUse, dead_extents, worth_moving

PAGE_ENTRIES = 20_000
"""How many entries of the index are read within one snapshot."""

SLICE_OBJECTS, SLICE_BYTES = 500, 4 << 20
"""How much is moved in one transaction at most; on a slow disk, fewer objects."""

ROUND_BYTES = 256 << 20
"""How much is moved before the old frames are freed: that much more storage is used meanwhile."""

MIN_ROOM = 64 << 20
"""How many bytes the filesystem must have free before live objects are copied."""

BREAK_SHARE = 0.5
"""How long to pause after a slice, as a share of the time that it took: others write too."""


class Freed(msgspec.Struct, frozen=True):
    """What freeing gave back, in bytes, and what was skipped, with the reason."""

    areas: int = 0
    area_bytes: int = 0
    extent_bytes: int = 0
    tail_bytes: int = 0
    moved: int = 0
    skipped: tuple[str, ...] = ()
    stopped: bool = False
    longest_hold: float = 0.0
    """The longest that one of its transactions held the write lock, in seconds."""

    @property
    def total(self) -> int:
        """Return all bytes that were released."""
        return self.area_bytes + self.extent_bytes + self.tail_bytes


class _Live(msgspec.Struct):
    """The live frames of an area: how long each is and how many live objects it has."""

    lengths: dict[int, int] = {}
    counts: dict[int, int] = {}


_Place = tuple[Entry, Location]
_Move = tuple[Digest, tuple[Location, Location]]


def free(
    engine: Engine,
    stop: Stop = never,
    *,
    rewrite: bool = True,
    erase: bool = False,
    patience: float | None = None,
) -> Freed:
    """Give dead storage back; the caller holds the upkeep lock, and no pin.

    With ``erase``, dead bytes are overwritten also where no storage can be released. It is stopped
    if operations that are under way take longer than ``patience`` seconds.
    """
    return _Freeing(engine, stop, rewrite, erase, patience).run()


def vacate(engine: Engine, frames: Iterable[Location], stop: Stop = never) -> int:
    """Move the live objects out of frames, so that :func:`free` frees them; return how many.

    Raises ``DiskFull``. Damaged objects stay where they are.
    """
    freeing = _Freeing(engine, stop)
    for area, group in groupby(sorted(frames, key=lambda f: (f.area, f.offset)), _area):
        uses = [FrameUse(frame.offset, frame.length, frame.length) for frame in group]
        for batch in _batches(uses):
            if not freeing.move(area, batch):
                raise DiskFull("There is no space left to move objects beside purged ones.")
    return freeing.moved


def _area(location: Location) -> int:
    return location.area


class _Freeing:
    def __init__(
        self,
        engine: Engine,
        stop: Stop,
        rewrite: bool = True,
        erase: bool = False,
        patience: float | None = None,
    ) -> None:
        self._engine = engine
        self._objects = engine.objects
        self._stop = stop
        self._rewrite = rewrite
        self._slice = SliceSize(engine.clock, SLICE_OBJECTS)
        self._erase = erase
        self._patience = patience
        self._lengths: dict[int, int] = {}
        self._has_holes = True
        self._stuck: set[tuple[int, int]] = set()
        self._skipped: list[str] = []
        self._areas = self.moved = 0
        self._area_bytes = self._extent_bytes = self._tail_bytes = 0

    def run(self) -> Freed:
        stopped = False
        try:
            self._cut_tails()
            # Read before the grace period starts; see the top of this module.
            with self._engine.read() as view:
                self._lengths = view.area_lengths()
            self._wait()
            live = self._release()
            while self._rewrite and self._move_round(live):
                live = self._release()
        except Stopped:
            stopped = True
        return Freed(
            areas=self._areas,
            area_bytes=self._area_bytes,
            extent_bytes=self._extent_bytes,
            tail_bytes=self._tail_bytes,
            moved=self.moved,
            skipped=tuple(dict.fromkeys(self._skipped)),
            stopped=stopped,
            longest_hold=self._slice.longest,
        )

    def _cut_tails(self) -> None:
        """Cut what was never acknowledged, and delete areas that the journal forgot already."""
        for area in self._objects.areas():
            with self._objects.own(area) as owned:
                if owned is None:
                    continue
                # Read under the lock: before it, the previous owner could still commit more.
                with self._engine.read() as view:
                    length, forgotten = view.area_length(area), view.last_forgotten_area()
                if not length and area <= forgotten:
                    self._tail_bytes += owned.remove()
                else:
                    self._tail_bytes += owned.cut_tail(length)
            check(self._stop)

    def _wait(self) -> None:
        wait_grace_period(self._engine, self._stop, self._patience)

    def _live(self) -> dict[int, _Live]:
        """Return the live frames of every area, read in short snapshots."""
        found = {area: _Live() for area in self._lengths}
        last: Digest | None = None
        while page := self._page(last):
            for _, place in page:
                area = found.get(place.area)
                if area is not None:
                    area.lengths[place.offset] = place.length
                    area.counts[place.offset] = area.counts.get(place.offset, 0) + 1
            last = page[-1][0]
            check(self._stop)
        return found

    def _page(self, after: Digest | None) -> list[tuple[Digest, Location]]:
        with self._engine.read() as view:
            return list(islice(view.locations(after), PAGE_ENTRIES))

    def _release(self) -> dict[int, _Live]:
        """Remove areas without live frames, and give back dead stretches of the others."""
        live = self._live()
        for area, frames in live.items():
            if frames.lengths or not self._remove(area):
                self._free_extents(area, frames)
            check(self._stop)
        return live

    def _remove(self, area: int) -> bool:
        """Remove an area without live frames, unless a writer has it; return whether it is gone."""
        with self._objects.own(area) as owned:
            return owned is not None and self._forget(area, owned)

    def _forget(self, area: int, owned: OwnedArea) -> bool:
        try:
            with self._slice.single(self._engine.write()) as txn:
                # A writer may have had it since the look at the index.
                if txn.area_length(area) != self._lengths[area]:
                    return False
                txn.forget_area(area)
        except DiskFull:
            # The journal needs a few pages; the holes below give them.
            self._skipped.append("areas without live objects: the disk is full")
            return False
        # Before the file goes: an area that the journal knows must not be missing.
        self._engine.failpoint(Failpoint.FREE_AREA_FORGOTTEN)
        self._area_bytes += owned.remove()
        self._areas += 1
        del self._lengths[area]
        return True

    def _free_extents(self, area: int, frames: _Live) -> None:
        extents = dead_extents(frames.lengths, self._lengths[area])
        if not extents or not self._has_holes:
            return
        freed = self._objects.free(area, extents, erase=self._erase)
        if freed is None:
            self._has_holes = False
            self._skipped.append("dead objects beside live ones: this filesystem has no holes")
            return
        self._extent_bytes += freed
        self._engine.failpoint(Failpoint.FREE_EXTENTS_FREED)

    def _move_round(self, live: dict[int, _Live]) -> bool:
        """Move objects out of frames that are mostly dead; return whether any was moved."""
        before, budget = self.moved, ROUND_BYTES
        with ExitStack() as owned:
            for area, frames in live.items():
                if area not in self._lengths:
                    continue
                # Locked until the end of the round if all of it moves: no writer, not this process
                # either, must append to an area that is about to become empty.
                chosen, lock = self._choose(area, frames)
                owned.enter_context(lock)
                for batch in _batches(chosen):
                    if budget <= 0 or not self._has_room():
                        break
                    budget -= sum(frame.live for frame in batch)
                    if not self.move(area, batch):
                        budget = 0
                        break
            if self.moved == before:
                return False
            # For readers that looked the old locations up.
            self._wait()
        return True

    def _choose(self, area: int, frames: _Live) -> tuple[list[FrameUse], ExitStack]:
        """Return the frames of an area to move, and its lock if they are all that is live."""
        with ExitStack() as lock:
            is_owned = lock.enter_context(self._objects.own(area)) is None
            chosen = self._chosen(area, frames, is_owned)
            if len(chosen) == len(frames.lengths):
                return chosen, lock.pop_all()
        return chosen, ExitStack()

    def _chosen(self, area: int, frames: _Live, is_owned: bool) -> list[FrameUse]:
        uses = []
        for offset in sorted(frames.lengths):
            location = Location(area, offset, frames.lengths[offset], 0)
            if (area, offset) not in self._stuck and offset < self._lengths[area]:
                uses.append(self._use(location, frames.counts[offset]))
        return worth_moving(uses, self._lengths[area], has_holes=self._has_holes, is_owned=is_owned)

    def _use(self, location: Location, count: int) -> FrameUse:
        """Measure how much of a frame its live objects take."""
        offset, length = location.offset, location.length
        try:
            entries = self._objects.entries_at(location, count)
        except DamageError:
            # What it holds cannot be read, so nothing of it can be copied; verify reports it.
            self._stuck.add((location.area, offset))
            return FrameUse(offset, length, length)
        if entries is None:
            return FrameUse(offset, length, length)
        alive = sum(entry.length for entry, _ in self._places(location, entries))
        total = sum(entry.length for entry in entries)
        return FrameUse(offset, length, length * alive // max(1, total))

    def _places(self, location: Location, entries: Sequence[Entry]) -> list[_Place]:
        """Return those of a frame's objects that the index finds there."""
        places: list[_Place] = []
        with self._engine.read() as view:
            found = view.locate_all([entry.digest for entry in entries])
        for slot, entry in enumerate(entries):
            place = Location(location.area, location.offset, location.length, slot)
            if found.get(entry.digest) == place:
                places.append((entry, place))
        return places

    def move(self, area: int, batch: list[FrameUse]) -> bool:
        """Copy the live objects of frames and change the index; return whether there was room."""
        started = self._engine.clock.monotonic()
        places: list[_Place] = []
        for frame in batch:
            location = Location(area, frame.offset, frame.length, 0)
            # Whatever happens, it is tried once: a damaged object stays where it is.
            self._stuck.add((area, frame.offset))
            with suppress(DamageError):
                places += self._places(location, self._objects.entries_at(location, -1) or ())
        # Counted as a write, so that ``close`` does not release the copies' area before the commit.
        self._engine.begin_write()
        try:
            # The copies are durable when this returns; only then may the index lead to them.
            copied = self._objects.copy(places)
            self._engine.failpoint(Failpoint.FREE_COPIED)
            rest = list(copied.moves.items())
            while rest:
                rest = rest[self._relocate(rest[: self._slice.now], copied.area_lengths) :]
                self._engine.failpoint(Failpoint.FREE_RELOCATED)
        except DiskFull:
            self._skipped.append("objects in frames that are mostly dead: the disk is full")
            return False
        finally:
            self._engine.end_write()
        self._pause(started)
        return True

    def _relocate(self, moves: Sequence[_Move], lengths: Mapping[int, int]) -> int:
        """Change the index for objects that were copied; return for how many there was time."""
        done = moved = 0
        # In slices: each transaction keeps all other writers out while it runs.
        with self._slice.transaction(self._engine.write()) as txn:
            txn.index_objects({}, lengths)
            for part in self._slice.parts(moves):
                moved += txn.relocate(dict(part))
                done += len(part)
        self.moved += moved
        return done

    def _pause(self, started: float) -> None:
        check(self._stop)
        clock = self._engine.clock
        # In proportion to the time just used, so that others get their share of the disk.
        clock.sleep((clock.monotonic() - started) * BREAK_SHARE)

    def _has_room(self) -> bool:
        directory = self._engine.directory
        if directory is None:
            return True
        status = os.statvfs(directory)
        if status.f_bavail * status.f_frsize >= MIN_ROOM:
            return True
        self._skipped.append("objects in frames that are mostly dead: the disk is nearly full")
        return False


def _batches(frames: list[FrameUse]) -> Iterator[list[FrameUse]]:
    """Divide frames so that each batch moves a limited number of bytes."""
    batch: list[FrameUse] = []
    size = 0
    for frame in frames:
        if batch and size + frame.live > SLICE_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(frame)
        size += frame.live
    if batch:
        yield batch
