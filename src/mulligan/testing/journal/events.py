"""Conformance of journals: sessions, and the events in them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mulligan.codec import Ref
from mulligan.document.fold import small_event
from mulligan.errors import DamagedJournal, SessionExists, UnknownSession
from mulligan.journal.chain import GENESIS
from mulligan.journal.protocol import Journal
from mulligan.model import Lease, SessionRecord
from mulligan.testing.journal.base import HOLDER, LATER, NAMES, START, JournalBase, address


class EventTests(JournalBase):
    """Sessions are found and kept apart; events are dense, ordered and chained."""

    # --- sessions ----------------------------------------------------------------------------

    def test_an_empty_journal_has_nothing(self, journal: Journal) -> None:
        """A fresh journal shows no session, no checkpoint and no object."""
        with journal.read() as view:
            assert view.sessions() == []
            assert view.find("run") is None
            assert view.checkpoints_by_id("") == []
            assert list(view.locations()) == []
            assert view.area_lengths() == {}
            with pytest.raises(UnknownSession):
                view.session(1)

    def test_a_session_is_found_by_name_and_number(self, journal: Journal) -> None:
        """Every look-up returns what ``create`` returned."""
        with journal.write() as txn:
            made = txn.create("run", START, None)
        assert made == SessionRecord(made.number, "run", START, None)
        with journal.read() as view:
            assert view.find("run") == view.session(made.number) == made
            assert view.sessions() == [made]

    def test_sessions_are_listed_in_the_order_they_were_made(self, journal: Journal) -> None:
        """The order does not depend on names, and numbers are never reused."""
        numbers = [self.begin(journal, name) for name in NAMES]
        with journal.read() as view:
            assert [record.name for record in view.sessions()] == NAMES
        assert len(set(numbers)) == len(NAMES)

    def test_many_sessions_stay_in_order(self, journal: Journal) -> None:
        """Past 256 sessions the order is still by number and not by text."""
        with journal.write() as txn:
            for number in range(300):
                txn.create(f"s{number}", START, None)
        with journal.read() as view:
            assert [record.name for record in view.sessions()] == [f"s{n}" for n in range(300)]

    def test_names_are_found_by_their_beginning(self, journal: Journal) -> None:
        """A prefix ends at bytes, not at words, and finds names at either end of the index."""
        names = ["run", "run-1", "run-2", "ru", "s", "\U0001f600", "\U0001f600x"]
        numbers = {name: self.begin(journal, name) for name in names}
        with journal.read() as view:
            assert view.names() == numbers
            assert list(view.names("run")) == ["run", "run-1", "run-2"]
            assert view.names("run-2") == {"run-2": numbers["run-2"]}
            assert list(view.names("\U0001f600")) == names[5:]
            assert view.names("run-3") == view.names("z") == {}

    def test_a_name_is_taken_once(self, journal: Journal) -> None:
        """A second session of the same name is refused and the first is untouched."""
        number = self.begin(journal)
        self.add(journal, number, "first")
        with pytest.raises(SessionExists, match="run"):
            self.begin(journal)
        with journal.read() as view:
            assert len(view.sessions()) == 1
        assert self.contents(journal, number) == ["first"]

    def test_sessions_whose_names_share_a_prefix_never_mix(self, journal: Journal) -> None:
        """Each finds its own events, checkpoints, labels, keyframes and leases."""
        numbers = {name: self.begin(journal, name) for name in NAMES}
        for name, number in numbers.items():
            self.add(journal, number, name)
            self.mark(journal, number, "label")
            with journal.write() as txn:
                txn.put_keyframe(number, 1, address(number))
                txn.put_lease(number, Lease(name, 1, HOLDER, LATER))
        for name, number in numbers.items():
            assert self.contents(journal, number) == [name, ["mark", number]]
            with journal.read() as view:
                found = view.find(name)
                assert found is not None
                assert found.number == number
                assert [seq for seq, _ in view.checkpoints(number, 1, 9)] == [2]
                assert view.labelled(number, "label") == [2]
                assert view.keyframe(number, 9) == (1, address(number))
                assert [n for n in NAMES if view.lease(number, n)] == [name]

    # --- events ------------------------------------------------------------------------------

    def test_a_new_session_begins_before_its_first_event(self, journal: Journal) -> None:
        """Its head has seq 0 and the hash before any event."""
        number = self.begin(journal)
        with journal.read() as view:
            head = view.head(number)
            assert (head.seq, head.hash, head.keyframe) == (0, GENESIS, 0)
            assert list(view.events(number, 1, 0)) == []

    def test_sequence_numbers_are_dense(self, journal: Journal) -> None:
        """Over many transactions of different sizes the seqs are 1, 2, 3 and so on."""
        number, other = self.begin(journal), self.begin(journal, "other")
        seqs: list[int] = []
        for size in (1, 5, 2, 1, 40, 1):
            seqs += [event.seq for event in self.add(journal, number, *range(size))]
            self.add(journal, other, "between")
        assert seqs == list(range(1, 51))
        with journal.read() as view:
            assert [event.seq for event in view.events(number, 1, 50)] == seqs

    def test_what_is_read_is_what_was_appended(self, journal: Journal) -> None:
        """Every field is returned as it was written, for any payload."""
        samples: list[Any] = [
            None,
            -(2**63),
            2**64 - 1,
            1.5,
            "text ä 走",
            b"\x00\xff",
            {"nested": [{"deep": []}], "": ""},
            "long " * 2_000,
            random.Random(1).randbytes(3_000),
        ]
        number = self.begin(journal)
        moment = START + timedelta(microseconds=123_457)
        written = self.add(journal, number, *samples, actor="coder/ä", time=moment)
        with journal.read() as view:
            read = list(view.events(number, 1, len(samples)))
        assert read == written
        assert [event.payload["content"] for event in read] == samples
        assert {(e.session, e.actor, e.epoch, e.kind, e.time) for e in read} == {
            ("run", "coder/ä", 0, "test.noted", moment)
        }

    def test_references_stay_references(self, journal: Journal) -> None:
        """A payload may name objects; the journal does not follow them."""
        number = self.begin(journal)
        with journal.write() as txn:
            new = small_event("test.big", {"value": Ref(address(1))})
            txn.append(number, [new], actor="main", epoch=0, time=START)
        with journal.read() as view:
            [event] = view.events(number, 1, 1)
        assert event.payload["value"].digest == address(1)

    def test_events_are_chained_by_hash(self, journal: Journal) -> None:
        """Each event holds the hash of the preceding one; the first holds zeros."""
        number = self.begin(journal)
        for size in (3, 1, 4):
            self.add(journal, number, *["same"] * size)
        with journal.read() as view:
            events = list(view.events(number, 1, 8))
            head = view.head(number)
        assert events[0].prev == GENESIS
        assert [event.prev for event in events[1:]] == [event.hash for event in events[:-1]]
        assert len({event.hash for event in events}) == 8
        assert (head.seq, head.hash) == (8, events[-1].hash)

    def test_any_range_can_be_read(self, journal: Journal) -> None:
        """Both ends are included, and a range before the first event begins there."""
        number = self.begin(journal)
        self.add(journal, number, *range(10))
        with journal.read() as view:
            assert [e.seq for e in view.events(number, 4, 6)] == [4, 5, 6]
            assert [e.seq for e in view.events(number, 0, 2)] == [1, 2]
            assert [e.seq for e in view.events(number, 10, 10)] == [10]
            assert list(view.events(number, 7, 6)) == []

    def test_a_missing_event_is_damage(self, journal: Journal) -> None:
        """Reading past the head raises an error that names the missing event."""
        number = self.begin(journal)
        self.add(journal, number, 1, 2)
        with journal.read() as view, pytest.raises(DamagedJournal, match="#3"):
            list(view.events(number, 1, 3))

    def test_time_does_not_go_backwards_for_a_clock_that_is_corrected(
        self, journal: Journal
    ) -> None:
        """If the clock is set back slightly, events keep the last event's time."""
        number = self.begin(journal)
        times = [START + timedelta(seconds=seconds) for seconds in (10, 50, 20, 0, 60)]
        for moment in times:
            self.add(journal, number, "x", time=moment)
        with journal.read() as view:
            found = [event.time for event in view.events(number, 1, 5)]
            assert view.head(number).time == times[4]
            assert view.steps_back(number) == []
        assert found == [times[0], times[1], times[1], times[1], times[4]]

    def test_time_comes_back_after_a_clock_that_was_ahead(self, journal: Journal) -> None:
        """If the clock is set back far, the step is recorded and events follow the clock."""
        number = self.begin(journal)
        days = (0, 3650, 1, 2, 4000, 3)
        times = [START + timedelta(days=day) for day in days]
        for moment in times:
            self.add(journal, number, "x", time=moment)
        with journal.read() as view:
            assert [event.time for event in view.events(number, 1, 6)] == times
            assert view.head(number).time == times[-1]
            assert view.steps_back(number) == [3, 6]
            assert view.own_steps_back(number) == [3, 6]

    def test_a_clock_that_was_never_set_is_not_followed(self, journal: Journal) -> None:
        """A machine without a clock starts in 1970; that is not recorded as a step back."""
        number = self.begin(journal)
        self.add(journal, number, "x", time=START)
        self.add(journal, number, "x", time=datetime(1970, 1, 1, tzinfo=UTC))
        with journal.read() as view:
            assert [event.time for event in view.events(number, 1, 2)] == [START, START]
            assert view.steps_back(number) == []
