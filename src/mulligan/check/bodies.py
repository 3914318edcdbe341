"""Checking the stored bytes of objects: all of them, or a random part."""

from __future__ import annotations

from collections.abc import Callable, Set
from itertools import count
from random import Random

import msgspec

from mulligan.check.findings import Findings
from mulligan.check.objects import ObjectCheck
from mulligan.engine import Engine
from mulligan.errors import MulliganError
from mulligan.model import Digest
from mulligan.objects.protocol import Pick, Stored, StoredGroup

OnRead = Callable[[int], None]
"""Is told how many stored bytes were just read; it may wait, or raise to end the check."""


class Sample(msgspec.Struct, frozen=True):
    """A random part of the groups of objects; the same seed chooses the same ones."""

    fraction: float
    seed: int

    def picks(self, groups: int) -> Pick:
        """Choose among this many groups: at least one, if there is any."""
        wanted = min(groups, max(1, round(groups * self.fraction)))
        chosen = set(Random(self.seed).sample(range(groups), wanted))  # noqa: S311 -- no secret
        numbers = count()
        return lambda: next(numbers) in chosen


class BodyCheck:
    """Reads the bytes of the areas that a check of the structure went through.

    It runs without a snapshot of the journal and without a pin, which would keep upkeep waiting for
    as long as reading takes. What is damaged is looked up in the newest index: an object that was
    removed or moved meanwhile is none. ``known`` are the objects that are reported already.
    """

    def __init__(
        self, engine: Engine, structure: ObjectCheck, findings: Findings, known: Set[Digest]
    ) -> None:
        self._engine = engine
        self._known = known
        self._structure = structure
        self._findings = findings
        self._has_index = findings.can_read("objects")
        self.read_bytes = 0

    def check(self, full: bool | Pick, progress: Callable[[str], None], on_read: OnRead) -> None:
        """Check all bytes, or those of the groups that are picked."""
        objects = self._engine.objects
        for area, length in self._structure.readable.items():
            progress(objects.area_name(area))
            try:
                for group in objects.enumerate(area, length, full=full):
                    if isinstance(group, StoredGroup) and group.is_checked:
                        self._group(group)
                        on_read(group.length)
            except MulliganError as error:
                # Upkeep may have removed it meanwhile.
                if self._structure.length_now(area):
                    self._findings.report("pack", objects.area_name(area), error, area=area)

    def _group(self, group: StoredGroup) -> None:
        self.read_bytes += group.length
        if not group.damage:
            return
        damaged = [
            stored
            for stored in group.objects
            if stored.damage is not None and stored.digest not in self._known
        ]
        if not damaged:
            return
        where = f"{self._engine.objects.area_name(group.area)} at offset {group.offset}"
        for stored in self._in_use(damaged):
            self._findings.report(
                "object",
                f"{stored.digest.hex()} in {where}",
                stored.damage,
                digest=stored.digest,
                area=group.area,
                location=stored.location,
            )

    def _in_use(self, damaged: list[Stored]) -> list[Stored]:
        """Return those to which the index leads; a dead object may have lost its bytes."""
        if not self._has_index:
            return damaged
        with self._engine.read() as view:
            places = view.locate_all(stored.digest for stored in damaged)
        return [stored for stored in damaged if places.get(stored.digest) == stored.location]
