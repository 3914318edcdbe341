"""Conformance of journals: one writer for an actor."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mulligan.errors import StaleLease
from mulligan.journal.protocol import Journal
from mulligan.model import Holder, Lease
from mulligan.testing.journal.base import HOLDER, LATER, START, JournalBase, note, picture


class LeaseTests(JournalBase):
    """Only the valid epoch of a lease may write."""

    def test_without_a_lease_the_epoch_is_zero(self, journal: Journal) -> None:
        """Any actor may write with epoch 0; another epoch is refused."""
        number = self.begin(journal)
        self.add(journal, number, "fine")
        with pytest.raises(StaleLease):
            self.add(journal, number, "refused", epoch=1)
        assert self.contents(journal, number) == ["fine"]

    def test_a_lease_is_read_as_it_was_written(self, journal: Journal) -> None:
        """The last one written is the one that counts."""
        number = self.begin(journal)
        lease = Lease("coder", 3, Holder("a/machine", 12, 345), LATER)
        with journal.write() as txn:
            txn.put_lease(number, Lease("coder", 2, Holder("before"), START))
            txn.put_lease(number, lease)
        with journal.read() as view:
            assert view.lease(number, "coder") == lease
            assert view.lease(number, "code") is None
            assert view.lease(number, "coder2") is None

    def test_lease_times_have_one_clock(self, journal: Journal) -> None:
        """It is in UTC, does not go backwards unless it is set back, and needs no view."""
        times = [journal.now() for _ in range(3)]
        assert times == sorted(times)
        assert all(time.utcoffset() == timedelta(0) for time in times)
        number = self.begin(journal)
        with journal.write() as txn:
            txn.put_lease(number, Lease("coder", 1, HOLDER, times[-1]))
        with journal.read() as view:
            found = view.lease(number, "coder")
        assert found is not None
        assert found.expires <= journal.now()

    @pytest.mark.parametrize(
        "holder",
        [Holder("machine", 12, 345), Holder("m", 1), Holder("a/b/c", 7, 2**40), Holder("x")],
    )
    def test_a_holder_names_machine_and_process(self, journal: Journal, holder: Holder) -> None:
        """Machine, process and start come back as they were written, each separately."""
        number = self.begin(journal)
        with journal.write() as txn:
            txn.put_lease(number, Lease("coder", 1, holder, LATER))
        with journal.read() as view:
            found = view.lease(number, "coder")
        assert found is not None
        assert found.holder == holder

    def test_only_the_valid_epoch_may_write(self, journal: Journal) -> None:
        """An older or newer epoch, or none, is refused inside the transaction."""
        number = self.begin(journal)
        with journal.write() as txn:
            txn.put_lease(number, Lease("coder", 2, HOLDER, LATER))
        [event] = self.add(journal, number, "valid", actor="coder", epoch=2)
        assert event.epoch == 2
        for epoch in (0, 1, 3):
            with pytest.raises(StaleLease, match="coder"):
                self.add(journal, number, "stale", actor="coder", epoch=epoch)
        self.add(journal, number, "another actor", actor="tester")
        assert self.contents(journal, number) == ["valid", "another actor"]

    def test_a_stale_write_takes_its_whole_transaction_with_it(self, journal: Journal) -> None:
        """Nothing of the transaction is stored, neither before nor after the stale write."""
        number, other = self.begin(journal), self.begin(journal, "other")
        with journal.write() as txn:
            txn.put_lease(number, Lease("coder", 2, HOLDER, LATER))
        with journal.read() as view:
            before = picture(view)
        with pytest.raises(StaleLease):
            self._write_to_both(journal, other, number)
        with journal.read() as view:
            assert picture(view) == before

    def _write_to_both(self, journal: Journal, free: int, leased: int) -> None:
        with journal.write() as txn:
            txn.append(free, [note("before")], actor="main", epoch=0, time=START)
            txn.append(leased, [note("stale")], actor="coder", epoch=1, time=START)

    def test_a_lease_taken_inside_the_transaction_counts_at_once(self, journal: Journal) -> None:
        """From its writing on, the old epoch is refused and the new one accepted."""
        number = self.begin(journal)
        with journal.write() as txn:
            txn.put_lease(number, Lease("main", 1, HOLDER, LATER))
            txn.append(number, [note("new")], actor="main", epoch=1, time=START)
            with pytest.raises(StaleLease):
                txn.append(number, [note("old")], actor="main", epoch=0, time=START)
        assert self.contents(journal, number) == ["new"]

    def test_an_unfenced_write_ignores_the_lease(self, journal: Journal) -> None:
        """Only if the caller passes ``fenced=False``; other writes still need the lease."""
        number = self.begin(journal)
        with journal.write() as txn:
            txn.put_lease(number, Lease("main", 3, HOLDER, LATER))
            txn.append(number, [note("past")], actor="main", epoch=0, time=START, fenced=False)
        with pytest.raises(StaleLease):
            self.add(journal, number, "refused")
        self.add(journal, number, "mine", epoch=3)
        assert self.contents(journal, number) == ["past", "mine"]

    def test_a_released_lease_shuts_out_only_its_holder(self, journal: Journal) -> None:
        """After the release, epoch 0 is accepted again and the epoch of the lease is not."""
        number = self.begin(journal)
        with journal.write() as txn:
            txn.put_lease(number, Lease("main", 1, HOLDER, LATER, released=True))
        self.add(journal, number, "free")
        with pytest.raises(StaleLease):
            self.add(journal, number, "late", epoch=1)
        assert self.contents(journal, number) == ["free"]

    def test_an_expired_lease_is_valid_until_it_is_replaced(self, journal: Journal) -> None:
        """The epoch decides, not the clock: no other holder has written in between."""
        number = self.begin(journal)
        with journal.write() as txn:
            txn.put_lease(number, Lease("main", 1, HOLDER, START))
        self.add(journal, number, "still mine", epoch=1, time=LATER)
        assert self.contents(journal, number) == ["still mine"]
