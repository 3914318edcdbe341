"""Checking tombstones: each is named by the event of a purge, and by nothing else."""

from __future__ import annotations

from typing import Any

from mulligan.check.findings import Findings
from mulligan.document.fold import PURGED
from mulligan.engine import Engine
from mulligan.errors import MulliganError
from mulligan.journal.protocol import View
from mulligan.model import Digest, SessionRecord, Tombstone

Key = Digest | tuple[int, int]
"""What a tombstone is of: an object, or an event by session number and seq."""


class PurgeCheck:
    """Compares the tombstones of a store with the events of its purges.

    The hash chain covers those events, so a tombstone that one of them names was made by a purge.
    """

    def __init__(self, engine: Engine, view: View, findings: Findings) -> None:
        self._engine = engine
        self._view = view
        self._findings = findings
        self._named: dict[Key, Tombstone] = {}

    def check(self) -> None:
        """Report tombstones that no purge names, and purges that are not finished."""
        if not self._findings.can_read("purges", "purged", "sessions", "heads", "events"):
            return
        try:
            purges = self._view.purges()
            for record in self._view.sessions() if purges else ():
                self._read(record)
            self._compare({purge.number for purge in purges})
        except (MulliganError, KeyError, TypeError, ValueError) as error:
            self._findings.report("purge", "purges", error)
            return
        for purge in purges:
            if purge.finished is None:
                self._findings.warn(
                    "purge",
                    f"purge {purge.number} ({purge})",
                    "it is not finished: bytes may be left in files; `mulligan purge --finish`",
                )

    def _read(self, record: SessionRecord) -> None:
        """Collect what the purges of a session name; the newest one counts."""
        first = (record.origin.seq if record.origin else 0) + 1
        head = self._view.head(record.number).seq
        for event in self._view.remaining(record.number, first, head):
            if event.kind == PURGED:
                self._add(self._engine.plain(event.payload))

    def _add(self, payload: dict[str, Any]) -> None:
        purge, listed = payload["purge"], payload["record"]
        for digest, other in listed["objects"]:
            self._note(Digest(digest), Tombstone(purge, other and Digest(other)))
        for number, seq, body in listed["events"]:
            self._note((number, seq), Tombstone(purge, Digest(body)))

    def _note(self, key: Key, tombstone: Tombstone) -> None:
        known = self._named.get(key)
        if known is None or known.purge <= tombstone.purge:
            self._named[key] = tombstone

    def _compare(self, purges: set[int]) -> None:
        found: dict[Key, Tombstone] = dict(self._view.buried_objects())
        found |= {(number, seq): stone for number, seq, stone in self._view.buried_events()}
        for key in found.keys() | self._named.keys():
            stone = found.get(key)
            if stone is None:
                self._report(key, "a purge names it, and its tombstone is missing")
            elif stone != self._named.get(key) or stone.purge not in purges:
                self._report(key, "its tombstone is not the one that a purge names")
            elif isinstance(key, bytes):
                self._check_object(key, stone)

    def _check_object(self, digest: Digest, stone: Tombstone) -> None:
        if self._view.locate(digest) is not None:
            self._report(digest, "it was purged and is in the index")
        if stone.replacement is None:
            return
        try:
            self._engine.load(digest)
        except MulliganError as error:
            self._report(digest, f"what a purge left of it cannot be read: {error}")

    def _report(self, key: Key, detail: str) -> None:
        where = (
            key.hex() if isinstance(key, bytes) else f"event #{key[1]} of session number {key[0]}"
        )
        self._findings.report("purge", f"tombstone of {where}", detail)
