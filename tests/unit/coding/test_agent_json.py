"""JSON of agents is read even where a text was cut in the middle of a character."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.coding.agent_json import decode

TEXTS = st.text(st.characters(codec=None, categories=["Cs", "Lu", "So", "Po"]), max_size=20)
"""With halves of surrogate pairs, backslashes and characters beyond the first plane."""


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (rb'"cut \ud83d"', "cut \ufffd"),
        (rb'"\ude00 rest"', "\ufffd rest"),
        (rb'"\uD83D\uDE00 \ud83d\ud83d\ude00"', "\U0001f600 \ufffd\U0001f600"),
        (rb'"\\ud83d \ud83d"', "\\ud83d \ufffd"),
        (rb'{"\ud83d": 1}', {"\ufffd": 1}),
    ],
)
def test_halves_are_replaced(written: bytes, read: object) -> None:
    assert decode(written) == read


@given(TEXTS)
def test_every_text_that_a_program_may_write_is_read(text: str) -> None:
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert len(decode(json.dumps(text).encode())) == len(whole)


@pytest.mark.parametrize("data", [b"{", b'"\\u12"', b"\xff", b'"\\ud83', b"1e400"])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data)
