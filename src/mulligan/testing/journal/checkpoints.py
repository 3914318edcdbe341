"""Conformance of journals: what is found in them, checkpoints, keyframes and objects."""

from __future__ import annotations

import pytest

from mulligan.errors import KeyTaken
from mulligan.journal.protocol import Journal
from mulligan.model import ID_SIZE, ForkOrigin, Location
from mulligan.objects.protocol import StoredGroup
from mulligan.testing.journal.base import NAMES, START, JournalBase, address, picture


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
            assert view.checkpoints(number, 1, 6, reverse=True) == marks[::-1]
            assert view.checkpoints(number, 1, 5, reverse=True, limit=1) == marks[1:2]
            assert view.checkpoints(number, 1, 6, limit=2) == marks[:2]
            assert view.checkpoints(number, 1, 6, limit=0) == []
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

    # --- foreign keys ------------------------------------------------------------------------

    def test_a_key_finds_its_checkpoint_on_its_own_timeline(self, journal: Journal) -> None:
        """Also in a fork made after it; sessions do not share keys."""
        number, other = self.begin(journal, "one"), self.begin(journal, "two")
        seqs = {key: self.mark(journal, number, key=key)[0] for key in NAMES}
        self.mark(journal, other, key="elsewhere")
        child = self.begin(journal, "child", ForkOrigin(number, seqs[NAMES[1]]))
        with journal.read() as view:
            for key in NAMES:
                assert view.keyed(number, key) == seqs[key]
                assert view.keyed(child, key) == (seqs[key] if key in NAMES[:2] else None)
            assert view.keyed(number, "elsewhere") is view.keyed(number, "ru") is None
            assert sorted(seq for _, seq in view.keys(number)) == sorted(seqs.values())

    def test_a_key_is_unique_on_a_timeline(self, journal: Journal) -> None:
        """Nothing of the transaction that repeats it is stored, in a fork neither."""
        number = self.begin(journal)
        self.mark(journal, number, key="same")
        child = self.begin(journal, "child", ForkOrigin(number, 1))
        self.mark(journal, number, key="later")
        with journal.read() as view:
            before = picture(view)
        for owner in (number, child):
            with pytest.raises(KeyTaken, match="#1"):
                self.mark(journal, owner, key="same")
        with journal.read() as view:
            assert picture(view) == before
        # What the parent took after the fork is not on the fork's timeline.
        assert self.mark(journal, child, key="later")[0] == 2

    def test_a_key_finds_a_session(self, journal: Journal) -> None:
        """It is part of the record, and unique among sessions."""
        with journal.write() as txn:
            made = txn.create("one", START, None, "abc")
            txn.create("two", START, None)
        with journal.read() as view:
            assert view.keyed_session("abc") == view.find("one") == made
            assert (made.key, view.keyed_session("one")) == ("abc", None)
            assert [number for _, number in view.keys(0)] == [made.number]
        with pytest.raises(KeyTaken, match="'one'"), journal.write() as txn:
            txn.create("three", START, None, "abc")
        with journal.read() as view:
            assert view.find("three") is None

    def test_a_removed_or_dropped_key_can_be_used_again(self, journal: Journal) -> None:
        """A pruned checkpoint has none; the checkpoint whose key was dropped stays."""
        number = self.begin(journal)
        pruned = self.mark(journal, number, key="pruned")
        dropped = self.mark(journal, number, key="dropped")
        kept = self.mark(journal, number, key="kept")
        with journal.write(number) as txn:
            txn.prune(number, [pruned[0]])
            txn.drop_key(number, "dropped")
            txn.drop_key(number, "never")
        with journal.read() as view:
            keys = [view.keyed(number, key) for key in ("pruned", "dropped", "kept")]
            assert keys == [None, None, kept[0]]
            assert view.checkpoints(number, 1, 9) == [dropped, kept]
        assert self.mark(journal, number, key="pruned")[0] == 4

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

    def test_frames_are_compared_with_the_index(self, journal: Journal) -> None:
        """An object counts for the frame and the slot at which the index finds it, and no other."""
        frames = [Location(1, 32, 10, 0), Location(1, 42, 10, 0)]
        places = {address(n): Location(1, 32, 10, n) for n in range(3)}
        with journal.write() as txn:
            txn.index_objects(places | {address(9): Location(1, 32, 10, 4)}, {1: 52})
        digests = tuple(map(address, (0, 1, 2, 7)))
        groups = [StoredGroup(at.area, at.offset, at.length, digests) for at in frames]
        shifted = StoredGroup(1, 32, 10, digests[::-1])
        with journal.read() as view:
            assert view.indexed_at([*groups, shifted]) == [3, 0, 0]
            assert view.indexed(digests) == set(digests[:3])
            assert view.object_count() == 4

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
