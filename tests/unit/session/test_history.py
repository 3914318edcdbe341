"""Reading a timeline: only as much of it as is asked for."""

from __future__ import annotations

import pytest

import mulligan


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
        session.drop_label("green")
        session.checkpoint(label="blue")
        assert list(session.fork(session.head, "f").labels()) == ["blue"]
