"""Any range of checkpoints is the part of the whole list that its arguments describe."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

import mulligan
from mulligan import Checkpoint, Session
from mulligan.timeline import checkpoints

KINDS = ("routine", "manual", "own")


@cache
def session() -> tuple[Session, list[Checkpoint]]:
    """A fork of a fork, with checkpoints in each, more than fit on two pages."""
    timeline = mulligan.open("memory:").session("s")
    for number in range(2 * checkpoints.PAGE_CHECKPOINTS + 30):
        if number in (40, 90):
            timeline = timeline.fork(timeline.head, f"f{number}")
        with timeline.batch() as batch:
            for _ in range(number % 3):
                timeline.state.set("n", number)
            batch.checkpoint(KINDS[number * 7 % 3])
    return timeline, timeline.checkpoints()


SEQS = st.integers(1, session()[0].head.seq)


@given(
    since=st.none() | SEQS,
    until=st.none() | SEQS,
    kind=st.none() | st.sampled_from((*KINDS, "other")),
    limit=st.none() | st.integers(0, 200),
    reverse=st.booleans(),
)
def test_a_range_is_a_part_of_the_list(
    since: int | None, until: int | None, kind: str | None, limit: int | None, reverse: bool
) -> None:
    timeline, known = session()
    assert len(known) == 2 * checkpoints.PAGE_CHECKPOINTS + 30
    expected = [
        one
        for one in known[:: -1 if reverse else 1]
        if (since is None or one.seq > since)
        and (until is None or one.seq <= until)
        and kind in (None, one.kind)
    ][:limit]
    found = timeline.checkpoints(since=since, until=until, kind=kind, limit=limit, reverse=reverse)
    assert found == expected
