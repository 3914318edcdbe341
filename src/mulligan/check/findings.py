"""What verify has found so far."""

from __future__ import annotations

from collections.abc import Iterable

from mulligan.model import Problem


class Findings:
    """Collects problems and warnings; checking goes on after each of them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self._refused: set[str] = set()

    def report(self, what: str, where: str, detail: object) -> None:
        """Note one thing that is broken."""
        self.problems.append(Problem(what, where, str(detail)))

    def warn(self, what: str, where: str, detail: object) -> None:
        """Note one thing that may be broken."""
        self.warnings.append(Problem(what, where, str(detail)))

    def refuse(self, tables: Iterable[str]) -> None:
        """Note which tables of the journal cannot be read: nothing else is blamed for it."""
        self._refused.update(tables)

    def can_read(self, *tables: str) -> bool:
        """Whether all of these tables of the journal can be read."""
        return self._refused.isdisjoint(tables)
