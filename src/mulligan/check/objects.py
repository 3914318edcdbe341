"""Checking where objects are stored against their index, and the index against that."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from mulligan.check.findings import Findings
from mulligan.check.older_copy import unknown_checkpoints
from mulligan.errors import MulliganError
from mulligan.journal.protocol import View
from mulligan.model import Location
from mulligan.objects.protocol import Objects, StoredGap, StoredGroup

FOREIGN = "it belongs to another store, whose journal is not here; move it away to keep it"


BATCH_OBJECTS = 8_192
"""How many objects are looked up in the index together: in order, that is much faster."""


class ObjectCheck:
    """Walks every area of an object store once, without reading the bytes of objects."""

    def __init__(
        self,
        view: View,
        objects: Objects,
        findings: Findings,
        length_now: Callable[[int], int],
    ) -> None:
        self._view = view
        self.length_now = length_now
        self._objects = objects
        self._findings = findings
        self._indexed = 0
        self._pending: list[StoredGroup] = []
        self._pending_objects = 0
        self._has_index = findings.can_read("objects")
        self._frames: dict[int, list[int]] | None = None
        self.readable: dict[int, int] = {}
        """The areas that were read to their end, with their acknowledged lengths."""
        self.groups = 0
        self.objects = 0
        self.areas = 0
        self.unreferenced = 0

    def check(self, progress: Callable[[str], None]) -> None:
        """Check all areas, then every index entry that was not found in one."""
        lengths = self._lengths()
        try:
            for number in sorted({*lengths, *self._objects.areas()}):
                progress(self._name(number))
                self._area(number, lengths.get(number, 0))
            if not self._has_index:
                return
            # Counting is cheap; the entries are only compared one by one if the counts differ.
            if self._view.object_count() != self._indexed:
                self._report_entries(lengths)
        except MulliganError as error:
            self._findings.report("table", "table 'objects'", error, table="objects")

    def _lengths(self) -> dict[int, int]:
        """Return the acknowledged lengths, or the areas' sizes if the journal is unreadable."""
        try:
            if self._findings.can_read("packs"):
                return self._view.area_lengths()
            return {number: self._objects.area_size(number) for number in self._objects.areas()}
        except MulliganError as error:
            self._findings.report("table", "table 'packs'", error, table="packs")
            return {number: self._objects.area_size(number) for number in self._objects.areas()}

    def _area(self, number: int, length: int) -> None:
        self.areas += 1
        try:
            # Its bytes are not an unacknowledged tail of this store.
            if not length and self._objects.is_foreign(number):
                self._findings.warn("foreign", self._name(number), FOREIGN, area=number)
                return
            if (tail := self._objects.area_size(number) - length) > 0:
                self.unreferenced += tail
                self._look_for_newer(number, length)
            if length:
                for found in self._objects.enumerate(number, length, full=False):
                    self._scanned(found)
                self._look_up()
                self.readable[number] = length
        except MulliganError as error:
            self._unreadable(number, error)

    def _unreadable(self, number: int, error: MulliganError) -> None:
        """Report an area that cannot be read; if nothing leads to it, nothing is lost."""
        if not self._has_index or self._live_frames(number):
            self._findings.report("pack", self._name(number), error, area=number)
        # Upkeep may have removed it since this snapshot.
        elif not self._findings.can_read("packs") or self.length_now(number):
            self._findings.warn("pack", self._name(number), error, area=number)

    def _look_for_newer(self, number: int, length: int) -> None:
        """Warn of an area with more past its acknowledged length than one lost write can leave."""
        if not self._findings.can_read("packs"):
            return
        # Upkeep was killed between forgetting the area and deleting it.
        if not length and number <= self._view.last_forgotten_area():
            return
        if (count := unknown_checkpoints(self._objects, number, length)) > 1:
            self._findings.warn(
                "newer",
                self._name(number),
                f"it holds {count} or more checkpoints that the journal "
                "does not know; the journal may be an older copy",
                area=number,
            )

    def _scanned(self, found: StoredGroup | StoredGap) -> None:
        if isinstance(found, StoredGap):
            where = f"{self._name(found.area)} at offset {found.offset}"
            # A stretch to which no entry leads is free; upkeep releases its storage.
            if not self._is_free(found):
                place = Location(found.area, found.offset, found.length, 0)
                detail = f"{found.length} bytes: {found.detail}"
                self._findings.report("gap", where, detail, area=found.area, location=place)
            return
        self.groups += 1
        self.objects += len(found.digests)
        if not self._has_index:
            return
        self._pending.append(found)
        self._pending_objects += len(found.digests)
        if self._pending_objects >= BATCH_OBJECTS:
            self._look_up()

    def _look_up(self) -> None:
        """Count what the index finds of the groups since the last look."""
        groups, self._pending, self._pending_objects = self._pending, [], 0
        # An object may be stored twice; only the copy that the index names is in use.
        for group, used in zip(groups, self._view.indexed_at(groups), strict=True):
            self._indexed += used
            if not used:
                self.unreferenced += group.length

    def _is_free(self, gap: StoredGap) -> bool:
        """Whether no entry of the index leads into a gap; its header is not free."""
        is_inside = 0 < gap.offset < self._objects.area_size(gap.area)
        if not self._has_index or not is_inside:
            return False
        frames = self._live_frames(gap.area)
        at = bisect_left(frames, gap.offset)
        return at == len(frames) or frames[at] >= gap.offset + gap.length

    def _live_frames(self, area: int) -> list[int]:
        """Return the offsets in an area to which the index leads, in order."""
        if self._frames is None:
            # All areas in one pass; only stores with gaps need it.
            found: dict[int, set[int]] = {}
            for _, place in self._view.locations():
                found.setdefault(place.area, set()).add(place.offset)
            self._frames = {number: sorted(offsets) for number, offsets in found.items()}
        return self._frames.get(area, [])

    def _report_entries(self, lengths: dict[int, int]) -> None:
        """Report every index entry that does not lead to its object."""
        true = {
            (stored.digest, stored.location)
            for number, length in lengths.items()
            for group in self._groups(number, length)
            for stored in group.objects
        }
        for digest, location in self._view.locations():
            if (digest, location) not in true:
                where = f"offset {location.offset} of {self._name(location.area)}"
                self._findings.report(
                    "index",
                    f"object {digest.hex()}",
                    f"it is not at {where}",
                    table="objects",
                    digest=digest,
                    area=location.area,
                    location=location,
                )

    def _groups(self, number: int, length: int) -> list[StoredGroup]:
        try:
            found = list(self._objects.enumerate(number, length, full=False))
        except MulliganError:  # the area itself was already reported
            return []
        return [group for group in found if isinstance(group, StoredGroup)]

    def _name(self, number: int) -> str:
        return self._objects.area_name(number)
