"""Checking tombstones: each is named by the event of a purge, and by nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mulligan.check.findings import Findings
from mulligan.document.fold import PURGED
from mulligan.engine import Engine
from mulligan.errors import MissingObject, MulliganError
from mulligan.journal.protocol import View
from mulligan.model import Digest, Tombstone

Key = Digest | tuple[int, int]
"""What a tombstone is of: an object, or an event by session number and seq."""


def all_tombstones(view: View) -> dict[Key, Tombstone]:
    """Return every tombstone of a store."""
    found: dict[Key, Tombstone] = dict(view.buried_objects())
    return found | {(number, seq): stone for number, seq, stone in view.buried_events()}


def named_tombstones(engine: Engine, view: View) -> dict[Key, Tombstone]:
    """Return the tombstones that the events of purges name; of several, the newest one counts."""
    named: dict[Key, Tombstone] = {}
    for record in view.sessions():
        first = (record.origin.seq if record.origin else 0) + 1
        for event in view.remaining(record.number, first, view.head(record.number).seq):
            if event.kind == PURGED:
                for key, stone in _stones(engine, event.payload):
                    if key not in named or named[key].purge <= stone.purge:
                        named[key] = stone
    return named


def _stones(engine: Engine, payload: Any) -> Iterator[tuple[Key, Tombstone]]:
    try:
        purge, listed = payload["purge"], engine.plain(payload["record"])
    except MissingObject:
        return  # a list that is lost names nothing; a repair writes another event that does
    for digest, other in listed["objects"]:
        yield Digest(digest), Tombstone(purge, other and Digest(other))
    for number, seq, body in listed["events"]:
        yield (number, seq), Tombstone(purge, Digest(body))


class PurgeCheck:
    """Compares the tombstones of a store with the events of its purges.

    The hash chain covers those events, so a tombstone that one of them names was made by a purge.
    """

    def __init__(self, engine: Engine, view: View, findings: Findings) -> None:
        self._engine = engine
        self._view = view
        self._findings = findings

    def check(self) -> None:
        """Report tombstones that no purge names, and purges that are not finished."""
        if not self._findings.can_read("purges", "purged", "sessions", "heads", "events"):
            return
        try:
            purges = self._view.purges()
            named = named_tombstones(self._engine, self._view) if purges else {}
            self._compare({purge.number for purge in purges}, named)
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

    def _compare(self, purges: set[int], named: dict[Key, Tombstone]) -> None:
        found = all_tombstones(self._view)
        for key in found.keys() | named.keys():
            stone = found.get(key)
            if stone is None:
                self._report(key, "a purge names it, and its tombstone is missing")
            elif stone != named.get(key) or stone.purge not in purges:
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
