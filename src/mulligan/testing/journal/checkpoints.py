"""Conformance of journals: what is found in them, checkpoints, keyframes and objects."""

from __future__ import annotations

from mulligan.journal.protocol import Journal
from mulligan.model import ID_SIZE, Location
from mulligan.testing.journal.base import NAMES, JournalBase, address


class CheckpointTests(JournalBase):
    """Checkpoints, keyframes and objects are found by each of their keys."""

    # --- checkpoints -------------------------------------------------------------------------

    def test_checkpoints_are_found_by_range_and_id(self, journal: Journal) -> None:
        """An id is the start of the event's hash, and identifies session and seq."""
        number = self.begin(journal)
        marks = []
        for _ in range(3):
            self.add(journal, number, "between")
            marks.append(self.mark(journal, number))
        assert [seq for seq, _ in marks] == [2, 4, 6]
        with journal.read() as view:
            events = {event.seq: event for event in view.events(number, 1, 6)}
            assert all(events[seq].hash[:ID_SIZE].hex() == name for seq, name in marks)
            assert view.checkpoints(number, 1, 6) == marks
            assert view.head(number).checkpoint == marks[-1]
            assert view.checkpoints(number, 3, 5) == marks[1:2]
            assert view.checkpoints(number, 5, 5) == []
            for seq, name in marks:
                assert view.checkpoints_by_id(name) == [(name, number, seq)]

    def test_the_nearest_checkpoint_before_a_seq(self, journal: Journal) -> None:
        """The newest one at or before the seq is found, or none."""
        number = self.begin(journal)
        self.add(journal, number, 1, 2)
        first = self.mark(journal, number)
        self.add(journal, number, 4)
        second = self.mark(journal, number)
        with journal.read() as view:
            found = [view.checkpoint_before(number, seq) for seq in range(7)]
        assert found == [None, None, None, first, first, second, second]

    def test_ids_are_found_by_any_prefix(self, journal: Journal) -> None:
        """Prefixes of odd length and capital letters work, and only matches are returned."""
        numbers = [self.begin(journal, name) for name in ("one", "two")]
        known = [self.mark(journal, number)[1] for number in numbers for _ in range(60)]
        assert len(set(known)) == 120
        prefixes = {name[:length] for name in known[::7] for length in (1, 2, 3, 4, 7, 31, 32)}
        with journal.read() as view:
            for prefix in sorted(prefixes):
                expected = sorted(name for name in known if name.startswith(prefix))
                for text in (prefix, prefix.upper()):
                    assert [found[0] for found in view.checkpoints_by_id(text)] == expected

    def test_labels_sharing_a_prefix_are_never_mixed_up(self, journal: Journal) -> None:
        """A label finds its own checkpoints in its own session and nothing else."""
        number, other = self.begin(journal, "one"), self.begin(journal, "two")
        seqs = {label: self.mark(journal, number, label)[0] for label in NAMES}
        again = self.mark(journal, number, NAMES[0])[0]
        self.mark(journal, number)
        self.mark(journal, other, "elsewhere")
        with journal.read() as view:
            for label in NAMES[1:]:
                assert view.labelled(number, label) == [seqs[label]]
            assert view.labelled(number, NAMES[0]) == [seqs[NAMES[0]], again]
            assert view.labelled(number, "ru") == view.labelled(number, "elsewhere") == []
            assert view.labelled(other, "elsewhere") == [1]

    # --- keyframes ---------------------------------------------------------------------------

    def test_the_nearest_keyframe_is_found(self, journal: Journal) -> None:
        """The newest one at or before a seq is found, and the head names the newest of all."""
        number, other = self.begin(journal, "one"), self.begin(journal, "two")
        self.add(journal, number, *range(300))
        self.add(journal, other, *range(300))
        with journal.write() as txn:
            for seq in (10, 20, 260):
                txn.put_keyframe(number, seq, address(seq))
        with journal.read() as view:
            found = {seq: view.keyframe(number, seq) for seq in (9, 10, 19, 20, 259, 260, 300)}
            assert view.head(number).keyframe == 260
            assert view.head(number).seq == 300
            assert view.keyframe(other, 300) is None
        frame = {seq: (seq, address(seq)) for seq in (10, 20, 260)}
        assert found == {
            9: None,
            10: frame[10],
            19: frame[10],
            20: frame[20],
            259: frame[20],
            260: frame[260],
            300: frame[260],
        }

    # --- the index of objects ----------------------------------------------------------------

    def test_objects_are_found_where_they_were_put(self, journal: Journal) -> None:
        """The largest numbers are kept exactly; an unknown object has no location."""
        place = Location(2**32 - 1, 2**63, 2**32 - 1, 2**20)
        with journal.write() as txn:
            txn.index_objects({address(1): place}, {7: 2**40})
        with journal.read() as view:
            assert view.locate(address(1)) == place
            assert view.locate(address(2)) is None
            assert view.locate_all([address(2), address(1)]) == {address(1): place}
            assert dict(view.locations()) == {address(1): place}
            assert (view.area_length(7), view.area_length(8)) == (2**40, 0)
            assert view.area_lengths() == {7: 2**40}

    def test_a_known_object_stays_where_it_is(self, journal: Journal) -> None:
        """Indexing an object again, at another location, changes nothing."""
        first, second = Location(1, 32, 10, 0), Location(2, 64, 10, 3)
        for place in (first, second):
            with journal.write() as txn:
                txn.index_objects({address(1): place}, {})
        with journal.read() as view:
            assert view.locate(address(1)) == first

    def test_a_packs_length_never_shrinks(self, journal: Journal) -> None:
        """A bundle that ended earlier in the area and commits later does not shorten it."""
        for length in (100, 300, 200):
            with journal.write() as txn:
                txn.index_objects({}, {1: length, 2: 50})
        with journal.read() as view:
            assert view.area_lengths() == {1: 300, 2: 50}
