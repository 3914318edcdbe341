"""Conformance of journals: sessions that continue others."""

from __future__ import annotations

from datetime import timedelta

from mulligan.journal.protocol import Journal
from mulligan.model import ForkOrigin
from mulligan.testing.journal.base import START, JournalBase, address


class ForkTests(JournalBase):
    """A fork continues its parent at the origin, and does not see later events of the parent."""

    def _family(self, journal: Journal) -> tuple[int, int, int]:
        """Create a parent with 10 events, its fork at 6 with 4 more, and a fork of that at 8."""
        parent = self.begin(journal, "parent")
        self.add(journal, parent, *[f"p{seq}" for seq in range(1, 11)])
        child = self.begin(journal, "child", ForkOrigin(parent, 6))
        self.add(journal, child, *[f"c{seq}" for seq in range(7, 11)])
        grandchild = self.begin(journal, "grandchild", ForkOrigin(child, 8))
        self.add(journal, grandchild, "g9")
        return parent, child, grandchild

    def test_a_fork_continues_its_parents_sequence(self, journal: Journal) -> None:
        """It starts at the parent's seq and hash, and reads the parent's events as its own."""
        parent, child, grandchild = self._family(journal)
        assert self.contents(journal, parent) == [f"p{n}" for n in range(1, 11)]
        assert self.contents(journal, child) == [
            *(f"p{n}" for n in range(1, 7)),
            *(f"c{n}" for n in range(7, 11)),
        ]
        assert self.contents(journal, grandchild) == [
            *(f"p{n}" for n in range(1, 7)),
            "c7",
            "c8",
            "g9",
        ]
        with journal.read() as view:
            assert view.session(grandchild).origin == ForkOrigin(child, 8)

    def test_the_chain_goes_through_forks(self, journal: Journal) -> None:
        """The first event of a fork holds the hash of the event at its origin."""
        _, _, grandchild = self._family(journal)
        with journal.read() as view:
            events = list(view.events(grandchild, 1, 9))
            assert [e.prev for e in events[1:]] == [e.hash for e in events[:-1]]
            for first in range(1, 10):
                for last in range(first, 10):
                    part = list(view.events(grandchild, first, last))
                    assert part == events[first - 1 : last]

    def test_a_fork_does_not_see_its_parents_later_events(self, journal: Journal) -> None:
        """Writes to one do not change the other, in either direction."""
        parent, child, grandchild = self._family(journal)
        before = self.contents(journal, child), self.contents(journal, grandchild)
        self.add(journal, parent, "later")
        self.mark(journal, parent, "later")
        with journal.write() as txn:
            txn.put_keyframe(parent, 9, address(9))
        assert (self.contents(journal, child), self.contents(journal, grandchild)) == before
        with journal.read() as view:
            assert view.checkpoint_before(child, 99) is None
            assert view.keyframe(child, 99) is None
            assert view.labelled(child, "later") == []
            assert view.head(parent).seq == 12

    def test_a_fork_of_nothing_and_of_the_head(self, journal: Journal) -> None:
        """A fork at the newest event has all of it; a session may be forked while empty."""
        empty = self.begin(journal, "empty")
        early = self.begin(journal, "early", ForkOrigin(empty, 0))
        self.add(journal, early, "own")
        assert self.contents(journal, early) == ["own"]
        late = self.begin(journal, "late", ForkOrigin(early, 1))
        assert self.contents(journal, late) == ["own"]
        with journal.read() as view:
            assert view.head(late).hash == view.head(early).hash

    def test_a_fork_inherits_checkpoints_and_keyframes(self, journal: Journal) -> None:
        """Those at or before the fork are found through it, nearest first."""
        parent = self.begin(journal, "parent")
        first = self.mark(journal, parent, "one")
        second = self.mark(journal, parent)
        with journal.write() as txn:
            txn.put_keyframe(parent, 1, address(1))
            txn.put_keyframe(parent, 2, address(2))
        self.mark(journal, parent)
        child = self.begin(journal, "child", ForkOrigin(parent, 2))
        grandchild = self.begin(journal, "grandchild", ForkOrigin(child, 2))
        own = self.mark(journal, grandchild)
        with journal.read() as view:
            assert view.checkpoints(grandchild, 1, 9) == [first, second, own]
            assert view.checkpoints(grandchild, 2, 2) == [second]
            assert view.checkpoints(grandchild, 1, 9, limit=2) == [first, second]
            assert view.checkpoints(grandchild, 1, 9, reverse=True, limit=2) == [own, second]
            assert view.checkpoint_before(grandchild, 9) == own
            assert view.checkpoint_before(grandchild, 2) == second
            assert view.keyframe(grandchild, 9) == (2, address(2))
            assert view.keyframe(grandchild, 1) == (1, address(1))
            assert view.head(grandchild).keyframe == 2
            assert view.head(grandchild).checkpoint == own
            assert view.head(child).checkpoint == second
            assert view.labelled(grandchild, "one") == []

    def test_time_does_not_go_backwards_into_a_fork(self, journal: Journal) -> None:
        """A fork created after the clock was set back is not earlier than its parent's events."""
        parent = self.begin(journal, "parent")
        self.add(journal, parent, "late", time=START + timedelta(seconds=30))
        child = self.begin(journal, "child", ForkOrigin(parent, 1))
        self.add(journal, child, "after", time=START)
        with journal.read() as view:
            times = [event.time for event in view.events(child, 1, 2)]
        assert times == sorted(times)

    def test_a_fork_knows_where_time_went_back_before_it_and_at_its_own_first_event(
        self, journal: Journal
    ) -> None:
        """Steps of the parent after the fork are not the fork's."""
        parent = self.begin(journal, "parent")
        for day in (0, 3650, 1, 3650, 2):
            self.add(journal, parent, "x", time=START + timedelta(days=day))
        child = self.begin(journal, "child", ForkOrigin(parent, 4))
        self.add(journal, child, "after", time=START + timedelta(days=2))
        with journal.read() as view:
            assert view.steps_back(parent) == [3, 5]
            assert view.steps_back(child) == [3, 5]
            assert view.own_steps_back(child) == [5]
            assert [event.time for event in view.events(child, 5, 5)] == [START + timedelta(days=2)]
