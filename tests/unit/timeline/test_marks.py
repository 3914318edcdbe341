"""Marks: verdicts on checkpoints that outlive every restore, and the points they make."""

from __future__ import annotations

import pytest

import mulligan
from mulligan import Checkpoint, Point, Session
from mulligan.errors import InvalidMark, UnknownPoint


@pytest.fixture
def session() -> Session:
    return mulligan.open("memory:").session("run")


@pytest.fixture
def taken(session: Session) -> list[Checkpoint]:
    """Five checkpoints with a change before each."""
    made = []
    for number in range(5):
        session.state.set("number", number)
        made.append(session.checkpoint(label=f"c{number}"))
    return made


def place(checkpoint: Checkpoint) -> Point:
    return Point("run", checkpoint.seq, checkpoint.id)


def test_good_and_bad_are_the_latest_of_their_kind(
    session: Session, taken: list[Checkpoint]
) -> None:
    for number, verdict in [(0, "good"), (3, "bad"), (2, "good"), (1, "bad")]:
        assert session.checkpoints.mark(taken[number], verdict) == taken[number]
    assert session.point("@good") == session.point("@good~0") == place(taken[2])
    assert session.point("@good~1") == place(taken[0])
    assert session.point("@bad") == place(taken[3])
    assert session.point("@bad~1") == place(taken[1])


def test_a_later_mark_takes_the_place_of_an_earlier_one(
    session: Session, taken: list[Checkpoint]
) -> None:
    session.checkpoints.mark("c1", "good", "looked fine")
    session.checkpoints.mark("c1", "bad", "it was not")
    mark = session.checkpoints.marks()[taken[1].id]
    assert (mark.verdict, mark.by, mark.note) == ("bad", "main", "it was not")
    with pytest.raises(UnknownPoint, match="has no checkpoint marked good"):
        session.point("@good")


def test_steps_past_the_first_one_say_how_many_there_are(
    session: Session, taken: list[Checkpoint]
) -> None:
    session.checkpoints.mark("c1", "good")
    with pytest.raises(UnknownPoint, match="only one checkpoint marked good"):
        session.point("@good~1")
    session.checkpoints.mark("c2", "good")
    with pytest.raises(UnknownPoint, match="only 2 checkpoints marked good"):
        session.point("@good~1~1")


def test_a_point_between_checkpoints_marks_the_one_before(
    session: Session, taken: list[Checkpoint]
) -> None:
    assert session.checkpoints.mark(f"#{taken[2].seq + 1}", "good") == taken[2]
    assert session.point("@good") == place(taken[2])


def test_a_restore_forgets_no_verdict(session: Session, taken: list[Checkpoint]) -> None:
    session.checkpoints.mark("c1", "good")
    session.checkpoints.mark("c3", "bad")
    session.restore("@good")
    assert session.state.get("number") == 1
    session.undo()
    assert session.point("@good") == place(taken[1])
    assert session.point("@bad") == place(taken[3])


def test_a_fork_inherits_the_verdicts_on_its_past_alone(
    session: Session, taken: list[Checkpoint]
) -> None:
    session.checkpoints.mark("c1", "good")
    session.checkpoints.mark("c4", "good")
    fork = session.fork(session.head, "fork")
    assert fork.point("@good").seq == taken[4].seq
    fork.checkpoints.mark("c4", "bad")
    assert fork.point("@good").seq == taken[1].seq
    assert session.point("@good").seq == taken[4].seq
    early = session.fork(taken[2], "early")
    assert early.checkpoints.marks().keys() == {taken[1].id}


def test_a_fork_takes_over_the_marks_of_when_it_is_made(
    session: Session, taken: list[Checkpoint]
) -> None:
    """A mark comes after its checkpoint, so also after the point of a fork from it."""
    session.checkpoints.mark("c0", "good", "x" * 5_000)
    session.checkpoints.mark("c1", "good")
    session.checkpoints.mark("c2", "good", "fine")
    session.checkpoints.mark("c1", "bad")
    session.checkpoints.mark("c3", "good")
    fork = session.fork("@good~1", "fork")
    assert fork.parent == Point("run", taken[2].seq)
    expected = {
        name: mark for name, mark in session.checkpoints.marks().items() if name != taken[3].id
    }
    assert fork.checkpoints.marks() == expected
    assert fork.point("@good") == Point("fork", taken[2].seq, taken[2].id)
    assert [event.kind for event in fork.events(since=taken[2].seq)] == [
        "session.forked",
        "marks.inherited",
    ]


def test_marks_after_the_fork_stay_where_they_are_given(
    session: Session, taken: list[Checkpoint]
) -> None:
    fork = session.fork("c2", "fork")
    session.checkpoints.mark("c1", "good")
    fork.checkpoints.mark("c0", "bad")
    assert fork.checkpoints.marks().keys() == {taken[0].id}
    assert session.checkpoints.marks().keys() == {taken[1].id}
    again = fork.fork("c0", "again")  # of what the fork knows
    assert again.checkpoints.marks().keys() == {taken[0].id}


def test_many_marks_are_taken_over(session: Session) -> None:
    for _ in range(150):
        session.checkpoint()
    with session.batch():
        for made in session.checkpoints():
            session.checkpoints.mark(made, "good", "n" * 40)
    fork = session.fork(session.checkpoints()[99], "fork")
    assert len(fork.checkpoints.marks()) == 100
    assert fork.point("@good~99").seq == session.checkpoints()[0].seq


def test_what_cannot_be_marked(session: Session, taken: list[Checkpoint]) -> None:
    with pytest.raises(InvalidMark, match="good or bad, not 'great'"):
        session.checkpoints.mark("c1", "great")
    other = session.fork("c1", "other")
    mine = other.checkpoint()
    with pytest.raises(UnknownPoint, match="not on the timeline of 'run'"):
        session.checkpoints.mark(mine, "good")
    assert session.checkpoints.marks() == {}


def test_the_record_of_a_checkpoint_says_its_verdict(
    session: Session, taken: list[Checkpoint]
) -> None:
    assert session.internal.record("c1")["verdict"] is None
    session.checkpoints.mark("c1", "good", "tests pass")
    record = session.internal.record("c1")
    assert record["verdict"] == "good"
    assert record["mark"] == {"by": "main", "note": "tests pass"}
