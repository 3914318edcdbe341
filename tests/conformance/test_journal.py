"""Every journal passes the public suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mulligan.journal.kv import KvJournal
from mulligan.journal.lmdb.tables import LmdbTables
from mulligan.journal.memory import MemoryTables
from mulligan.journal.protocol import Journal
from mulligan.testing.journal import JournalSuite


class TestMemoryJournal(JournalSuite):
    @pytest.fixture
    def journal(self) -> Journal:
        return KvJournal(MemoryTables())


class TestLmdbJournal(JournalSuite):
    @pytest.fixture
    def journal(self, tmp_path: Path) -> Iterator[Journal]:
        journal = KvJournal(LmdbTables(tmp_path))
        yield journal
        journal.close()

    @pytest.fixture
    def reopen(self, journal: Journal, tmp_path: Path) -> Callable[[], Journal]:
        def again() -> Journal:
            journal.close()
            return KvJournal(LmdbTables(tmp_path))

        return again
