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

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mulligan import codec
from mulligan.codec import Ref
from mulligan.errors import DamagedJournal, SessionExists, StaleLease, StoreClosed, UnknownSession
from mulligan.journal.chain import GENESIS
from mulligan.journal.protocol import Journal, Txn, View
from mulligan.model import ID_SIZE, Digest, Draft, Event, Lease, Location, Origin, SessionRecord
from mulligan.state.events import small_draft

START = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
LATER = START + timedelta(days=1)

NAMES = ["run", "run-1", "run-10", "run 1", "runner", "r", "RUN", "laufen/äöü", "走る", "run/1"]
"""Names that are easy to mix up."""


def note(content: Any) -> Draft:
    """Return a draft of a small event."""
    return small_draft("test.noted", {"content": content})


def address(number: int) -> Digest:
    """Return a digest of nothing in particular, the same for the same number."""
    return codec.digest(1, b"%d" % number)


def picture(view: View) -> dict[str, Any]:
    """Return everything that a journal shows, to compare it with another moment."""
    shown: dict[str, Any] = {"objects": dict(view.locations()), "packs": view.packs()}
    for record in view.sessions():
        number = record.number
        head = view.head(number)
        shown[record.name] = (
            record,
            head,
            list(view.events(number, 1, head.seq)),
            view.checkpoints(number, 1, head.seq),
            [view.keyframe(number, seq) for seq in range(1, head.seq + 1)],
            view.lease(number, "main"),
        )
    shown["ids"] = view.checkpoints_by_id("")
    return shown


