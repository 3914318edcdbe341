"""The hooks act at their point, at their time, and nowhere else."""

from __future__ import annotations

import pytest

from mulligan.failpoints import Failpoint
from mulligan.testing.failpoints import FailpointCounter, fail_at, kill_at
from mulligan.testing.stores import open_store


def test_an_error_is_raised_at_the_nth_time_only() -> None:
    hook = fail_at(Failpoint.JOURNAL_TRANSACTION_STARTED, ValueError("on purpose"), nth=3)
    for point in (Failpoint.JOURNAL_TRANSACTION_STARTED, Failpoint.JOURNAL_COMMITTED) * 2:
        hook(point)
    with pytest.raises(ValueError, match="on purpose"):
        hook(Failpoint.JOURNAL_TRANSACTION_STARTED)
    hook(Failpoint.JOURNAL_TRANSACTION_STARTED)


@pytest.mark.parametrize("nth", [0, -1])
def test_a_point_is_reached_once_at_least(nth: int) -> None:
    with pytest.raises(ValueError, match="nth starts at 1"):
        fail_at(Failpoint.JOURNAL_TRANSACTION_STARTED, ValueError(), nth)
    with pytest.raises(ValueError, match="nth starts at 1"):
        kill_at(Failpoint.JOURNAL_TRANSACTION_STARTED, nth)


def test_what_was_reached_is_counted() -> None:
    reached = FailpointCounter()
    with open_store("memory:", failpoint=reached) as store:
        store.session("run").state.set("a", 1)
    assert reached.counts[Failpoint.JOURNAL_COMMITTED] == 2
    assert reached.counts[Failpoint.PACK_SYNCED] == 0
