"""Any objects survive a frame, and no change to its bytes is ever mistaken for them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan import codec
from mulligan.model import Digest
from mulligan.objects import frames
from mulligan.objects.frames import DamagedFrame

contents = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda unit, times: unit * times, st.binary(min_size=1, max_size=9), st.integers(1, 900)
    ),
)
objects = st.lists(st.tuples(st.integers(0, 255), contents), min_size=1, max_size=12).map(
    lambda pairs: [(kind, codec.digest(kind, data), data) for kind, data in pairs]
)
mutations = st.one_of(
    st.tuples(st.just("flip"), st.integers(0), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(0), st.just(0)),
    st.tuples(st.just("insert"), st.integers(0), st.integers(0, 255)),
    st.tuples(st.just("delete"), st.integers(0), st.just(0)),
    st.tuples(st.just("zero the rest"), st.integers(0), st.just(0)),
)


def mutated(data: bytes, mutation: tuple[str, int, int]) -> bytes:
    how, where, value = mutation
    at = where % len(data)
    if how == "flip":
        return data[:at] + bytes([data[at] ^ value]) + data[at + 1 :]
    if how == "cut":
        return data[:at]
    if how == "insert":
        return data[:at] + bytes([value]) + data[at:]
    if how == "delete":
        return data[:at] + data[at + 1 :]
    return data[:at] + bytes(len(data) - at)


@given(objects)
def test_every_object_comes_back_from_its_slot(listed: list[tuple[int, Digest, bytes]]) -> None:
    encoded = frames.encode_frame(listed)
    frame = frames.decode_frame(encoded)
    assert frames.decode_header(encoded).length == len(encoded)
    for slot, (kind, digest, data) in enumerate(listed):
        assert frame.object(slot, kind, digest) == data


@settings(max_examples=500)
@given(objects, st.lists(mutations, min_size=1, max_size=3))
def test_a_changed_frame_gives_the_right_bytes_or_an_error(
    listed: list[tuple[int, Digest, bytes]], changes: list[tuple[str, int, int]]
) -> None:
    encoded = frames.encode_frame(listed)
    for change in changes:
        if encoded:
            encoded = mutated(encoded, change)
    for slot, (kind, digest, data) in enumerate(listed):
        try:
            got = frames.decode_frame(encoded).object(slot, kind, digest)
        except DamagedFrame:
            continue
        assert got == data


@given(objects, st.integers(0), st.integers(0, 7))
def test_a_flipped_bit_in_header_or_directory_is_always_refused(
    listed: list[tuple[int, Digest, bytes]], where: int, bit: int
) -> None:
    encoded = bytearray(frames.encode_frame(listed))
    covered = frames.FRAME_HEADER_SIZE + len(listed) * frames.ENTRY_SIZE
    encoded[where % covered] ^= 1 << bit
    with pytest.raises(DamagedFrame):
        frames.decode_directory(bytes(encoded))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(DamagedFrame):
        frames.decode_frame(b"FRM1" + data)
