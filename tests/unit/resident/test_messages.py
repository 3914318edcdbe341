"""What a client of the helper sends is what the helper reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.errors import InvalidHook
from mulligan.resident.messages import MAGIC, HookRequest, decode_request, encode_request

TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)))
NAMES = st.text(st.characters(whitelist_categories=("Lu",)), min_size=1)
REQUESTS = st.builds(
    HookRequest,
    version=TEXT,
    id=TEXT,
    agent=TEXT,
    options=TEXT,
    variables=st.dictionaries(NAMES, TEXT),
    data=st.binary(),
)


@given(REQUESTS)
def test_a_request_is_read_as_it_was_written(request: HookRequest) -> None:
    assert decode_request(encode_request(request)) == request


@given(st.binary())
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidHook):
        decode_request(data)


def test_a_request_that_was_cut_in_its_head_is_refused() -> None:
    whole = encode_request(HookRequest("1", "id", "claude", "", {"HOME": "/"}, b"{}"))
    for end in range(whole.index(b"\0\0{}")):
        with pytest.raises(InvalidHook):
            decode_request(whole[: end + 1])
    assert whole.startswith(MAGIC)
