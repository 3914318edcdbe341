"""The pack format, byte by byte."""

from __future__ import annotations

import struct

import pytest
from blake3 import blake3

from mulligan import codec
from mulligan.model import Digest
from mulligan.objects import frames
from mulligan.objects.frames import DamagedFrame
from mulligan.testing.objects import noise

STORE = bytes(range(16))


def listed(*contents: bytes, kind: int = 1) -> list[tuple[int, Digest, bytes]]:
    return [(kind, codec.digest(kind, data), data) for data in contents]


def sealed(start: bytes, directory: bytes, body: bytes) -> bytes:
    """Return a frame with a right checksum over whatever it says."""
    return start + blake3(start + directory).digest()[:12] + directory + body


def test_the_pack_header_is_32_bytes_in_the_documented_order() -> None:
    expected = b"MULLPACK" + struct.pack("<II", 1, 7) + STORE
    assert frames.encode_pack_header(7, STORE) == expected
    assert len(expected) == 32
    frames.check_pack_header(expected, 7, STORE)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (frames.encode_pack_header(7, STORE)[:31], "cut short"),
        (b"X" + frames.encode_pack_header(7, STORE)[1:], "begin like a pack"),
        (b"MULLPACK" + struct.pack("<II", 2, 7) + STORE, "unknown version 2"),
        (frames.encode_pack_header(8, STORE), "belongs to pack 8"),
        (frames.encode_pack_header(7, bytes(16)), "another store"),
    ],
)
def test_a_pack_header_that_is_not_this_packs_is_refused(header: bytes, says: str) -> None:
    with pytest.raises(DamagedFrame, match=says):
        frames.check_pack_header(header, 7, STORE)


def test_a_store_id_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        frames.encode_pack_header(1, b"short")


def test_pack_names_go_both_ways_and_other_names_are_no_packs() -> None:
    assert frames.pack_name(0x1F) == "0000001f.pack"
    assert frames.pack_number("0000001f.pack") == 0x1F
    others = ["1.pack", "0000001F.pack", "0000001f.pack~", "x0000001f.pack", "0000001f.pack\n"]
    assert [frames.pack_number(name) for name in others] == [None] * len(others)


def test_a_frame_has_the_documented_bytes() -> None:
    objects = listed(noise(10, 1), b"", noise(5, 2), kind=9)
    directory = b"".join(bytes([9]) + name + struct.pack("<I", len(d)) for _, name, d in objects)
    start = b"FRM1" + bytes([0, 0, 0, 0]) + struct.pack("<III", 3, 15, 15)
    expected = sealed(start, directory, noise(10, 1) + noise(5, 2))
    assert frames.encode_frame(objects) == expected
    assert len(directory) == 3 * 37


def test_what_compresses_is_compressed_and_what_does_not_is_kept_raw() -> None:
    assert frames.decode_header(frames.encode_frame(listed(bytes(10_000)))).codec == frames.ZSTD
    assert frames.decode_header(frames.encode_frame(listed(noise(10_000)))).codec == frames.RAW
    nearly = noise(10_000) + bytes(250)
    assert len(codec.compress(nearly, 3)) < len(nearly)
    assert frames.decode_header(frames.encode_frame(listed(nearly))).codec == frames.RAW


def large() -> tuple[list[tuple[int, Digest, bytes]], frames.FrameHeader, bytes]:
    """Return objects that make a large compressed body, its header and the body."""
    objects = listed(*(noise(400, seed) * 2 for seed in range(100)))
    encoded = frames.encode_frame(objects)
    header = frames.decode_header(encoded)
    assert header.codec == frames.ZSTD
    return objects, header, encoded[header.body_start :]


def test_a_large_compressed_body_ends_with_its_documented_checksum() -> None:
    _, header, body = large()
    assert len(body) > frames.MIN_CHECKED_BODY
    checksum = blake3(body[:-24]).digest(length=16)
    assert body[-24:] == struct.pack("<II", 0x184D2A5D, 16) + checksum
    assert frames.is_body_as_written(header, body)


def test_readers_without_the_checksum_skip_it() -> None:
    objects, header, body = large()
    raw = b"".join(data for _, _, data in objects)
    assert codec.decompress(body, header.raw_length) == raw
    assert codec.decompress(body[:-24], header.raw_length) == raw


def test_no_changed_byte_of_a_body_matches_its_checksum() -> None:
    _, header, body = large()
    for at in [*range(0, len(body), 97), *range(len(body) - 24, len(body))]:
        changed = bytearray(body)
        changed[at] ^= 1
        assert not frames.is_body_as_written(header, bytes(changed))


def test_bodies_without_a_checksum_match_none() -> None:
    _, header, body = large()
    assert not frames.is_body_as_written(header, body[:-24])
    small = frames.encode_frame(listed(bytes(10_000)))
    header = frames.decode_header(small)
    assert not frames.is_body_as_written(header, small[header.body_start :])


