"""The conformance suite of journals.

Subclass :class:`JournalSuite` in a test module and give it a ``journal`` fixture; a journal
that survives its process gives a ``reopen`` fixture too, which closes and opens it again::

    class TestMyJournal(JournalSuite):
        @pytest.fixture
        def journal(self, tmp_path):
            return MyJournal(tmp_path)

        @pytest.fixture
        def reopen(self, journal, tmp_path):
            def again():
                journal.close()
                return MyJournal(tmp_path)
            return again
"""

from __future__ import annotations

from mulligan.testing.journal.checkpoints import CheckpointTests
from mulligan.testing.journal.events import EventTests
from mulligan.testing.journal.forks import ForkTests
from mulligan.testing.journal.leases import LeaseTests
from mulligan.testing.journal.purges import PurgeTests
from mulligan.testing.journal.removal import RemovalTests
from mulligan.testing.journal.transactions import TransactionTests

__all__ = ["JournalSuite"]


class JournalSuite(
    EventTests, TransactionTests, CheckpointTests, ForkTests, LeaseTests, RemovalTests, PurgeTests
):
    """What every implementation of ``Journal`` must do; see the module for how to run it."""
