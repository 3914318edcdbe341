"""How many events a piece of work decodes: a measure of what it costs that no load changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mulligan.journal import chain


class DecodedEvents:
    """Counts the events that are decoded."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.events = 0
        self._read = chain.read_record
        patch.setattr(chain, "read_record", self._counted)

    def _counted(self, *arguments: Any) -> Any:
        self.events += 1
        return self._read(*arguments)

    def during(self, work: Callable[[], object]) -> int:
        """Return how many were decoded while the work ran."""
        before = self.events
        work()
        return self.events - before
