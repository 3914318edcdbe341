"""Conformance of journals: transactions, and what remains after reopening."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from mulligan.errors import StaleLease, StoreClosed
from mulligan.journal.protocol import Journal, Presence, Txn
from mulligan.model import ForkOrigin, Lease, Location
from mulligan.testing.journal.base import HOLDER, LATER, START, JournalBase, address, note, picture

ForeignWrite = Callable[[Txn, int], object]

FOREIGN_WRITES: dict[str, ForeignWrite] = {
    "append": lambda txn, number: txn.append(number, [note(1)], actor="main", epoch=0, time=START),
    "index_checkpoint": lambda txn, number: txn.index_checkpoint(number, 1, "label"),
    "put_keyframe": lambda txn, number: txn.put_keyframe(number, 1, address(1)),
    "put_lease": lambda txn, number: txn.put_lease(number, Lease("main", 1, HOLDER, LATER)),
    "create": lambda txn, _: txn.create("made", START, None),
}
"""Everything that a transaction of a session must not do to another one."""


class TransactionTests(JournalBase):
    """A transaction is atomic, also beside concurrent readers and writers."""

    # --- transactions ------------------------------------------------------------------------

    def test_an_open_journal_is_present(self, journal: Journal) -> None:
        """Before and after a write, the journal is still where it was opened."""
        assert journal.presence() is Presence.PRESENT
        with journal.write() as txn:
            txn.create("run", START, None)
        assert journal.presence() is Presence.PRESENT

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
        """Events of two sessions in one transaction appear together."""
        one, two = self.begin(journal, "one"), self.begin(journal, "two")
        with journal.write() as txn:
            txn.append(one, [note(1), note(2)], actor="main", epoch=0, time=START)
            txn.append(two, [note(3)], actor="main", epoch=0, time=START)
        assert self.contents(journal, one) == [1, 2]
        assert self.contents(journal, two) == [3]

    def test_a_transaction_of_a_session_does_all_that_a_session_needs(
        self, journal: Journal
    ) -> None:
        """Events, checkpoints, keyframes, leases and objects; other sessions can be read."""
        one, two = self.begin(journal, "one"), self.begin(journal, "two")
        self.add(journal, two, "other")
        with journal.write(one) as txn:
            txn.put_lease(one, Lease("main", 1, HOLDER, LATER))
            txn.append(one, [note(1)], actor="main", epoch=1, time=START)
            identity = txn.index_checkpoint(one, 1, "here")
            txn.put_keyframe(one, 1, address(1))
            txn.index_objects({address(1): Location(1, 32, 100, 0)}, {1: 132})
            assert [e.payload["content"] for e in txn.events(two, 1, 1)] == ["other"]
        with journal.read() as view:
            assert view.checkpoints(one, 1, 9) == [(1, identity)]
            assert view.keyframe(one, 1) == (1, address(1))
            assert view.lease(one, "main") == Lease("main", 1, HOLDER, LATER)
            assert view.locate(address(1)) == Location(1, 32, 100, 0)

    @pytest.mark.parametrize("name", sorted(FOREIGN_WRITES))
    def test_a_transaction_of_a_session_writes_to_no_other(
        self, journal: Journal, name: str
    ) -> None:
        """It is refused, and nothing of the transaction is stored."""
        one, two = self.begin(journal, "one"), self.begin(journal, "two")
        self.mark(journal, two)
        with journal.read() as view:
            before = picture(view)
        with pytest.raises(ValueError, match="session"):
            self._write_beyond(journal, one, two, FOREIGN_WRITES[name])
        with journal.read() as view:
            assert picture(view) == before

    def _write_beyond(self, journal: Journal, own: int, other: int, write: ForeignWrite) -> None:
        with journal.write(own) as txn:
            txn.append(own, [note("before")], actor="main", epoch=0, time=START)
            write(txn, other)

    def test_sessions_are_written_at_once(self, journal: Journal) -> None:
        """Each thread writes to its own session, while another one creates sessions."""
        numbers = [self.begin(journal, f"s{n}") for n in range(3)]

        def work(number: int) -> None:
            for turn in range(25):
                self.add(journal, number, turn)

        with ThreadPoolExecutor(4) as pool:
            writing = [pool.submit(work, number) for number in numbers]
            made = [self.begin(journal, f"made-{n}") for n in range(10)]
            for result in writing:
                result.result()
        assert [self.contents(journal, number) for number in numbers] == [list(range(25))] * 3
        with journal.read() as view:
            assert [record.number for record in view.sessions()] == numbers + made

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_an_exception_aborts_everything(
        self, journal: Journal, error: type[BaseException]
    ) -> None:
        """A transaction that ends in an error of any kind leaves nothing."""
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
        txn.put_lease(number, Lease("main", 1, HOLDER, LATER))
        txn.index_objects({address(2): Location(1, 132, 10, 0)}, {1: 142, 2: 50})

    def test_writers_take_turns(self, journal: Journal) -> None:
        """Concurrent appends of several threads lose nothing, and each keeps its own order."""
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
        """While transactions move two sessions, no reader sees one moved without the other."""
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
        """A view that is open while another thread writes shows the old state until it closes."""
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

    # --- life --------------------------------------------------------------------------------

    def test_a_closed_journal_refuses(self, journal: Journal) -> None:
        """After ``close``, which may be called twice, reading and writing are refused."""
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
        """Everything that was committed is there after reopening."""
        parent = self._a_little_of_everything(journal)
        child = self.begin(journal, "child", ForkOrigin(parent, 1))
        self.add(journal, child, "own", "long " * 1_000)
        with journal.write() as txn:
            txn.put_lease(parent, Lease("main", 4, HOLDER, LATER))
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
        """An aborted transaction leaves nothing on disk."""
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
