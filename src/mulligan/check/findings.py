"""What verify has found so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict, Unpack

from mulligan.model import Digest, Fault, Finding, Location

_WHAT: dict[Fault, str] = {
    "table": "journal",
    "older": "journal",
    "newer": "journal",
    "event": "journal",
    "record": "journal",
    "state": "journal",
    "index": "index",
    "pack": "pack",
    "foreign": "pack",
    "gap": "pack",
    "object": "object",
    "needed": "object",
    "purge": "purge",
}
"""The kind of thing that a fault is shown as."""


class About(TypedDict, total=False):
    """The fields of a ``Finding`` that say what it is about."""

    table: str
    session: int
    seq: int
    digest: Digest
    area: int
    location: Location


class Findings:
    """Collects problems and warnings; the check continues after each of them."""

    def __init__(self) -> None:
        self.problems: list[Finding] = []
        self.warnings: list[Finding] = []
        self._refused: set[str] = set()

    def report(self, fault: Fault, where: str, detail: object, **about: Unpack[About]) -> None:
        """Record one thing that is broken."""
        self.problems.append(Finding(_WHAT[fault], where, str(detail), fault=fault, **about))

    def warn(self, fault: Fault, where: str, detail: object, **about: Unpack[About]) -> None:
        """Record one thing that may be broken."""
        self.warnings.append(Finding(_WHAT[fault], where, str(detail), fault=fault, **about))

    def refuse(self, tables: Iterable[str]) -> None:
        """Record unreadable tables of the journal, so that nothing else is reported for them."""
        self._refused.update(tables)

    def can_read(self, *tables: str) -> bool:
        """Whether all of these tables of the journal can be read."""
        return self._refused.isdisjoint(tables)
