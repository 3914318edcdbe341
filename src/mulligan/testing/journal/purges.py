"""Conformance of journals: what a purge changes, and what proves that it was a purge."""

from __future__ import annotations

from mulligan import codec
from mulligan.journal.protocol import Journal
from mulligan.model import Location, Purge, Tombstone
from mulligan.testing.journal.base import LATER, START, JournalBase, address


def purge(number: int) -> Purge:
    """Return the record of a purge."""
    return Purge(number, START, "anna", "leaked")


class PurgeTests(JournalBase):
    """Events and objects lead to what a purge left of them; nothing else changes."""

    def test_an_event_keeps_its_hash_and_the_chain_goes_on(self, journal: Journal) -> None:
        """Also twice, and for a body that is compressed."""
        number = self.begin(journal)
        before = self.add(journal, number, "first", "secret" * 1_000, "last")
        for purge_number, left in ((1, "gone"), (2, "gone " * 1_000)):
            with journal.write() as txn:
                txn.put_purge(purge(purge_number))
                payload = codec.encode({"content": left})
                digest = txn.bury_event(number, 2, payload, purge_number)
            with journal.read() as view:
                found = list(view.events(number, 1, 3))
                stone = Tombstone(purge_number, digest)
                assert list(view.buried_events()) == [(number, 2, stone)]
            assert [event.hash for event in found] == [event.hash for event in before]
            assert [event.purge for event in found] == [None, purge_number, None]
            assert found[1].payload == {"content": left}
            assert (found[0], found[2]) == (before[0], before[2])
        self.add(journal, number, "after")
        assert self.contents(journal, number)[2:] == ["last", "after"]

    def test_a_buried_object_is_not_found_and_not_stored_again(self, journal: Journal) -> None:
        """It counts as known, so that no bundle stores it."""
        one, other, kept = (address(n) for n in range(3))
        places = {d: Location(1, 32 + n * 10, 10, 0) for n, d in enumerate((one, other, kept))}
        with journal.write() as txn:
            txn.index_objects(places, {1: 62})
        with journal.write() as txn:
            txn.put_purge(purge(1))
            txn.bury_object(one, Tombstone(1, kept))
            txn.bury_object(other, Tombstone(1, None))
        with journal.write() as txn:
            txn.index_objects(places, {1: 62})
        with journal.read() as view:
            assert dict(view.locations()) == {kept: places[kept]}
            assert view.locate_usable([one, other, kept, address(9)]).keys() == {one, other, kept}
            stones = {one: Tombstone(1, kept), other: Tombstone(1, None)}
            assert view.tombstones([one, other, kept]) == stones
            assert dict(view.buried_objects()) == stones

    def test_the_records_of_purges_are_numbered(self, journal: Journal) -> None:
        """The newest number is how handles notice that something was purged."""
        with journal.read() as view:
            assert (view.purges(), view.last_purge(), view.tombstones([address(1)])) == ([], 0, {})
        done = Purge(1, START, "anna", "", LATER)
        with journal.write() as txn:
            txn.put_purge(purge(1))
            txn.put_purge(purge(2))
            txn.put_purge(done)
        with journal.read() as view:
            assert view.purges() == [done, purge(2)]
            assert view.last_purge() == 2

    def test_a_dropped_label_is_gone(self, journal: Journal) -> None:
        """The checkpoint stays."""
        number = self.begin(journal)
        one, two = self.mark(journal, number, "same"), self.mark(journal, number, "same")
        with journal.write() as txn:
            txn.drop_label(number, "same", one[0])
            txn.drop_label(number, "never", one[0])
        with journal.read() as view:
            assert view.labels(number) == [("same", two[0])]
            assert view.checkpoints(number, 1, 9) == [one, two]
