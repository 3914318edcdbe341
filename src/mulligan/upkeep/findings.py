"""What verify has found so far."""

from __future__ import annotations

from mulligan.model import Problem


class Findings:
    """Collects problems; checking goes on after each of them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def blame(self, what: str, where: str, detail: object) -> None:
        """Note one thing that is broken."""
        self.problems.append(Problem(what, where, str(detail)))
