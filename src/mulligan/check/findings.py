"""What verify has found so far."""

from __future__ import annotations

from collections.abc import Iterable

from mulligan.model import Problem


class Findings:
    """Collects problems and warnings; the check continues after each of them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self._refused: set[str] = set()

    def report(self, what: str, where: str, detail: object) -> None:
        """Record one thing that is broken."""
        self.problems.append(Problem(what, where, str(detail)))

    def warn(self, what: str, where: str, detail: object) -> None:
        """Record one thing that may be broken."""
        self.warnings.append(Problem(what, where, str(detail)))

    def refuse(self, tables: Iterable[str]) -> None:
        """Record unreadable tables of the journal, so that nothing else is reported for them."""
        self._refused.update(tables)

    def can_read(self, *tables: str) -> bool:
        """Whether all of these tables of the journal can be read."""
        return self._refused.isdisjoint(tables)