class JournalSuite:
    """What every implementation of ``Journal`` must do; see the module for how to run it."""

    @pytest.fixture
    def journal(self) -> Journal:
        """Return an empty journal; every subclass provides its own."""
        raise NotImplementedError("give the suite a `journal` fixture")

    @pytest.fixture
    def reopen(self) -> Callable[[], Journal]:
        """Close the journal and open it again; only a persistent one can."""
        pytest.skip("this journal does not outlive its handle")

    # --- helpers -----------------------------------------------------------------------------

    def begin(self, journal: Journal, name: str = "run", origin: Origin | None = None) -> int:
        """Make a session and return its number."""
        with journal.write() as txn:
            return txn.create(name, START, origin).number

    def add(
        self,
        journal: Journal,
        number: int,
        *contents: Any,
        actor: str = "main",
        epoch: int = 0,
        time: datetime = START,
    ) -> list[Event]:
        """Append one event for each content in one transaction."""
        drafts = [note(content) for content in contents]
        with journal.write() as txn:
            return txn.append(number, drafts, actor=actor, epoch=epoch, time=time)

    def mark(self, journal: Journal, number: int, label: str | None = None) -> tuple[int, str]:
        """Append an event, make it a checkpoint, and return (seq, id)."""
        with journal.write() as txn:
            draft = note(["mark", number])
            [event] = txn.append(number, [draft], actor="main", epoch=0, time=START)
            return event.seq, txn.index_checkpoint(number, event.seq, label)

    def contents(self, journal: Journal, number: int) -> list[Any]:
        """Return what was noted in a session, from its first event to its head."""
        with journal.read() as view:
            last = view.head(number).seq
            return [event.payload["content"] for event in view.events(number, 1, last)]

    # --- sessions ----------------------------------------------------------------------------

    def test_an_empty_journal_has_nothing(self, journal: Journal) -> None:
        """A fresh journal shows no session, no checkpoint and no object."""
        with journal.read() as view:
            assert view.sessions() == []
            assert view.find("run") is None
            assert view.checkpoints_by_id("") == []
            assert list(view.locations()) == []
            assert view.packs() == {}
            with pytest.raises(UnknownSession):
                view.session(1)

    def test_a_session_is_found_by_name_and_number(self, journal: Journal) -> None:
        """What ``create`` returns is what every way of looking it up returns."""
        with journal.write() as txn:
            made = txn.create("run", START, None)
        assert made == SessionRecord(made.number, "run", START, None)
        with journal.read() as view:
            assert view.find("run") == view.session(made.number) == made
            assert view.sessions() == [made]

    def test_sessions_are_listed_in_the_order_they_were_made(self, journal: Journal) -> None:
        """Whatever their names; numbers are never used twice."""
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
                txn.put_lease(number, Lease(name, 1, "holder", LATER))
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
        """Its head is seq 0 and the hash of nothing."""
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
        """Every field comes back as it was, whatever the payload."""
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
            draft = small_draft("test.big", {"value": Ref(address(1))})
            txn.append(number, [draft], actor="main", epoch=0, time=START)
        with journal.read() as view:
            [event] = view.events(number, 1, 1)
        assert event.payload["value"].digest == address(1)

    def test_events_are_chained_by_hash(self, journal: Journal) -> None:
        """Each event holds the hash of the one before; the first one that of nothing."""
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
        """Asking past the head is answered by an error that names the event, not by silence."""
        number = self.begin(journal)
        self.add(journal, number, 1, 2)
        with journal.read() as view, pytest.raises(DamagedJournal, match="#3"):
            list(view.events(number, 1, 3))

    def test_time_never_goes_backwards(self, journal: Journal) -> None:
        """When the clock is put back, events keep the newest time there was."""
        number = self.begin(journal)
        times = [START + timedelta(hours=hours) for hours in (1, 5, 2, 0, 6)]
        for moment in times:
            self.add(journal, number, "x", time=moment)
        with journal.read() as view:
            found = [event.time for event in view.events(number, 1, 5)]
            assert view.head(number).time == times[4]
        assert found == [times[0], times[1], times[1], times[1], times[4]]

    # --- transactions ------------------------------------------------------------------------

    def test_a_transaction_sees_its_own_writes(self, journal: Journal) -> None:
        """Inside ``write`` everything written so far can be read."""
        with journal.write() as txn:
            number = txn.create("run", START, None).number
            [event] = txn.append(number, [note(1)], actor="main", epoch=0, time=START)
            identity = txn.index_checkpoint(number, 1, "here")
            txn.put_keyframe(number, 1, address(1))
            assert list(txn.events(number, 1, 1)) == [event]
            assert txn.head(number).seq == txn.head(number).keyframe == 1
            assert txn.checkpoints(number, 1, 1) == [(1, identity)]
            assert txn.labelled(number, "here") == [1]
            assert txn.keyframe(number, 1) == (1, address(1))

    def test_a_transaction_over_several_sessions_is_one(self, journal: Journal) -> None:
        """Events of two sessions written together are there together."""
        one, two = self.begin(journal, "one"), self.begin(journal, "two")
        with journal.write() as txn:
            txn.append(one, [note(1), note(2)], actor="main", epoch=0, time=START)
            txn.append(two, [note(3)], actor="main", epoch=0, time=START)
        assert self.contents(journal, one) == [1, 2]
        assert self.contents(journal, two) == [3]

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_an_exception_aborts_everything(
        self, journal: Journal, error: type[BaseException]
    ) -> None:
        """Of a transaction that ends in an error, of whatever kind, nothing remains."""
        number = self._a_little_of_everything(journal)
        with journal.read() as view:
            before = picture(view)
        with pytest.raises(error):
            self._abort(journal, number, error("on purpose"))
        with journal.read() as view:
            assert picture(view) == before
            assert view.find("new") is None
            assert view.labelled(number, "new") == []
        assert [event.seq for event in self.add(journal, number, "next")] == [3]

    def _a_little_of_everything(self, journal: Journal) -> int:
        number = self.begin(journal)
        self.add(journal, number, "kept")
        self.mark(journal, number, "kept")
        with journal.write() as txn:
            txn.put_keyframe(number, 1, address(1))
            txn.index_objects({address(1): Location(1, 32, 100, 0)}, {1: 132})
        return number

    def _abort(self, journal: Journal, number: int, error: BaseException) -> None:
        with journal.write() as txn:
            self._change_everything(txn, number)
            raise error

    def _change_everything(self, txn: Txn, number: int) -> None:
        txn.create("new", START, None)
        txn.append(number, [note("lost")] * 3, actor="main", epoch=0, time=LATER)
        txn.index_checkpoint(number, 4, "new")
        txn.put_keyframe(number, 3, address(2))
        txn.put_lease(number, Lease("main", 1, "holder", LATER))
        txn.index_objects({address(2): Location(1, 132, 10, 0)}, {1: 142, 2: 50})

    def test_writers_take_turns(self, journal: Journal) -> None:
        """Threads that append at once lose nothing, and each keeps its own order."""
        number = self.begin(journal)

        def work(thread: int) -> None:
            for turn in range(25):
                self.add(journal, number, [thread, turn], actor=f"t{thread}")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        found = self.contents(journal, number)
        assert len(found) == 100
        for thread in range(4):
            assert [turn for who, turn in found if who == thread] == list(range(25))

    def test_readers_see_whole_transactions(self, journal: Journal) -> None:
        """While a writer moves two sessions at once, no reader sees one without the other."""
        one, two = self.begin(journal, "one"), self.begin(journal, "two")
        done = threading.Event()

        def write() -> None:
            try:
                for turn in range(60):
                    with journal.write() as txn:
                        txn.append(one, [note(turn)] * 2, actor="main", epoch=0, time=START)
                        txn.append(two, [note(turn)] * 2, actor="main", epoch=0, time=START)
            finally:
                done.set()

        seen = set()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            while not done.is_set():
                with journal.read() as view:
                    seen.add((view.head(one).seq, view.head(two).seq))
            writing.result()
        with journal.read() as view:
            seen.add((view.head(one).seq, view.head(two).seq))
        assert max(seen) == (120, 120)
        assert [pair for pair in seen if pair[0] != pair[1] or pair[0] % 2] == []

    def test_a_snapshot_stays_as_it_was(self, journal: Journal) -> None:
        """A view that is open while another thread writes shows the old state to its end."""
        number = self.begin(journal)
        self.add(journal, number, "old")
        with ThreadPoolExecutor(1) as pool:
            with journal.read() as view:
                assert view.head(number).seq == 1
                writing = pool.submit(self.add, journal, number, "new")
                # Where readers and the writer take turns, it cannot finish before we do.
                threading.Event().wait(0.05)
                assert view.head(number).seq == 1
                assert [e.payload["content"] for e in view.events(number, 1, 1)] == ["old"]
            writing.result()
        assert self.contents(journal, number) == ["old", "new"]

    # --- checkpoints -------------------------------------------------------------------------

    def test_checkpoints_are_found_by_range_and_id(self, journal: Journal) -> None:
        """An id is the start of the event's hash, and leads back to session and seq."""
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
        """At or before it, and none where there is none."""
        number = self.begin(journal)
        self.add(journal, number, 1, 2)
        first = self.mark(journal, number)
        self.add(journal, number, 4)
        second = self.mark(journal, number)
        with journal.read() as view:
            found = [view.checkpoint_before(number, seq) for seq in range(7)]
        assert found == [None, None, None, first, first, second, second]

    def test_ids_are_found_by_any_prefix(self, journal: Journal) -> None:
        """Odd lengths and capital letters too, and only those that match."""
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
        """At or before a seq; the head knows the newest one."""
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

    # --- forks -------------------------------------------------------------------------------

    def _family(self, journal: Journal) -> tuple[int, int, int]:
        """Make a parent of 10, a fork of it at 6 with 4 more, and a fork of that at 8."""
        parent = self.begin(journal, "parent")
        self.add(journal, parent, *[f"p{seq}" for seq in range(1, 11)])
        child = self.begin(journal, "child", Origin(parent, 6))
        self.add(journal, child, *[f"c{seq}" for seq in range(7, 11)])
        grandchild = self.begin(journal, "grandchild", Origin(child, 8))
        self.add(journal, grandchild, "g9")
        return parent, child, grandchild

    def test_a_fork_continues_its_parents_sequence(self, journal: Journal) -> None:
        """It begins at the parent's seq and hash, and reads the parent's events as its own."""
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
            assert view.session(grandchild).origin == Origin(child, 8)

    def test_the_chain_goes_through_forks(self, journal: Journal) -> None:
        """The first event of a fork holds the hash of the parent's event it left from."""
        _, _, grandchild = self._family(journal)
        with journal.read() as view:
            events = list(view.events(grandchild, 1, 9))
            assert [e.prev for e in events[1:]] == [e.hash for e in events[:-1]]
            for first in range(1, 10):
                for last in range(first, 10):
                    part = list(view.events(grandchild, first, last))
                    assert part == events[first - 1 : last]

    def test_a_fork_does_not_see_its_parents_later_events(self, journal: Journal) -> None:
        """Nor do they change it, and the other way round."""
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
        early = self.begin(journal, "early", Origin(empty, 0))
        self.add(journal, early, "own")
        assert self.contents(journal, early) == ["own"]
        late = self.begin(journal, "late", Origin(early, 1))
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
        child = self.begin(journal, "child", Origin(parent, 2))
        grandchild = self.begin(journal, "grandchild", Origin(child, 2))
        own = self.mark(journal, grandchild)
        with journal.read() as view:
            assert view.checkpoints(grandchild, 1, 9) == [first, second, own]
            assert view.checkpoints(grandchild, 2, 2) == [second]
            assert view.checkpoint_before(grandchild, 9) == own
            assert view.checkpoint_before(grandchild, 2) == second
            assert view.keyframe(grandchild, 9) == (2, address(2))
            assert view.keyframe(grandchild, 1) == (1, address(1))
            assert view.head(grandchild).keyframe == 2
            assert view.head(grandchild).checkpoint == own
            assert view.head(child).checkpoint == second
            assert view.labelled(grandchild, "one") == []

    def test_time_does_not_go_backwards_into_a_fork(self, journal: Journal) -> None:
        """A fork made after the clock was put back still follows its parent's events in time."""
        parent = self.begin(journal, "parent")
        self.add(journal, parent, "late", time=LATER)
        child = self.begin(journal, "child", Origin(parent, 1))
        self.add(journal, child, "after", time=START)
        with journal.read() as view:
            times = [event.time for event in view.events(child, 1, 2)]
        assert times == sorted(times)

    # --- leases ------------------------------------------------------------------------------

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
        lease = Lease("coder", 3, "host/12/345", LATER)
        with journal.write() as txn:
            txn.put_lease(number, Lease("coder", 2, "before", START))
            txn.put_lease(number, lease)
        with journal.read() as view:
            assert view.lease(number, "coder") == lease
            assert view.lease(number, "code") is None
            assert view.lease(number, "coder2") is None

    def test_only_the_valid_epoch_may_write(self, journal: Journal) -> None:
        """An older or newer epoch, or none, is refused inside the transaction."""
        number = self.begin(journal)
        with journal.write() as txn:
            txn.put_lease(number, Lease("coder", 2, "holder", LATER))
        [event] = self.add(journal, number, "valid", actor="coder", epoch=2)
        assert event.epoch == 2
        for epoch in (0, 1, 3):
            with pytest.raises(StaleLease, match="coder"):
                self.add(journal, number, "stale", actor="coder", epoch=epoch)
        self.add(journal, number, "another actor", actor="tester")
        assert self.contents(journal, number) == ["valid", "another actor"]

    def test_a_stale_write_takes_its_whole_transaction_with_it(self, journal: Journal) -> None:
        """What the transaction wrote before and would have written after is not there."""
        number, other = self.begin(journal), self.begin(journal, "other")
        with journal.write() as txn:
            txn.put_lease(number, Lease("coder", 2, "holder", LATER))
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
            txn.put_lease(number, Lease("main", 1, "holder", LATER))
            txn.append(number, [note("new")], actor="main", epoch=1, time=START)
            with pytest.raises(StaleLease):
                txn.append(number, [note("old")], actor="main", epoch=0, time=START)
        assert self.contents(journal, number) == ["new"]

    def test_a_released_lease_shuts_nobody_out_but_its_holder(self, journal: Journal) -> None:
        """After the release epoch 0 is accepted again and that of the lease is not."""
        number = self.begin(journal)
        with journal.write() as txn:
            txn.put_lease(number, Lease("main", 1, "holder", LATER, released=True))
        self.add(journal, number, "free")
        with pytest.raises(StaleLease):
            self.add(journal, number, "late", epoch=1)
        assert self.contents(journal, number) == ["free"]

    def test_an_expired_lease_is_valid_until_it_is_replaced(self, journal: Journal) -> None:
        """The epoch decides and never the clock: nobody else has written in between."""
        number = self.begin(journal)
        with journal.write() as txn:
            txn.put_lease(number, Lease("main", 1, "holder", START))
        self.add(journal, number, "still mine", epoch=1, time=LATER)
        assert self.contents(journal, number) == ["still mine"]

    # --- the index of objects ----------------------------------------------------------------

    def test_objects_are_found_where_they_were_put(self, journal: Journal) -> None:
        """Large numbers included; an unknown object is nowhere."""
        place = Location(2**32 - 1, 2**63, 2**32 - 1, 2**20)
        with journal.write() as txn:
            txn.index_objects({address(1): place}, {7: 2**40})
        with journal.read() as view:
            assert view.locate(address(1)) == place
            assert view.locate(address(2)) is None
            assert dict(view.locations()) == {address(1): place}
            assert (view.pack_length(7), view.pack_length(8)) == (2**40, 0)
            assert view.packs() == {7: 2**40}

    def test_a_known_object_stays_where_it_is(self, journal: Journal) -> None:
        """Indexing it again, elsewhere, changes nothing."""
        first, second = Location(1, 32, 10, 0), Location(2, 64, 10, 3)
        for place in (first, second):
            with journal.write() as txn:
                txn.index_objects({address(1): place}, {})
        with journal.read() as view:
            assert view.locate(address(1)) == first

    def test_a_packs_length_never_shrinks(self, journal: Journal) -> None:
        """A bundle that ended earlier in the pack and commits later cuts nothing off."""
        for length in (100, 300, 200):
            with journal.write() as txn:
                txn.index_objects({}, {1: length, 2: 50})
        with journal.read() as view:
            assert view.packs() == {1: 300, 2: 50}

    # --- life --------------------------------------------------------------------------------

    def test_a_closed_journal_refuses(self, journal: Journal) -> None:
        """After ``close``, which may be called twice, there is no reading and no writing."""
        self.begin(journal)
        journal.close()
        journal.close()
        with pytest.raises(StoreClosed), journal.read():
            pass
        with pytest.raises(StoreClosed), journal.write():
            pass

    def test_everything_is_there_after_reopening(
        self, journal: Journal, reopen: Callable[[], Journal]
    ) -> None:
        """What was committed, of every kind, survives the handle."""
        parent = self._a_little_of_everything(journal)
        child = self.begin(journal, "child", Origin(parent, 1))
        self.add(journal, child, "own", "long " * 1_000)
        with journal.write() as txn:
            txn.put_lease(parent, Lease("main", 4, "holder", LATER))
        with journal.read() as view:
            before = picture(view)
        again = reopen()
        try:
            with again.read() as view:
                assert picture(view) == before
                assert view.labelled(parent, "kept") == [2]
            with pytest.raises(StaleLease):
                self.add(again, parent, "stale", epoch=3)
            assert self.add(again, parent, "next", epoch=4)[0].seq == 3
        finally:
            again.close()

    def test_what_was_aborted_is_not_there_after_reopening(
        self, journal: Journal, reopen: Callable[[], Journal]
    ) -> None:
        """An aborted transaction leaves nothing behind on disk either."""
        number = self._a_little_of_everything(journal)
        with journal.read() as view:
            before = picture(view)
        with pytest.raises(ValueError, match="on purpose"):
            self._abort(journal, number, ValueError("on purpose"))
        again = reopen()
        try:
            with again.read() as view:
                assert picture(view) == before
        finally:
            again.close()