def test_frames_full_of_files_are_compressed_more_quickly_than_others() -> None:
    parts = [noise(8, seed) * 200 + noise(400, seed) for seed in range(100)]
    raw = b"".join(parts)
    assert len(raw) >= frames.BULK_FRAME_BYTES
    for kind, count, compressed in (
        (2, 100, codec.compress_bulk(raw)),
        (1, 100, codec.compress(raw, 3)),
        (2, 3, codec.compress(b"".join(parts[:3]), 3)),
    ):
        objects = listed(*parts[:count], kind=kind)
        encoded = frames.encode_frame(objects)
        assert compressed in encoded
        frame = frames.decode_frame(encoded)
        found = [frame.object(slot, kind, name) for slot, (_, name, _) in enumerate(objects)]
        assert found == parts[:count]
    assert codec.compress_bulk(raw) != codec.compress(raw, 3)


def test_objects_are_found_by_slot_even_where_some_are_empty() -> None:
    objects = listed(b"", b"one", b"two", b"three" * 100)
    frame = frames.decode_frame(frames.encode_frame(objects))
    assert [frame.object(n, 1, name) for n, (_, name, _) in enumerate(objects)] == [
        b"",
        b"one",
        b"two",
        b"three" * 100,
    ]


def test_the_directory_lists_kind_digest_and_length() -> None:
    objects = listed(b"abc", b"defgh", kind=4)
    _, directory = frames.decode_directory(frames.encode_frame(objects))
    expected = [(4, objects[0][1], 3), (4, objects[1][1], 5)]
    assert [tuple(entry) for entry in frames.entries(directory)] == expected


def test_a_frame_needs_at_least_one_object() -> None:
    with pytest.raises(ValueError, match="0 objects"):
        frames.encode_frame([])


@pytest.mark.parametrize(
    ("slot", "kind", "says"), [(2, 1, "no slot 2"), (-1, 1, "no slot -1"), (1, 1, "another object")]
)
def test_a_location_that_points_elsewhere_is_refused(slot: int, kind: int, says: str) -> None:
    objects = listed(b"first", b"second")
    frame = frames.decode_frame(frames.encode_frame(objects))
    with pytest.raises(DamagedFrame, match=says):
        frame.object(slot, kind, objects[0][1])


def test_another_kind_is_refused_by_the_directory() -> None:
    [(_, name, _)] = objects = listed(b"first")
    with pytest.raises(DamagedFrame, match="kind 1, not 2"):
        frames.decode_frame(frames.encode_frame(objects)).object(0, 2, name)


def test_wrong_bytes_under_a_right_directory_are_refused() -> None:
    [(_, name, _)] = listed(b"right")
    frame = frames.decode_frame(frames.encode_frame([(1, name, b"wrong")]))
    with pytest.raises(DamagedFrame, match="digest"):
        frame.object(0, 1, name)


def _start(
    magic: bytes = b"FRM1",
    method: int = 0,
    zeros: bytes = bytes(3),
    count: int = 1,
    raw: int = 3,
    stored: int = 3,
) -> bytes:
    return magic + bytes([method]) + zeros + struct.pack("<III", count, raw, stored)


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (_start(magic=b"FRM2"), "no frame"),
        (_start(method=2), "unknown codec 2"),
        (_start(zeros=b"\0\1\0"), "unknown flags"),
        (_start(count=0), "limits"),
        (_start(count=frames.MAX_COUNT + 1), "limits"),
        (_start(raw=(1 << 30) + 1), "limits"),
        (_start(raw=3, stored=4), "limits"),
        (_start(stored=2), "has 72 bytes where it needs 71"),
        (_start(raw=4, stored=3), "wrong length"),
        (_start(method=1), "decompress"),
        (_start(raw=2, stored=2), "has 72 bytes"),
    ],
)
def test_a_header_that_lies_is_refused_though_its_checksum_is_right(
    start: bytes, says: str
) -> None:
    [(kind, name, data)] = listed(b"abc")
    directory = bytes([kind]) + name + struct.pack("<I", 3)
    frames.decode_frame(sealed(_start(), directory, data))
    with pytest.raises(DamagedFrame, match=says):
        frames.decode_frame(sealed(start, directory, data))


def test_a_directory_that_does_not_add_up_is_refused() -> None:
    [(kind, name, data)] = listed(b"abc")
    directory = bytes([kind]) + name + struct.pack("<I", 2)
    with pytest.raises(DamagedFrame, match="add up"):
        frames.decode_frame(sealed(_start(), directory, data))


def test_a_frame_does_not_decompress_to_more_than_it_says() -> None:
    body = codec.compress(bytes(50_000_000), 3)
    [(kind, name, _)] = listed(b"bomb")
    directory = bytes([kind]) + name + struct.pack("<I", 10_000)
    bomb = sealed(_start(method=1, raw=10_000, stored=len(body)), directory, body)
    with pytest.raises(DamagedFrame, match="does not end after 10000 bytes"):
        frames.decode_frame(bomb)


@pytest.mark.parametrize("last", [0, 3, 18, 19, 20])
def test_a_frame_can_be_read_up_to_a_slot(last: int) -> None:
    contents = listed(*(b"%d " % number * 500 for number in range(20)))
    frame = frames.decode_frame(frames.encode_frame(contents), last)
    for slot, (kind, name, data) in enumerate(contents):
        assert frame.reaches(slot) == (slot <= last)
        if slot <= last:
            assert frame.object(slot, kind, name) == data
