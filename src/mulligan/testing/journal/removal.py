"""Conformance of journals: what upkeep removes, pruned checkpoints and folded events."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mulligan.errors import PointFolded, UnknownSession
from mulligan.journal.protocol import Journal
from mulligan.model import Deletions, Erasure, Fold, ForkOrigin, Location
from mulligan.testing.journal.base import LATER, START, JournalBase, address


class RemovalTests(JournalBase):
    """What was removed is not found; everything else is as before."""

    def fold(self, journal: Journal, number: int, first: int, last: int) -> Fold:
        """Fold events, with an arbitrary keyframe, and return the fold."""
        with journal.write(number) as txn:
            folds = {one.first: one for one in txn.folded(number, first, last)}
            known = folds.get(first)
            started = known.started if known else next(txn.events(number, first, first)).time
            [event] = txn.events(number, last, last)
            made = Fold(first, last, started, event.time, event.hash, address(last))
            txn.fold(number, made)
        return made

    # --- pruned checkpoints ------------------------------------------------------------------

    def test_a_pruned_checkpoint_is_found_by_its_place_alone(self, journal: Journal) -> None:
        """Its id, its label and its entry are gone; its event and its place stay."""
        number = self.begin(journal)
        self.add(journal, number, "first")
        one, two, three = (self.mark(journal, number, f"label {n}") for n in range(3))
        for _ in range(2):  # once more changes nothing
            with journal.write(number) as txn:
                txn.prune(number, [two[0], 1])
        with journal.read() as view:
            assert view.checkpoints(number, 1, 9) == [one, three]
            assert view.checkpoints_by_id(two[1]) == []
            assert view.labels(number) == [("label 0", one[0]), ("label 2", three[0])]
            assert view.checkpoint_before(number, two[0]) == one
            assert [view.pruned_before(number, seq) for seq in (1, 2, 3, 4)] == [
                None,
                None,
                two,
                two,
            ]
            assert [event.seq for event in view.events(number, 1, 4)] == [1, 2, 3, 4]
            assert view.head(number).checkpoint == three

    def test_the_newest_checkpoint_of_any_session_stays(self, journal: Journal) -> None:
        """A fork that took none has its parent's."""
        number = self.begin(journal)
        one, two = self.mark(journal, number), self.mark(journal, number)
        child = self.begin(journal, "child", ForkOrigin(number, one[0]))
        for seq in (one[0], two[0]):
            with pytest.raises(ValueError, match="newest"), journal.write(number) as txn:
                txn.prune(number, [seq])
        self.mark(journal, child)
        with journal.write(number) as txn:
            txn.prune(number, [one[0]])
        with journal.read() as view:
            assert view.pruned_before(child, 9) == one

    # --- folds -------------------------------------------------------------------------------

    def test_folded_events_are_gone_and_the_chain_goes_on(self, journal: Journal) -> None:
        """The fold has the hash that the next event follows, and a keyframe for replay."""
        number = self.begin(journal)
        events = self.add(journal, number, *range(1, 11))
        with journal.write(number) as txn:
            txn.put_keyframe(number, 4, address(4))
            txn.put_keyframe(number, 9, address(9))
        made = self.fold(journal, number, 3, 6)
        with journal.read() as view:
            assert view.folds(number) == [made]
            assert made.hash == events[6].prev
            assert list(view.remaining(number, 1, 10)) == events[:2] + events[6:]
            assert list(view.remaining(number, 4, 5)) == []
            assert list(view.events(number, 7, 10)) == events[6:]
            assert view.keyframe(number, 8) == (6, address(6))
            assert view.keyframe(number, 5) is None
            assert view.head(number).keyframe == 9
            assert view.inside_folds(number) == []
            for first, last in ((3, 3), (6, 6), (1, 10), (5, 8)):
                with pytest.raises(PointFolded, match="#2 and #7"):
                    list(view.events(number, first, last))

    def test_folds_are_found_by_what_they_took(self, journal: Journal) -> None:
        """On the timeline of a fork, those of its ancestors are found up to its origin."""
        number = self.begin(journal)
        self.add(journal, number, *range(20))
        child = self.begin(journal, "child", ForkOrigin(number, 10))
        self.add(journal, child, *range(10))
        one, two = self.fold(journal, number, 2, 4), self.fold(journal, number, 12, 15)
        three = self.fold(journal, child, 13, 15)
        with journal.read() as view:
            assert view.folded(number, 1, 20) == [one, two]
            assert view.folded(number, 4, 12) == [one, two]
            assert view.folded(number, 5, 11) == []
            assert view.folded(child, 1, 20) == [one, three]
            assert view.folded(child, 14, 14) == [three]
            assert [e.seq for e in view.remaining(child, 1, 16)] == [1, *range(5, 13), 16]

    def test_a_fold_grows_and_joins(self, journal: Journal) -> None:
        """It takes the folds that it touches; a part of one, or one beside it, is refused."""
        number = self.begin(journal)
        self.add(journal, number, *range(20))
        self.fold(journal, number, 3, 6)
        self.fold(journal, number, 9, 12)
        for first, last in ((5, 8), (7, 8), (7, 15), (2, 4)):
            with pytest.raises(ValueError, match="fold starts at"):
                self.try_fold(journal, number, first, last)
        self.fold(journal, number, 3, 15)
        with journal.read() as view:
            assert [(one.first, one.last) for one in view.folds(number)] == [(3, 15)]
            assert [event.seq for event in view.remaining(number, 1, 20)] == [1, 2, *range(16, 21)]

    def test_what_is_needed_cannot_be_folded(self, journal: Journal) -> None:
        """Neither ends of the session, checkpoints, origins of forks, nor steps of the clock."""
        number = self.begin(journal)
        self.add(journal, number, *range(3), time=START + timedelta(hours=1))
        self.add(journal, number, "back", time=START)
        mark, _ = self.mark(journal, number)
        self.add(journal, number, *range(4))
        child = self.begin(journal, "child", ForkOrigin(number, 7))
        self.add(journal, child, "own")
        self.begin(journal, "grandchild", ForkOrigin(child, 6))
        for first, last in ((1, 2), (8, 9), (3, 4), (mark, mark), (6, 6), (7, 8)):
            with pytest.raises(ValueError, match="cannot be folded"):
                self.try_fold(journal, number, first, last)
        with journal.read() as view:
            assert view.folds(number) == []

    def try_fold(self, journal: Journal, number: int, first: int, last: int) -> None:
        """Fold with a record whose times and hash are not right."""
        with journal.write(number) as txn:
            txn.fold(number, Fold(first, last, START, START, bytes(32), address(last)))

    def test_no_session_is_forked_at_a_folded_event(self, journal: Journal) -> None:
        """The next event of the fork would have nothing to follow."""
        number = self.begin(journal)
        self.add(journal, number, *range(9))
        self.fold(journal, number, 3, 6)
        with pytest.raises(PointFolded):
            self.begin(journal, "child", ForkOrigin(number, 5))
        with journal.read() as view:
            assert view.find("child") is None
        self.begin(journal, "child", ForkOrigin(number, 7))

    def test_a_pruned_checkpoints_place_goes_with_its_event(self, journal: Journal) -> None:
        """After the fold, nothing of it is left."""
        number = self.begin(journal)
        self.add(journal, number, 1, 2)
        one = self.mark(journal, number)
        self.mark(journal, number)
        with journal.write(number) as txn:
            txn.prune(number, [one[0]])
        self.fold(journal, number, 2, 3)
        with journal.read() as view:
            assert view.pruned_before(number, 9) is None
            assert view.inside_folds(number) == []

    def test_only_the_sessions_own_transaction_removes(self, journal: Journal) -> None:
        """A transaction of another session writes nothing here."""
        number, other = self.begin(journal), self.begin(journal, "other")
        self.add(journal, number, *range(9))
        with pytest.raises(ValueError, match="does not write"), journal.write(other) as txn:
            txn.prune(number, [2])
        with pytest.raises(ValueError, match="does not write"), journal.write(other) as txn:
            txn.fold(number, Fold(2, 3, START, START, bytes(32), address(1)))

    def test_what_is_noted_as_damaged_is_stored_again(self, journal: Journal) -> None:
        """It is not usable until a transaction indexes it again, which replaces its location."""
        number = self.begin(journal)
        places = {address(n): Location(1, 32 + n, 1, 0) for n in range(3)}
        with journal.write(number) as txn:
            txn.index_objects(places, {1: 99})
            assert txn.damage_count() == 0
        bad, unknown = address(1), address(9)
        with journal.write(number) as txn:
            assert txn.note_damaged([bad, unknown]) == 1
            assert txn.note_damaged([bad]) == 0
        with journal.read() as view:
            assert list(view.damaged()) == [bad]
            assert view.damage_count() == 1
            assert view.locate_all(places) == places
            assert view.locate_usable(places).keys() == places.keys() - {bad}
        again = {digest: Location(2, place.offset, 1, 0) for digest, place in places.items()}
        with journal.write(number) as txn:
            txn.index_objects(again, {2: 99})
        with journal.read() as view:
            assert list(view.damaged()) == []
            assert view.damage_count() == 1
            assert view.locate_usable(places) == places | {bad: again[bad]}

    def test_a_note_of_damage_can_be_taken_back(self, journal: Journal) -> None:
        """Then the object keeps its location."""
        number, place = self.begin(journal), Location(1, 32, 1, 0)
        with journal.write(number) as txn:
            txn.index_objects({address(1): place}, {1: 99})
            txn.note_damaged([address(1)])
        with journal.write(number) as txn:
            txn.clear_damaged([address(1), address(2)])
        with journal.read() as view:
            assert view.locate_usable([address(1)]) == {address(1): place}

    # --- deleted sessions --------------------------------------------------------------------

    def test_a_deleted_session_has_no_name(self, journal: Journal) -> None:
        """What it holds stays; its name and key are free, and its number is not."""
        with journal.write() as txn:
            number = txn.create("run", START, None, "key").number
        self.mark(journal, number, "label", "inner")
        for _ in range(2):  # once more changes nothing
            with journal.write() as txn:
                txn.delete_session(number, LATER)
        with journal.read() as view:
            assert (view.find("run"), view.keyed_session("key")) == (None, None)
            [record] = view.sessions()
            assert (record.name, record.deleted) == (f"deleted~{number}", LATER)
            assert view.find(record.name) == view.session(number) == record
            assert view.keyed(number, "inner") == view.head(number).seq == 1
            assert view.deletions() == Deletions(1, Erasure.ALL)
        with journal.write() as txn:
            assert txn.create("run", START, None, "key").number == number + 1

    def test_a_deleted_session_is_cut_from_its_end(self, journal: Journal) -> None:
        """Every table forgets what was cut, and the rest is a shorter session."""
        number = self.begin(journal)
        for turn in range(4):
            self.add(journal, number, turn)
            self.mark(journal, number, f"label {turn}", f"key {turn}")
        with journal.write() as txn:
            txn.put_keyframe(number, 2, address(2))
            txn.put_keyframe(number, 7, address(7))
            txn.put_copy(number, 1, 3, address(3))
            txn.put_copy(number, 4, 8, address(8))
            txn.delete_session(number, LATER)
        with journal.read() as view:
            events = list(view.events(number, 1, 8))
        with journal.write() as txn:
            txn.cut_session(number, 4)
        with journal.read() as view:
            assert list(view.events(number, 1, 4)) == events[:4]
            head = view.head(number)
            assert (head.seq, head.hash, head.keyframe) == (4, events[3].hash, 2)
            places = view.checkpoints(number, 1, 9)
            assert ([seq for seq, _ in places], head.checkpoint) == ([2, 4], places[-1])
            assert len(view.checkpoints_by_id("")) == 2
            assert view.labels(number) == [("label 0", 2), ("label 1", 4)]
            assert [view.keyed(number, f"key {turn}") for turn in range(4)] == [2, 4, None, None]
            assert [copy.last for copy in view.copies()] == [3]
        with journal.write() as txn:
            txn.cut_session(number, 0)
        with journal.read() as view:
            assert (view.sessions(), view.names(), list(view.copies())) == ([], {}, [])
            assert view.last_deleted_session() == number
            with pytest.raises(UnknownSession):
                view.head(number)
        assert self.begin(journal, "next") == number + 1

    def test_what_a_fork_continues_from_is_not_cut(self, journal: Journal) -> None:
        """Nor is a session that was not deleted."""
        number = self.begin(journal)
        self.add(journal, number, 1, 2, 3, 4)
        child = self.begin(journal, "child", ForkOrigin(number, 3))
        self.add(journal, child, "own")
        with pytest.raises(ValueError, match="cannot be cut"), journal.write() as txn:
            txn.cut_session(number, 3)
        with journal.write() as txn:
            txn.delete_session(number, LATER)
        for last in (0, 2):
            with pytest.raises(ValueError, match="continues"), journal.write() as txn:
                txn.cut_session(number, last)
        with journal.write() as txn:
            txn.cut_session(number, 3)
        assert self.contents(journal, child) == [1, 2, 3, "own"]

    def test_an_erasure_is_noted_unless_more_was_deleted(self, journal: Journal) -> None:
        """What was deleted during a collection is left to the next one."""
        with journal.write() as txn:
            txn.note_deletion()
        with journal.read() as view:
            seen = view.deletions()
        with journal.write() as txn:
            txn.note_deletion()
            txn.note_erased(Deletions(seen.count, Erasure.NOTHING))
        with journal.read() as view:
            assert view.deletions() == Deletions(2, Erasure.ALL)
        with journal.write() as txn:
            txn.note_erased(Deletions(2, Erasure.JOURNAL))
        with journal.read() as view:
            assert view.deletions() == Deletions(2, Erasure.JOURNAL)
