"""JSON values of frameworks come back from the state as they were."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import mulligan
from mulligan.integrations.json_values import AS_TEXT, all_from_stored, all_to_stored, to_stored

CHARACTERS = st.characters(exclude_categories=())  # halves of surrogate pairs, too
KEYS = st.text(CHARACTERS, max_size=5) | st.just(AS_TEXT)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(CHARACTERS, max_size=8)
)
JSON = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=4) | st.dictionaries(KEYS, v, max_size=4)
)


@given(st.lists(JSON, max_size=5))
def test_any_json_value_comes_back(values: list[Any]) -> None:
    with mulligan.open("memory:") as store:
        state = store.session("s").state
        state.extend("values", all_to_stored(values))
        assert all_from_stored(state.get("values")) == values


def test_ordinary_values_are_stored_as_they_are() -> None:
    value = {"role": "user", "content": [{"text": "hello", "n": 1.5}]}
    assert to_stored(value) is value


def test_very_deep_values_come_back() -> None:
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    assert all_from_stored([to_stored(deep)]) == [deep]
    assert list(to_stored(deep)) == [AS_TEXT]
