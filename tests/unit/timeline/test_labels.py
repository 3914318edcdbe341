"""Labels move to the newest checkpoint that was given them, and can be dropped."""

from __future__ import annotations

import pytest

import mulligan
from mulligan import Session, Store
from mulligan.errors import InvalidName, UnknownPoint


@pytest.fixture
def store() -> Store:
    return mulligan.open("memory:")


@pytest.fixture
def session(store: Store) -> Session:
    return store.session("run")


def test_a_label_moves_to_the_checkpoint_that_is_given_it(session: Session):
    session.state.set("n", 1)
    first = session.checkpoint(label="green")
    session.state.set("n", 2)
    second = session.checkpoint(label="green")
    session.state.set("n", 3)
    assert session.point("green").checkpoint == second.id
    assert session.point("green~1").checkpoint == first.id
    session.restore("green")
    assert session.state.get("n") == 2
    session.restore(first)
    assert session.state.get("n") == 1
    assert session.point("green").checkpoint == second.id  # a restore moves no label
    assert [made.label for made in session.checkpoints() if not made.safety] == ["green"] * 2
    records = [session.internal.record(made) for made in (first, second)]
    assert [(record["label"], record["label_at"]) for record in records] == [
        ("green", second.id)
    ] * 2


def test_a_dropped_label_names_nothing_until_it_is_given_again(session: Session):
    session.checkpoint(label="green")
    second = session.checkpoint(label="green")
    session.checkpoint(label="red")
    assert session.checkpoints.drop_label("green") == second
    with pytest.raises(UnknownPoint):
        session.point("green")
    with pytest.raises(UnknownPoint, match="no label 'green'"):
        session.checkpoints.drop_label("green")
    assert list(session.checkpoints.labels()) == ["red"]
    assert session.internal.record(second)["label_at"] is None
    session.restore("red")
    session.undo()
    with pytest.raises(UnknownPoint):
        session.point("green")  # no restore brings it back
    third = session.checkpoint(label="green")
    assert session.point("green").checkpoint == third.id
    assert list(session.checkpoints.labels()) == ["green", "red"]


def test_a_fork_has_the_labels_of_its_past_as_they_were(session: Session, store: Store):
    first = session.checkpoint(label="green")
    before = session.head
    session.checkpoints.drop_label("green")
    after = session.head
    second = session.checkpoint(label="green")
    early, late, last = (session.fork(at) for at in (before, after, second))
    assert early.point("green").checkpoint == first.id
    assert late.checkpoints.labels() == {}
    with pytest.raises(UnknownPoint):
        late.point("green")
    assert last.point("green").checkpoint == second.id
    early.checkpoints.drop_label("green")
    assert early.checkpoints.labels() == {}
    assert early.fork(early.head).checkpoints.labels() == {}
    assert session.point("green").checkpoint == second.id
    own = late.checkpoint(label="green")
    assert late.fork(late.head).point("green").checkpoint == own.id
    assert store.verify().ok


def test_a_fork_from_before_its_parent_began_has_no_later_labels(session: Session, store: Store):
    first = session.checkpoint(label="one")
    session.checkpoint(label="two")
    session.checkpoint(label="one")
    parent = session.fork(session.head)
    fork = parent.fork(first.seq)
    assert {label: point.checkpoint for label, point in fork.checkpoints.labels().items()} == {
        "one": first.id
    }
    assert fork.point("one").checkpoint == first.id
    with pytest.raises(UnknownPoint):
        fork.point("two")
    assert store.verify().ok


def test_only_labels_can_be_dropped(session: Session):
    made = session.checkpoint(label="green")
    for name in (made.id, "@latest", "", None, "#1"):
        with pytest.raises((UnknownPoint, InvalidName)):
            session.checkpoints.drop_label(name)  # type: ignore[arg-type]
    assert session.point("green").checkpoint == made.id


def test_a_label_that_was_dropped_far_back_stays_dropped(session: Session):
    """Beyond a keyframe, where replay begins anew."""
    session.checkpoint(label="green")
    session.checkpoints.drop_label("green")
    with session.batch():
        for number in range(1_200):
            session.state.set(("n", str(number % 50)), number)
    session.checkpoint()
    assert session.checkpoints.labels() == {}
    session.checkpoint(label="green")
    assert session.point("green") == session.point("@latest")
