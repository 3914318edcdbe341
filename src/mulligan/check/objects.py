"""Checking stored objects against their index, and the index against what is stored."""

from __future__ import annotations

from collections.abc import Callable

from mulligan import codec
from mulligan.check.findings import Findings
from mulligan.errors import MulliganError
from mulligan.journal.protocol import View
from mulligan.model import Digest, Location
from mulligan.objects.protocol import Objects, StoredGap, StoredGroup
from mulligan.workspace.capture.patch import PATCH

_DOCUMENT = {"state", "undo", "redo"}
"""What every keyframe has; see ``mulligan.document.fold``."""

FOREIGN = "it belongs to another store, whose journal is not here; move it away to keep it"


class ObjectCheck:
    """Walks every area of an object store once; with ``full`` every object is digested."""

    def __init__(self, view: View, objects: Objects, findings: Findings, full: bool) -> None:
        self._view = view
        self._objects = objects
        self._findings = findings
        self._full = full
        self._indexed = 0
        self._has_index = findings.can_read("objects")
        self.objects = 0
        self.packs = 0
        self.unreferenced = 0

    def check(self, progress: Callable[[str], None]) -> None:
        """Check all packs, then every index entry that was not found in a pack."""
        lengths = self._lengths()
        try:
            for number in sorted({*lengths, *self._objects.areas()}):
                progress(f"pack {number:08x}")
                self._pack(number, lengths.get(number, 0))
            if not self._has_index:
                return
            entries = sum(1 for _ in self._view.locations())
            if entries != self._indexed:
                self._report_entries(lengths)
        except MulliganError as error:
            self._findings.report("journal", "table 'objects'", error)

    def _lengths(self) -> dict[int, int]:
        """Return the acknowledged lengths, or the file sizes if the journal is unreadable."""
        try:
            if self._findings.can_read("packs"):
                return self._view.packs()
            return {number: self._objects.area_size(number) for number in self._objects.areas()}
        except MulliganError as error:
            self._findings.report("journal", "table 'packs'", error)
            return {number: self._objects.area_size(number) for number in self._objects.areas()}

    def _pack(self, number: int, length: int) -> None:
        self.packs += 1
        try:
            if not length and self._objects.is_foreign(number):
                self._findings.warn("pack", self._name(number), FOREIGN)
                return
            if (tail := self._objects.area_size(number) - length) > 0:
                self.unreferenced += tail
                self._look_for_newer(number, length)
            if length:
                for found in self._objects.enumerate(number, length, full=self._full):
                    self._scanned(found)
        except MulliganError as error:
            self._findings.report("pack", self._name(number), error)

    def _look_for_newer(self, number: int, length: int) -> None:
        """Warn of a pack with more past its acknowledged length than one lost write can leave.

        A crash leaves at most what one transaction was about to commit: one state and one change of
        files. More of either was committed once, by a newer journal than this one.
        """
        if not self._findings.can_read("packs"):
            return
        states, changes = 0, 0
        for data in self._objects.values_after(number, length):
            value = codec.decode(data)
            states += isinstance(value, dict) and value.keys() >= _DOCUMENT
            changes += isinstance(value, list) and value[:1] == [PATCH]
        if max(states, changes) > 1:
            self._findings.warn(
                "journal",
                self._name(number),
                f"it holds {max(states, changes)} or more checkpoints that the journal "
                "does not know; data.mdb may be an older copy",
            )

    def _scanned(self, found: StoredGroup | StoredGap) -> None:
        where = f"{self._name(found.area)} at offset {found.offset}"
        if isinstance(found, StoredGap):
            self._findings.report("pack", where, f"{found.length} bytes: {found.detail}")
            return
        used = 0
        for stored in found.objects:
            self.objects += 1
            if self._has_index and self._view.locate(stored.digest) == stored.location:
                used += 1
            if stored.damage is not None:
                self._findings.report("object", f"{stored.digest.hex()} in {where}", stored.damage)
        self._indexed += used
        if self._has_index and not used:
            self.unreferenced += found.length

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
                self._findings.report("index", f"object {digest.hex()}", _nowhere(digest, location))

    def _groups(self, number: int, length: int) -> list[StoredGroup]:
        try:
            found = list(self._objects.enumerate(number, length, full=False))
        except MulliganError:  # the pack itself was already reported
            return []
        return [group for group in found if isinstance(group, StoredGroup)]

    def _name(self, number: int) -> str:
        return self._objects.area_name(number)


def _nowhere(digest: Digest, location: Location) -> str:
    return f"it is not at offset {location.offset} of pack {location.pack:08x}"
