"""Reading a timeline: only as much of it as is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import DamagedJournal, UnknownPoint
from mulligan.journal.kv_view import KvView
from mulligan.timeline.checkpoints import PAGE_CHECKPOINTS


@pytest.mark.parametrize("newest", [None, 1, 2, 3, 4, 9])
def test_the_newest_checkpoints_are_the_end_of_all_of_them(newest: int | None) -> None:
    with mulligan.open("memory:") as store:
        session = store.session("s")
        session.checkpoint()
        session.checkpoint()
        fork = session.fork(session.head, "f")
        taken = [*session.checkpoints(), fork.checkpoint(), fork.checkpoint()]
        expected = taken if newest is None else taken[-newest:]
        assert [c.id for c in fork.checkpoints(newest)] == [c.id for c in expected]


def test_a_label_that_was_dropped_names_nothing_in_a_fork_either() -> None:
    with mulligan.open("memory:") as store:
        session = store.session("s")
        session.checkpoint(label="green")
        session.checkpoints.drop_label("green")
        session.checkpoint(label="blue")
        assert list(session.fork(session.head, "f").checkpoints.labels()) == ["blue"]


# --- ranges of checkpoints -------------------------------------------------------------------


def long_session(count: int) -> Session:
    """A session with a change and a checkpoint in turns, of two kinds."""
    session = mulligan.open("memory:").session("s")
    for number in range(count):
        with session.batch() as batch:
            session.state.set("n", number)
            batch.checkpoint("routine" if number % 3 else "manual", data={"n": number})
    return session


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the records that are read from each table of the journal."""
    counts: Counter[str] = Counter()
    scan = KvView._raw_scan

    def counted(self: KvView, table: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for row in scan(self, table, *args, **kwargs):
            counts[table] += 1
            yield row

    monkeypatch.setattr(KvView, "_raw_scan", counted)
    return counts


@pytest.mark.parametrize("count", [400, 1_600])
def test_a_range_reads_no_more_than_it_returns(count: int, rows: Counter[str]) -> None:
    """However many checkpoints there are: the reads are counted, not the time."""
    session = long_session(count)
    taken = session.checkpoints()
    for asked in (
        lambda: session.checkpoints(limit=10, reverse=True),
        lambda: session.checkpoints(10),
        lambda: session.checkpoints(limit=10),
        lambda: session.checkpoints(since=taken[-11]),
        lambda: session.checkpoints(since=taken[200], until=taken[210].id, reverse=True),
        lambda: session.checkpoints(until=taken[99].seq, limit=10, reverse=True),
    ):
        rows.clear()
        assert len(asked()) == 10
        assert rows["events"] <= 10
        assert rows["checkpoints"] <= PAGE_CHECKPOINTS + 2
    rows.clear()
    found = session.checkpoints(kind="manual", limit=5, reverse=True)
    assert len(found) == 5
    assert rows["events"] <= 15


def test_points_of_any_form_are_the_ends_of_a_range() -> None:
    session = long_session(9)
    taken = session.checkpoints()
    last = taken[5]
    for until in (last, last.id, last.id[:12], last.seq, f"#{last.seq}", last.seq + 1):
        assert session.checkpoints(since=taken[2], until=until) == taken[3:6]
    assert session.checkpoints(since="@latest") == []
    assert session.checkpoints(since=taken[7], until=taken[3]) == []
    assert session.checkpoints(limit=0) == []
    with pytest.raises(UnknownPoint):
        session.checkpoints(since="nothing of that name")


def test_a_missing_entry_of_the_index_is_noticed_in_both_directions() -> None:
    session = long_session(6)
    taken = session.checkpoints()
    with session._engine.write() as txn:
        txn._writer.delete("checkpoints", (1).to_bytes(4) + taken[3].seq.to_bytes(8))  # type: ignore[attr-defined]
    for reverse in (False, True):
        with pytest.raises(DamagedJournal, match="is missing"):
            session.checkpoints(reverse=reverse)
        assert session.checkpoints(until=taken[2], reverse=reverse)
    with session._engine.write() as txn:
        txn._writer.delete("checkpoints", (1).to_bytes(4) + taken[5].seq.to_bytes(8))  # type: ignore[attr-defined]
    with pytest.raises(DamagedJournal, match="newest"):
        session.checkpoints(until=taken[1])
