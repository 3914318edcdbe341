"""The search for the first bad one finds it, in as few questions as there can be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.timeline.bisect import first_bad


@st.composite
def rows(draw: st.DrawFn) -> tuple[int, int]:
    """A number of checkpoints, and which is the first bad one."""
    count = draw(st.integers(2, 400))
    return count, draw(st.integers(1, count - 1))


@given(rows())
def test_it_finds_the_first_bad_one_in_log2_questions(row: tuple[int, int]) -> None:
    count, culprit = row
    asked: list[int] = []

    def judge(index: int) -> str:
        asked.append(index)
        return "bad" if index >= culprit else "good"

    found = first_bad(count, judge)
    assert found.first_bad == culprit
    assert found.last_good == culprit - 1
    assert len(asked) == len(set(asked)) <= math.ceil(math.log2(count - 1))
    assert not {0, count - 1} & set(asked)


@given(rows(), st.data())
def test_what_cannot_be_judged_never_leads_astray(
    row: tuple[int, int], data: st.DataObject
) -> None:
    count, culprit = row
    skipped = data.draw(st.sets(st.integers(1, count - 1), max_size=count))
    asked: list[int] = []

    def judge(index: int) -> str:
        asked.append(index)
        return "skip" if index in skipped else "bad" if index >= culprit else "good"

    found = first_bad(count, judge)
    assert culprit in found.suspects
    assert len(asked) == len(set(asked))
    # All suspects but the last could not be judged; the last is known to be bad.
    assert set(found.suspects[:-1]) <= skipped
    assert found.last_good == 0 or found.judged[found.last_good] == "good"
    if found.first_bad is not None:
        assert found.first_bad == culprit


def test_neighbours_need_no_question() -> None:
    found = first_bad(2, lambda index: pytest.fail(f"asked about {index}"))
    assert found.first_bad == 1


def test_a_search_has_two_ends() -> None:
    with pytest.raises(ValueError, match="a good one and a bad one"):
        first_bad(1, lambda _: "good")
