"""Checking packs against the index of objects, and the index against the packs."""

from __future__ import annotations

from collections.abc import Callable

from mulligan import codec
from mulligan.check.findings import Findings
from mulligan.errors import MulliganError
from mulligan.journal.protocol import View
from mulligan.model import Digest, Location
from mulligan.objects.packs import PackObjects
from mulligan.objects.scan import ScannedFrame, ScannedGap
from mulligan.workspace.capture.patch import PATCH

_DOCUMENT = {"state", "undo", "redo"}
"""What every keyframe has; see ``mulligan.document.fold``."""

FOREIGN = "it belongs to another store, whose journal is not here; move it away to keep it"


class PackCheck:
    """Walks every pack once; with ``full`` every object is read and digested."""

    def __init__(self, view: View, objects: PackObjects, findings: Findings, full: bool) -> None:
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
        """Check all packs, then every index entry that no pack has answered for."""
        lengths = self._lengths()
        try:
            for number in sorted({*lengths, *self._objects.numbers()}):
                progress(f"pack {number:08x}")
                self._pack(number, lengths.get(number, 0))
            if not self._has_index:
                return
            entries = sum(1 for _ in self._view.locations())
            if entries != self._indexed:
                self._blame_entries(lengths)
        except MulliganError as error:
            self._findings.report("journal", "table 'objects'", error)

    def _lengths(self) -> dict[int, int]:
        """Return the acknowledged lengths, or the files' where the journal cannot tell."""
        try:
            if self._findings.can_read("packs"):
                return self._view.packs()
            return {number: self._objects.size(number) for number in self._objects.numbers()}
        except MulliganError as error:
            self._findings.report("journal", "table 'packs'", error)
            return {number: self._objects.size(number) for number in self._objects.numbers()}

    def _pack(self, number: int, length: int) -> None:
        self.packs += 1
        try:
            if not length and self._objects.is_foreign(number):
                self._findings.warn("pack", self._name(number), FOREIGN)
                return
            if (tail := self._objects.size(number) - length) > 0:
                self.unreferenced += tail
                self._look_for_newer(number, length)
            if length:
                for found in self._objects.scan(number, length, bodies=self._full):
                    self._scanned(found)
        except MulliganError as error:
            self._findings.report("pack", self._name(number), error)

    def _look_for_newer(self, number: int, length: int) -> None:
        """Warn of a pack that goes on longer than one write that was not acknowledged would.

        A crash leaves what one transaction was about to commit, with one state and one change of
        files at most. More of either was committed once, by a journal newer than this one.
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

    def _scanned(self, found: ScannedFrame | ScannedGap) -> None:
        where = f"{self._name(found.pack)} at offset {found.offset}"
        if isinstance(found, ScannedGap):
            self._findings.report("pack", where, f"{found.length} bytes: {found.detail}")
            return
        used = 0
        for slot, entry in enumerate(found.entries):
            self.objects += 1
            if self._has_index and self._view.locate(entry.digest) == found.location(slot):
                used += 1
            if slot in found.damage:
                self._findings.report(
                    "object", f"{entry.digest.hex()} in {where}", found.damage[slot]
                )
        self._indexed += used
        if self._has_index and not used:
            self.unreferenced += found.length

    def _blame_entries(self, lengths: dict[int, int]) -> None:
        """Name every index entry that does not lead to its object."""
        true = {
            (entry.digest, found.location(slot))
            for number, length in lengths.items()
            for found in self._frames(number, length)
            for slot, entry in enumerate(found.entries)
        }
        for digest, location in self._view.locations():
            if (digest, location) not in true:
                self._findings.report("index", f"object {digest.hex()}", _nowhere(digest, location))

    def _frames(self, number: int, length: int) -> list[ScannedFrame]:
        try:
            found = list(self._objects.scan(number, length, bodies=False))
        except MulliganError:  # the pack itself was blamed already
            return []
        return [frame for frame in found if isinstance(frame, ScannedFrame)]

    def _name(self, number: int) -> str:
        return self._objects.path(number).name


def _nowhere(digest: Digest, location: Location) -> str:
    return f"it is not at offset {location.offset} of pack {location.pack:08x}"
