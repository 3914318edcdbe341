"""Torn writes, flipped bits and killed writers: never wrong bytes, never a lost commit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mulligan import codec
from mulligan.errors import DamagedObject, DamageError
from mulligan.failpoints import Failpoint
from mulligan.model import Digest
from mulligan.objects.frames import ENTRY_SIZE, FRAME_HEADER_SIZE, PACK_HEADER_SIZE
from mulligan.objects.packs import PackObjects
from mulligan.objects.scan import ScannedFrame, ScannedGap
from mulligan.testing.objects import MemoryIndex, noise

STORE = b"0123456789abcdef"
PACK_POINTS = [point for point in Failpoint if point.name.startswith("PACK_")]


def open_packs(directory: Path, index: MemoryIndex, **options: object) -> PackObjects:
    return PackObjects(directory, STORE, index.locate, index.committed, **options)  # type: ignore[arg-type]


def keep(store: PackObjects, index: MemoryIndex, *contents: bytes) -> list[Digest]:
    bundle = store.bundle()
    digests = [bundle.put(1, data) for data in contents]
    index.commit(bundle.flush())
    return digests


def copy_of(index: MemoryIndex) -> MemoryIndex:
    """Return a copy, so that a commit does not reach the original."""
    copy = MemoryIndex()
    copy.entries, copy.area_lengths = dict(index.entries), dict(index.area_lengths)
    return copy


def a_pack(directory: Path, index: MemoryIndex, *bundles: list[bytes]) -> bytes:
    """Write one pack of several frames and return its bytes."""
    store = open_packs(directory, index)
    for contents in bundles:
        keep(store, index, *contents)
    store.close()
    return (directory / "00000001.pack").read_bytes()


def answer(directory: Path, index: MemoryIndex, digest: Digest) -> bytes | None:
    """Return the object, or None where the store says that it is damaged."""
    store = open_packs(directory, index, read_only=True)
    try:
        return store.get(1, digest)
    except DamageError:
        return None
    finally:
        store.close()


FIRST, LAST = [b"one", b"two" * 40], [noise(60, 3), b"", b"four"]


def test_every_truncation_of_an_unacknowledged_frame_is_cut(tmp_path: Path) -> None:
    index = MemoryIndex()
    whole = a_pack(tmp_path, index, FIRST)
    path = tmp_path / "00000001.pack"
    longer = _with_another_frame(tmp_path, index)
    assert longer[: len(whole)] == whole
    for length in range(len(whole), len(longer) + 1):
        path.write_bytes(longer[:length])
        fresh = copy_of(index)
        store = open_packs(tmp_path, fresh)
        [digest] = keep(store, fresh, b"after the crash")
        assert fresh.entries[digest].offset == len(whole)
        assert path.stat().st_size == fresh.committed(1)
        assert store.get(1, digest) == b"after the crash"
        assert [store.get(1, codec.digest(1, data)) for data in FIRST] == FIRST
        store.close()


def _with_another_frame(directory: Path, index: MemoryIndex) -> bytes:
    store = open_packs(directory, index)
    bundle = store.bundle()
    for data in LAST:
        bundle.put(1, data)
    bundle.flush()
    store.close()
    return (directory / "00000001.pack").read_bytes()


def test_every_truncation_of_an_acknowledged_frame_is_damage_of_that_frame_only(
    tmp_path: Path,
) -> None:
    index = MemoryIndex()
    whole = a_pack(tmp_path, index, FIRST, LAST)
    start = index.entries[codec.digest(1, LAST[0])].offset
    path = tmp_path / "00000001.pack"
    for length in range(start, len(whole)):
        path.write_bytes(whole[:length])
        assert [answer(tmp_path, index, codec.digest(1, data)) for data in FIRST] == FIRST
        assert [answer(tmp_path, index, codec.digest(1, data)) for data in LAST] == [None] * 3
        store = open_packs(tmp_path, index)
        *frames, gap = store.scan(1, index.committed(1))
        assert isinstance(gap, ScannedGap)
        assert gap.offset + gap.length == len(whole)
        assert isinstance(frames[0], ScannedFrame)
        keep(store, copy_of(index), b"goes elsewhere")
        assert path.stat().st_size == length
        store.close()
        (tmp_path / "00000002.pack").unlink()


def test_one_flipped_bit_anywhere_never_returns_wrong_bytes(tmp_path: Path) -> None:
    index = MemoryIndex()
    contents = [*FIRST, *LAST]
    whole = a_pack(tmp_path, index, FIRST, LAST)
    path = tmp_path / "00000001.pack"
    for offset in range(len(whole)):
        for bit in (0, 3, 7):
            flipped = bytearray(whole)
            flipped[offset] ^= 1 << bit
            path.write_bytes(flipped)
            answers = [answer(tmp_path, index, codec.digest(1, data)) for data in contents]
            for data, got in zip(contents, answers, strict=True):
                assert got in (data, None), (offset, bit)
            if offset < PACK_HEADER_SIZE:
                assert answers == contents


def test_one_flipped_bit_in_a_header_or_directory_is_always_seen(tmp_path: Path) -> None:
    index = MemoryIndex()
    whole = a_pack(tmp_path, index, FIRST, LAST)
    path = tmp_path / "00000001.pack"
    digests = [codec.digest(1, data) for data in LAST]
    start = index.entries[digests[0]].offset
    for offset in range(start, start + FRAME_HEADER_SIZE + len(LAST) * ENTRY_SIZE):
        flipped = bytearray(whole)
        flipped[offset] ^= 4
        path.write_bytes(flipped)
        assert [answer(tmp_path, index, digest) for digest in digests] == [None] * 3, offset
        gaps = list(open_packs(tmp_path, index).scan(1))[1:]
        assert [type(item) for item in gaps] == [ScannedGap]
        assert gaps[0].offset == start


def test_one_flipped_bit_in_each_region_of_a_large_pack(tmp_path: Path) -> None:
    index = MemoryIndex()
    bundles = [
        [noise(300_000, n) for n in range(5)],
        [b"%d, " % n * 5_000 for n in range(100)],
        [noise(2_000_000, 99)],
    ]
    contents = [data for bundle in bundles for data in bundle]
    whole = a_pack(tmp_path, index, *bundles)
    path = tmp_path / "00000001.pack"
    digests = [codec.digest(1, data) for data in contents]
    step = len(whole) // 150
    lost = 0
    for offset in range(PACK_HEADER_SIZE + 5, len(whole), step):
        flipped = bytearray(whole)
        flipped[offset] ^= 0x20
        path.write_bytes(flipped)
        hit = [d for d in digests if _covers(index, d, offset)]
        answers = {digest: answer(tmp_path, index, digest) for digest in (hit[0], hit[-1])}
        for digest, got in answers.items():
            assert got in (contents[digests.index(digest)], None)
        report = {
            entry.digest
            for item in open_packs(tmp_path, index).scan(1)
            if isinstance(item, ScannedFrame)
            for slot, entry in enumerate(item.entries)
            if slot not in item.damage
        }
        assert {digest for digest, got in answers.items() if got is not None} <= report
        assert not {digest for digest, got in answers.items() if got is None} & report
        assert set(digests) - set(hit) <= report
        lost += len(set(digests) - report)
    assert lost >= 150


def _covers(index: MemoryIndex, digest: Digest, offset: int) -> bool:
    location = index.entries[digest]
    return location.offset <= offset < location.offset + location.length


def killed_at(point: Failpoint) -> Callable[[Failpoint], None]:
    def failpoint(reached: Failpoint) -> None:
        if reached is point:
            os.kill(os.getpid(), signal.SIGKILL)

    return failpoint


@pytest.mark.parametrize("point", PACK_POINTS)
def test_a_writer_killed_at_any_point_leaves_a_store_that_goes_on(
    tmp_path: Path, point: Failpoint
) -> None:
    index = MemoryIndex()
    if point is not Failpoint.PACK_CREATED:
        a_pack(tmp_path, index, FIRST)
    if point is Failpoint.PACK_TAIL_CUT:
        with (tmp_path / "00000001.pack").open("ab") as file:
            file.write(b"FRM1 and then the power went")
    acknowledged = dict(index.entries)
    end = max(index.committed(1), PACK_HEADER_SIZE)

    pid = os.fork()
    if pid == 0:
        try:
            keep(open_packs(tmp_path, index, failpoint=killed_at(point)), index, *LAST)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

    store = open_packs(tmp_path, index)
    for digest in acknowledged:
        assert codec.digest(1, store.get(1, digest)) == digest
    digests = keep(store, index, *LAST)
    assert [store.get(1, digest) for digest in digests] == LAST
    assert index.entries[digests[0]].offset == end
    assert store.areas() == [1]
    assert store.area_size(1) == index.committed(1)
    assert all(isinstance(item, ScannedFrame) and not item.damage for item in store.scan(1))
    store.close()


def test_damage_in_one_object_leaves_its_neighbours_readable(tmp_path: Path) -> None:
    index = MemoryIndex()
    contents = [noise(500, n) for n in range(4)]
    whole = bytearray(a_pack(tmp_path, index, contents))
    body = PACK_HEADER_SIZE + FRAME_HEADER_SIZE + 4 * ENTRY_SIZE
    whole[body + 700] ^= 1
    (tmp_path / "00000001.pack").write_bytes(whole)
    store = open_packs(tmp_path, index)
    with pytest.raises(DamagedObject, match="do not match its digest"):
        store.get(1, codec.digest(1, contents[1]))
    for n in (0, 2, 3):
        assert store.get(1, codec.digest(1, contents[n])) == contents[n]
