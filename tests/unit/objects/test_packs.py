"""Packs: who owns them, what is written where, what is read once."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mulligan import codec
from mulligan.errors import (
    DamagedObject,
    DamagedPack,
    DiskFull,
    MissingObject,
    ReadOnlyStore,
    StoreClosed,
    StoreUnwritable,
)
from mulligan.failpoints import Failpoint
from mulligan.model import Digest, Location, ObjectKind
from mulligan.objects import frames
from mulligan.objects.frames import ENTRY_SIZE
from mulligan.objects.pack_reader import CACHE_BYTES, KEPT_BYTES, OPEN_FILES
from mulligan.objects.pack_writer import START_SYNC, OwnPack
from mulligan.objects.packs import (
    FRAME_TARGET,
    MAX_HANDED,
    MAX_SEALED,
    VALUE_TARGET,
    PackObjects,
)
from mulligan.objects.protocol import Flushed
from mulligan.objects.scan import ScannedFrame, ScannedGap
from mulligan.testing.objects import MemoryIndex, noise

STORE = b"0123456789abcdef"


class Place:
    """A directory of packs with its index, and any number of handles on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.index = MemoryIndex()
        self.opened: list[PackObjects] = []

    def open(self, **options: Any) -> PackObjects:
        index = self.index
        store = PackObjects(self.directory, STORE, index.locate, index.committed, **options)
        self.opened.append(store)
        return store

    def keep(self, store: PackObjects, *contents: bytes, kind: int = 1) -> Flushed:
        bundle = store.bundle()
        for data in contents:
            bundle.put(kind, data)
        flushed = bundle.flush()
        self.index.commit(flushed)
        return flushed

    def pack(self, number: int) -> Path:
        return self.directory / f"{number:08x}.pack"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    for store in place.opened:
        store.close()


def in_child(work: Callable[[], None]) -> None:
    """Run something in a forked process and fail when it failed there."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


class At:
    """A hook that does something at the first arrival at a failpoint, and counts them all."""

    def __init__(self, point: Failpoint | None = None, act: Callable[[], None] = int) -> None:
        self.point = point
        self.act = act
        self.seen: list[Failpoint] = []

    def __call__(self, point: Failpoint) -> None:
        self.seen.append(point)
        if point is self.point:
            self.point = None
            self.act()


def fail(code: int) -> Callable[[], None]:
    def act() -> None:
        raise OSError(code, os.strerror(code))

    return act


# Owning a pack


def test_a_new_pack_is_private_and_has_its_header(place: Place) -> None:
    place.keep(place.open(), b"content")
    path = place.pack(1)
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    frames.check_pack_header(path.read_bytes()[:32], 1, STORE)


def test_nothing_is_made_or_locked_before_the_first_write(place: Place) -> None:
    store = place.open()
    store.bundle().put(1, b"pending")
    assert not store.has(codec.digest(1, b"other"))
    assert store.areas() == []


def test_two_handles_write_to_two_packs(place: Place) -> None:
    one, two = place.open(), place.open()
    assert list(place.keep(one, b"one").area_lengths) == [1]
    assert list(place.keep(two, b"two").area_lengths) == [2]
    assert list(place.keep(one, b"one more").area_lengths) == [1]


def test_a_released_pack_is_taken_up_again(place: Place) -> None:
    first = place.open()
    length = place.keep(first, b"one").area_lengths[1]
    first.close()
    second = place.open()
    entries = place.keep(second, b"two").entries
    assert entries[codec.digest(1, b"two")].offset == length
    assert second.get(1, codec.digest(1, b"one")) == b"one"


def test_what_was_never_acknowledged_is_cut_from_a_pack_taken_up(place: Place) -> None:
    first = place.open()
    length = place.keep(first, b"acknowledged").area_lengths[1]
    lost = first.bundle()
    lost.put(1, noise(5_000))
    lost.flush()
    first.close()
    hook = At()
    flushed = place.keep(place.open(failpoint=hook), b"next")
    assert flushed.entries[codec.digest(1, b"next")].offset == length
    assert place.pack(1).stat().st_size == flushed.area_lengths[1]
    assert hook.seen[0] is Failpoint.PACK_TAIL_CUT


def test_a_pack_in_use_is_never_cut(place: Place) -> None:
    owner, other = place.open(), place.open()
    bundle = owner.bundle()
    digest = bundle.put(1, b"flushed and about to be committed")
    flushed = bundle.flush()
    assert list(place.keep(other, b"other").area_lengths) == [2]
    place.index.commit(flushed)
    assert other.get(1, digest) == b"flushed and about to be committed"


def test_a_pack_shorter_than_acknowledged_is_left_alone(place: Place) -> None:
    first = place.open()
    length = place.keep(first, noise(1_000)).area_lengths[1]
    first.close()
    os.truncate(place.pack(1), length - 1)
    assert list(place.keep(place.open(), b"next").area_lengths) == [2]
    assert place.pack(1).stat().st_size == length - 1


@pytest.mark.parametrize(
    "header",
    [
        frames.encode_pack_header(1, b"another store id"),
        frames.encode_pack_header(9, STORE),
        b"?" * 32,
    ],
    ids=["another store", "another number", "not a pack"],
)
def test_a_pack_with_a_header_that_is_not_ours_is_left_alone(place: Place, header: bytes) -> None:
    content = header + b"whatever it is, it is not ours to cut"
    place.pack(1).write_bytes(content)
    assert list(place.keep(place.open(), b"content").area_lengths) == [2]
    assert place.pack(1).read_bytes() == content


@pytest.mark.parametrize("length", [0, 1, 31])
def test_a_pack_whose_maker_died_over_its_header_is_adopted(place: Place, length: int) -> None:
    place.pack(1).write_bytes(frames.encode_pack_header(1, STORE)[:length])
    store = place.open()
    assert list(place.keep(store, b"content").area_lengths) == [1]
    assert store.get(1, codec.digest(1, b"content")) == b"content"
    frames.check_pack_header(place.pack(1).read_bytes()[:32], 1, STORE)


def test_the_number_of_a_lost_pack_is_not_used_again(place: Place) -> None:
    first = place.open()
    place.keep(first, b"lost")
    first.close()
    place.pack(1).unlink()
    assert list(place.keep(place.open(), b"next").area_lengths) == [2]
    assert not place.pack(1).exists()


def test_a_symbolic_link_is_not_followed_for_writing(place: Place, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    place.pack(1).symlink_to(victim)
    assert list(place.keep(place.open(), b"content").area_lengths) == [2]
    assert victim.read_bytes() == b""


def test_a_file_locked_by_another_before_its_maker_is_left_to_it(place: Place) -> None:
    """Whoever made pack 1 has not locked it yet, and another process did."""
    place.pack(1).touch()
    with place.pack(1).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert list(place.keep(place.open(), b"content").area_lengths) == [2]
        assert place.pack(1).stat().st_size == 0


def test_a_full_pack_is_followed_by_the_next(place: Place) -> None:
    store = place.open(pack_limit=20_000)
    numbers = [next(iter(place.keep(store, noise(9_000, n)).area_lengths)) for n in range(6)]
    assert numbers == [1, 1, 1, 2, 2, 2]
    assert all(store.get(1, codec.digest(1, noise(9_000, n))) for n in range(6))


def test_a_full_pack_is_unlocked_once_all_of_it_is_committed(place: Place) -> None:
    store = place.open(pack_limit=100)
    place.keep(store, noise(200, 1))
    place.keep(store, noise(200, 2))
    assert not is_locked(place.pack(1))
    assert is_locked(place.pack(2))


def test_a_full_pack_stays_locked_while_flushed_frames_are_uncommitted(place: Place) -> None:
    store = place.open(pack_limit=100)
    late = store.bundle()
    digest = late.put(1, noise(200, 1))
    flushed = late.flush()
    place.keep(store, noise(200, 2))
    assert is_locked(place.pack(1))
    generous = place.open(pack_limit=10_000)
    place.keep(generous, noise(200, 3))
    place.index.commit(flushed)
    assert generous.get(1, digest) == noise(200, 1)


def test_a_bundle_over_two_packs_reports_both(place: Place) -> None:
    store = place.open(pack_limit=1_000_000)
    flushed = place.keep(store, *(noise(700_000, n) for n in range(4)))
    assert flushed.area_lengths == {n: place.pack(n).stat().st_size for n in (1, 2)}
    assert flushed.size == sum(flushed.area_lengths.values()) - 2 * 32


def test_close_unlocks(place: Place) -> None:
    store = place.open()
    place.keep(store, b"content")
    assert is_locked(place.pack(1))
    store.close()
    assert not is_locked(place.pack(1))


# Fork


def test_close_unlocks_though_a_child_inherited_the_file(place: Place) -> None:
    store = place.open()
    place.keep(store, b"content")
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(wait, 1)
        os._exit(0)
    try:
        store.close()
        assert not is_locked(place.pack(1))
    finally:
        os.close(go)
        os.close(wait)
        os.waitpid(pid, 0)


def test_a_forked_child_takes_a_pack_of_its_own(place: Place) -> None:
    store = place.open()
    place.keep(store, b"parent")

    def child() -> None:
        assert store.get(1, codec.digest(1, b"parent")) == b"parent"
        assert list(place.keep(store, b"child").area_lengths) == [2]
        assert store.get(1, codec.digest(1, b"child")) == b"child"

    in_child(child)
    assert list(place.keep(store, b"parent again").area_lengths) == [1]


@pytest.mark.parametrize("use", ["close", "write"])
def test_a_child_does_not_unlock_the_pack_of_its_parent(place: Place, use: str) -> None:
    store = place.open()
    place.keep(store, b"parent")
    in_child(lambda: store.close() if use == "close" else place.keep(store, b"child") and None)
    assert is_locked(place.pack(1))


def test_a_child_is_not_stopped_by_a_lock_held_in_the_parent(place: Place) -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        leave.wait()

    store = place.open(failpoint=At(Failpoint.PACK_FRAME_HALF_WRITTEN, hold))
    thread = threading.Thread(target=place.keep, args=(store, b"parent"))
    thread.start()
    inside.wait()
    try:
        in_child(lambda: place.keep(store, b"child") and None)
    finally:
        leave.set()
        thread.join()
    assert store.get(1, codec.digest(1, b"parent")) == b"parent"


def test_a_bundle_does_not_cross_a_fork(place: Place) -> None:
    store = place.open()
    bundle = store.bundle()
    bundle.put(1, b"pending")

    def child() -> None:
        with pytest.raises(StoreClosed, match="process that started it"):
            bundle.flush()

    in_child(child)
    assert len(bundle.flush().entries) == 1


def test_what_lies_after_the_objects_that_were_asked_for_can_be_read_all_the_same(
    place: Place,
) -> None:
    contents = [b"%d " % number * 300 for number in range(50)]
    digests = [codec.digest(2, data) for data in contents]
    place.keep(place.open(), *contents, kind=2)
    store = place.open()
    for asked in ([3, 7], [20], [1], []):
        assert len(store.sort_by_location(digests[n] for n in asked)) == len(asked)
        for number in (*asked, 9, 49, 0, 30):
            assert store.get(2, digests[number]) == contents[number]
        store.sort_by_location([digests[2]])
        assert len(list(store.get_all(2, digests))) == 50
        store = place.open()


# Writing


def test_small_objects_share_a_frame_and_large_ones_stand_alone(place: Place) -> None:
    contents = [*(noise(1_000, n) for n in range(20)), noise(FRAME_TARGET + 1), b"after"]
    flushed = place.keep(place.open(), *contents)
    locations = [flushed.entries[codec.digest(1, data)] for data in contents]
    assert [place.slot for place in locations] == [*range(20), 0, 0]
    assert len({place.offset for place in locations}) == 3


def test_no_frame_of_several_objects_is_larger_than_the_target(place: Place) -> None:
    store = place.open()
    contents = [*(noise(60_000, n) for n in range(60)), *(b"%d" % n for n in range(40_000))]
    place.keep(store, *contents, kind=ObjectKind.CHUNK)
    sizes = [scanned.length for scanned in store.scan(1)]
    assert max(sizes) <= FRAME_TARGET + 32
    total = sum(len(data) + ENTRY_SIZE for data in contents)
    assert len(sizes) <= 1.3 * total / FRAME_TARGET


def test_values_are_kept_in_small_frames_also_beside_chunks(place: Place) -> None:
    store = place.open()
    bundle = store.bundle()
    for n in range(400):
        bundle.put(ObjectKind.VALUE if n < 200 or n % 50 == 0 else ObjectKind.CHUNK, noise(2000, n))
    place.index.commit(bundle.flush())
    found = [scanned for scanned in store.scan(1) if isinstance(scanned, ScannedFrame)]
    kinds = [(frame.length, {entry.kind for entry in frame.entries}) for frame in found]
    assert max(length for length, kind in kinds if ObjectKind.VALUE in kind) <= VALUE_TARGET + 32
    assert len(kinds) < 20


def test_what_the_store_has_is_not_written_again_however_much_comes_with_it(place: Place) -> None:
    store = place.open()
    known, new = [noise(5000, n) for n in range(500)], [noise(5000, n) for n in range(500, 600)]
    place.keep(store, *known, kind=ObjectKind.CHUNK)
    mixed = [data for pair in zip(known[::5], new, strict=True) for data in pair]
    flushed = place.keep(store, *mixed, *known, kind=ObjectKind.CHUNK)
    assert flushed.entries.keys() == {codec.digest(ObjectKind.CHUNK, data) for data in new}
    assert all(store.get(2, codec.digest(2, data)) == data for data in [*known, *new])


def test_objects_are_read_in_the_order_in_which_they_lie(place: Place) -> None:
    store = place.open()
    contents = [noise(300_000, n) for n in range(12)]
    flushed = place.keep(store, *contents, kind=ObjectKind.CHUNK)
    absent = codec.digest(2, b"never put")
    wanted = [absent, *sorted(flushed.entries)]
    assert store.sort_by_location(wanted) == [*(codec.digest(2, data) for data in contents), absent]
    assert [store.get(2, digest) for digest in store.sort_by_location(wanted)[:-1]] == contents
    with pytest.raises(MissingObject):
        store.get(2, absent)


def test_an_object_that_was_moved_since_it_was_looked_up_is_found(place: Place) -> None:
    store = place.open()
    first = place.keep(store, noise(1000, 1), kind=ObjectKind.CHUNK)
    (digest,) = first.entries
    assert store.sort_by_location([digest]) == [digest]
    index, place.index.entries = place.index.entries, {}
    place.keep(store, noise(1000, 1), kind=ObjectKind.CHUNK)
    assert place.index.entries[digest] != index[digest]
    with place.pack(1).open("r+b") as pack:
        pack.seek(index[digest].offset)
        pack.write(bytes(index[digest].length))
    assert store.get(ObjectKind.CHUNK, digest) == noise(1000, 1)


def test_the_reported_size_is_what_the_pack_grew_by(place: Place) -> None:
    flushed = place.keep(place.open(), *(noise(400_000, n) for n in range(8)))
    assert flushed.area_lengths == {1: 32 + flushed.size}
    assert place.pack(1).stat().st_size == 32 + flushed.size


def test_a_flush_syncs_once_and_only_when_something_was_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), real(fd)))
    store = place.open()
    bundle = store.bundle()
    for n in range(8):
        bundle.put(1, noise(400_000, n))
    place.index.commit(bundle.flush())
    assert len(synced) == 1
    bundle.flush()
    place.keep(store, noise(400_000, 1))
    assert len(synced) == 1


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="there is no way to ask for it")
@pytest.mark.parametrize("refused", [False, True])
def test_much_is_written_in_the_background_before_it_is_synced(
    place: Place, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    asked: list[tuple[int, int]] = []
    synced: list[int] = []
    real = os.fdatasync

    def advise(fd: int, start: int, length: int, advice: int) -> None:
        asked.append((start, start + length))
        if refused:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), real(fd)))
    contents = [noise(START_SYNC // 4, seed) for seed in range(9)]
    flushed = place.keep(place.open(), *contents, kind=2)
    assert [start for start, _ in asked] == [32, asked[0][1]]
    assert START_SYNC <= asked[0][1] <= asked[1][1] - START_SYNC <= flushed.area_lengths[1]
    assert len(synced) == 1


def test_a_new_pack_is_durable_by_name_before_anything_is_in_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    real = os.fsync

    def recorded(fd: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(fd).st_mode))
        real(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    seen: list[list[bool]] = []
    hook = At(Failpoint.PACK_CREATED, lambda: seen.append(list(synced)))
    place.keep(place.open(failpoint=hook), b"content")
    assert seen == [[False, True]]


def test_a_pack_taken_up_before_its_first_commit_is_made_durable_by_name(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.pack(1).write_bytes(frames.encode_pack_header(1, STORE))
    synced: list[bool] = []
    real = os.fsync

    def recorded(fd: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(fd).st_mode))
        real(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    assert list(place.keep(place.open(), b"content").area_lengths) == [1]
    assert synced == [True]


def test_writes_that_the_kernel_takes_piece_by_piece_are_completed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:1_000], at))
    store = place.open()
    [digest] = place.keep(store, noise(50_000)).entries
    assert store.get(1, digest) == noise(50_000)


def test_the_crash_points_of_a_write_come_in_order(place: Place) -> None:
    hook = At()
    place.keep(place.open(failpoint=hook), b"content")
    assert hook.seen == [
        Failpoint.PACK_CREATED,
        Failpoint.PACK_FRAME_HALF_WRITTEN,
        Failpoint.PACK_FRAME_WRITTEN,
        Failpoint.PACK_SYNCED,
    ]


def test_half_of_the_frame_is_in_the_file_at_the_half_way_point(place: Place) -> None:
    sizes: list[int] = []
    hook = At(Failpoint.PACK_FRAME_HALF_WRITTEN, lambda: sizes.append(place.pack(1).stat().st_size))
    flushed = place.keep(place.open(failpoint=hook), noise(1_000))
    assert sizes == [32 + flushed.size // 2]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_loses_nothing_and_the_bundle_can_be_flushed_later(
    place: Place, code: int
) -> None:
    store = place.open(failpoint=At(Failpoint.PACK_FRAME_HALF_WRITTEN, fail(code)))
    bundle = store.bundle()
    digest = bundle.put(1, noise(1_000))
    with pytest.raises(DiskFull, match=r"00000001\.pack"):
        bundle.flush()
    assert place.pack(1).stat().st_size == 32
    place.index.commit(bundle.flush())
    assert place.index.entries[digest].offset == 32
    assert store.get(1, digest) == noise(1_000)


def test_a_large_object_that_met_a_full_disk_is_not_lost(place: Place) -> None:
    store = place.open(failpoint=At(Failpoint.PACK_FRAME_HALF_WRITTEN, fail(errno.ENOSPC)))
    bundle = store.bundle()
    digest = bundle.put(1, noise(2_000_000))
    with pytest.raises(DiskFull):
        bundle.flush()
    place.index.commit(bundle.flush())
    assert store.get(1, digest) == noise(2_000_000)


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_the_kernel_really_cuts_short_is_undone(place: Place) -> None:
    store = place.open()
    before = place.keep(store, b"before").area_lengths[1]
    bundle = store.bundle()
    digest = bundle.put(1, noise(500_000))
    with file_size_limit(100_000), pytest.raises(OSError, match="too large"):
        bundle.flush()
    assert place.pack(1).stat().st_size == before
    place.index.commit(bundle.flush())
    assert store.get(1, digest) == noise(500_000)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_directory_that_cannot_be_written_is_a_read_only_store(place: Place, code: int) -> None:
    store = place.open(failpoint=At(Failpoint.PACK_CREATED, fail(code)))
    with pytest.raises(ReadOnlyStore):
        place.keep(store, b"content")


def test_other_errors_of_the_system_are_not_dressed_up(place: Place) -> None:
    store = place.open(failpoint=At(Failpoint.PACK_FRAME_HALF_WRITTEN, fail(errno.EMFILE)))
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        place.keep(store, b"content")


def test_a_fault_of_the_disk_can_be_tried_again(place: Place) -> None:
    store = place.open(failpoint=At(Failpoint.PACK_FRAME_HALF_WRITTEN, fail(errno.EIO)))
    with pytest.raises(StoreUnwritable, match=os.strerror(errno.EIO)) as caught:
        place.keep(store, b"content")
    assert caught.value.retryable


def test_a_pack_whose_sync_failed_is_not_trusted_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = place.open()
    committed = place.keep(store, b"safe").area_lengths[1]
    waiting = store.bundle()
    for seed in range(MAX_SEALED + 1):  # so that the first of them is written
        waiting.put(1, noise(FRAME_TARGET + 1, seed=seed))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: fail(errno.EIO)())
        with pytest.raises(StoreUnwritable, match=os.strerror(errno.EIO)):
            place.keep(store, b"unsynced")
    # A sync would succeed now, but the pages that the kernel dropped would still be lost.
    with pytest.raises(StoreUnwritable, match="earlier sync"):
        waiting.flush()
    assert list(place.keep(store, b"next").area_lengths) == [2]
    assert place.index.committed(1) == committed
    assert store.get(1, codec.digest(1, b"safe")) == b"safe"


def test_whoever_puts_does_not_wait_for_a_helper_that_is_behind(place: Place) -> None:
    store = place.open()
    bundle = store.bundle()
    contents = [noise(FRAME_TARGET + 1, seed=seed) for seed in range(2 * MAX_HANDED)]
    go_on = threading.Event()
    store.handles().helper.do(go_on.wait, 60)
    for data in contents:
        bundle.put(2, data)
    was_free = not go_on.is_set() and not store.areas()
    go_on.set()
    assert was_free
    flushed = bundle.flush()
    place.index.commit(flushed)
    assert [store.get(2, codec.digest(2, data)) for data in contents] == contents
    assert [flushed.entries[codec.digest(2, data)].offset for data in contents] == sorted(
        place.offset for place in flushed.entries.values()
    )


def test_an_object_put_again_is_written_once_wherever_it_is_by_then(place: Place) -> None:
    store = place.open()
    place.keep(store, b"known", kind=2)
    bundle = store.bundle()
    contents = [b"known", *(noise(FRAME_TARGET // 2, seed=seed) for seed in range(12)), b"last"]
    for _ in range(3):
        for data in contents:
            bundle.put(2, data)
    once = bundle.flush()
    for data in contents:
        bundle.put(2, data)
    assert bundle.flush() == once
    assert once.entries.keys() == {codec.digest(2, data) for data in contents[1:]}


def test_a_read_only_store_reads_and_refuses_to_write(place: Place) -> None:
    place.keep(place.open(), b"content")
    store = place.open(read_only=True)
    bundle = store.bundle()
    known = bundle.put(1, b"content")
    assert bundle.get(1, known) == b"content"
    assert bundle.flush() == Flushed({}, {}, 0)
    bundle.put(1, b"new")
    with pytest.raises(ReadOnlyStore):
        bundle.flush()
    assert store.areas() == [1]


# Reading


def test_flushed_objects_are_not_found_before_the_journal_commits(place: Place) -> None:
    store = place.open()
    bundle = store.bundle()
    digest = bundle.put(1, b"content")
    flushed = bundle.flush()
    assert not store.has(digest)
    with pytest.raises(MissingObject):
        store.get(1, digest)
    place.index.commit(flushed)
    assert store.get(1, digest) == b"content"


def test_neighbours_read_in_order_decompress_each_frame_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = [(b"%d " % n) * (64_000 // len(b"%d " % n)) for n in range(400)]
    place.keep(place.open(), *contents, kind=ObjectKind.CHUNK)
    calls: list[int] = []
    real = codec.decompress

    def counted(data: bytes, size: int) -> bytes:
        calls.append(size)
        return real(data, size)

    monkeypatch.setattr(codec, "decompress", counted)
    reader = place.open(read_only=True)
    assert [reader.get(2, codec.digest(2, data)) for data in contents] == contents
    assert len(calls) == len(list(reader.scan(1, bodies=False)))
    assert len(contents) // 5 < len(calls) < len(contents) // 3


def test_the_frames_kept_in_memory_are_bounded(place: Place) -> None:
    contents = [noise(900_000, n) for n in range(30)]
    large = noise(CACHE_BYTES * 3 // 4)
    place.keep(place.open(), *contents, large)
    reader = place.open(read_only=True)
    for data in contents:
        assert reader.get(1, codec.digest(1, data)) == data
    held = reader.handles().reader
    before = list(held._frames)
    assert reader.get(1, codec.digest(1, large)) == large
    assert list(held._frames) == before
    assert CACHE_BYTES // 2 < held._cached <= CACHE_BYTES
    assert held._cached == sum(frame.cost for frame in held._frames.values())


def test_fewer_frames_are_kept_in_memory_after_a_write(place: Place) -> None:
    """A long-lived writer reads a little of many frames; what it kept of them grew to 24 MB."""
    contents = [noise(300_000, n) for n in range(30)]
    store = place.open()
    place.keep(store, *contents)
    for data in contents:
        assert store.get(1, codec.digest(1, data)) == data
    held = store.handles().reader
    assert held._cached > KEPT_BYTES
    place.keep(store, noise(100, 99))
    assert 0 < held._cached <= KEPT_BYTES
    assert held._cached == sum(frame.cost for frame in held._frames.values())
    assert store.get(1, codec.digest(1, contents[0])) == contents[0]


def test_the_files_kept_open_are_bounded(place: Place) -> None:
    store = place.open(pack_limit=50)
    contents = [noise(100, n) for n in range(OPEN_FILES + 20)]
    for data in contents:
        place.keep(store, data)
    before = len(os.listdir("/proc/self/fd"))
    reader = place.open(read_only=True)
    assert [reader.get(1, codec.digest(1, data)) for data in contents] == contents
    assert len(os.listdir("/proc/self/fd")) - before == OPEN_FILES
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_missing_pack_is_named_with_the_object(place: Place) -> None:
    place.keep(place.open(), b"content")
    place.pack(1).unlink()
    digest = codec.digest(1, b"content")
    with pytest.raises(MissingObject, match=rf"{digest.hex()}.*00000001\.pack"):
        place.open().get(1, digest)


def test_damage_is_named_with_object_pack_and_offset(place: Place) -> None:
    flushed = place.keep(place.open(), noise(100))
    [(digest, location)] = flushed.entries.items()
    damaged = bytearray(place.pack(1).read_bytes())
    damaged[-1] ^= 1
    place.pack(1).write_bytes(damaged)
    with pytest.raises(DamagedObject, match=rf"{digest.hex()}.*00000001\.pack.*offset 32") as info:
        place.open().get(1, digest)
    assert location.offset == 32
    assert info.value.hint


def test_a_pack_replaced_by_a_symbolic_link_is_damage(place: Place, tmp_path: Path) -> None:
    place.keep(place.open(), b"content")
    place.pack(1).rename(tmp_path / "elsewhere")
    place.pack(1).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedObject, match=r"00000001\.pack"):
        place.open().get(1, codec.digest(1, b"content"))


@pytest.mark.parametrize(
    "wrong",
    [
        Location(1, 0, 100, 0),
        Location(1, -5, 100, 0),
        Location(1, 33, 100, 0),
        Location(1, 32, 1 << 50, 0),
        Location(1, 32, 0, 0),
        Location(1, 1 << 40, 100, 0),
    ],
)
def test_an_index_that_points_nowhere_is_damage_and_not_a_crash(
    place: Place, wrong: Location
) -> None:
    [digest] = place.keep(place.open(), b"content").entries
    place.index.entries[digest] = wrong
    with pytest.raises(DamagedObject, match=digest.hex()):
        place.open().get(1, digest)


def test_a_pack_replaced_on_disk_is_read_anew(place: Place) -> None:
    """What a handle keeps of an old file never stands in the way of the new one."""
    writer = place.open()
    [old] = place.keep(writer, noise(100, 1)).entries
    reader = place.open(read_only=True)
    assert reader.get(1, old) == noise(100, 1)
    other = Place(place.directory / "other")
    other.directory.mkdir()
    [new] = other.keep(other.open(), noise(100, 2)).entries
    other.pack(1).rename(place.pack(1))
    place.index.entries[new] = other.index.entries[new]
    assert reader.get(1, new) == noise(100, 2)


def test_threads_read_through_more_packs_than_stay_open(place: Place) -> None:
    store = place.open(pack_limit=50)
    contents = [noise(3_000, n) for n in range(OPEN_FILES * 2)]
    for data in contents:
        place.keep(store, data)
    wrong: list[Digest] = []

    def work(start: int) -> None:
        for n in range(len(contents) * 3):
            data = contents[(start + n * 7) % len(contents)]
            digest = codec.digest(1, data)
            try:
                if store.get(1, digest) != data:
                    wrong.append(digest)
            except DamagedObject:
                wrong.append(digest)

    threads = [threading.Thread(target=work, args=(n * 11,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Scanning


def test_a_scan_finds_every_object_where_the_index_has_it(place: Place) -> None:
    store = place.open()
    for n in range(5):
        place.keep(store, noise(300_000, n), b"small %d" % n, b"zip" * n * 1000)
    found = {}
    for frame in store.scan(1, place.index.committed(1)):
        assert isinstance(frame, ScannedFrame)
        assert frame.damage == {}
        for slot, entry in enumerate(frame.entries):
            found[entry.digest] = frame.location(slot)
            assert len(store.get(entry.kind, entry.digest)) == entry.length
    assert found == place.index.entries


def test_a_scan_without_bodies_finds_the_same(place: Place) -> None:
    store = place.open()
    place.keep(store, *(noise(300_000, n) for n in range(9)))
    unchecked = [msgspec.structs.replace(frame, is_checked=False) for frame in store.scan(1)]
    assert list(store.scan(1, bodies=False)) == unchecked


def test_a_scan_checks_the_bodies_that_are_picked(place: Place) -> None:
    store = place.open()
    place.keep(store, *(noise(300_000, n) for n in range(4)))
    picks = iter([False, True, True, False])
    frames = list(store.scan(1, bodies=lambda: next(picks)))
    assert [isinstance(f, ScannedFrame) and f.is_checked for f in frames] == [
        False,
        True,
        True,
        False,
    ]


def test_a_scan_stops_at_the_acknowledged_end(place: Place) -> None:
    store = place.open()
    end = place.keep(store, b"acknowledged").area_lengths[1]
    bundle = store.bundle()
    bundle.put(1, b"not acknowledged")
    bundle.flush()
    assert len(list(store.scan(1, end))) == 1
    assert len(list(store.scan(1))) == 2


@pytest.mark.parametrize("bodies", [True, False])
def test_a_frame_across_the_acknowledged_end_is_a_gap(place: Place, bodies: bool) -> None:
    store = place.open()
    end = place.keep(store, noise(500)).area_lengths[1] - 1
    [gap] = store.scan(1, end, bodies=bodies)
    assert isinstance(gap, ScannedGap)
    assert (gap.offset, gap.length) == (32, end - 32)
    assert "beyond the end" in gap.detail


def _three_frames(place: Place) -> list[int]:
    store = place.open()
    for n in range(3):
        place.keep(store, noise(200, 10 + n), noise(300, 20 + n))
    store.close()
    return [scanned.offset for scanned in place.open(read_only=True).scan(1)]


def _flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def test_a_damaged_body_is_reported_by_object_and_the_scan_goes_on(place: Place) -> None:
    offsets = _three_frames(place)
    _flip(place.pack(1), offsets[2] - 1)
    scanned = list(place.open().scan(1))
    assert [type(item) for item in scanned] == [ScannedFrame] * 3
    assert [list(item.damage) for item in scanned if isinstance(item, ScannedFrame)] == [
        [],
        [1],
        [],
    ]
    assert all(
        item.damage == {}
        for item in place.open().scan(1, bodies=False)
        if isinstance(item, ScannedFrame)
    )


def test_a_body_that_does_not_decompress_damages_all_its_objects(place: Place) -> None:
    store = place.open()
    place.keep(store, b"a" * 5_000, b"b" * 5_000)
    end = place.index.committed(1)
    body = 32 + 32 + 2 * 37
    content = bytearray(place.pack(1).read_bytes())
    content[body:end] = bytes(end - body)
    place.pack(1).write_bytes(content)
    [frame] = store.scan(1, end)
    assert isinstance(frame, ScannedFrame)
    assert list(frame.damage) == [0, 1]


@pytest.mark.parametrize("into", [0, 10, 25, 40])
def test_after_a_damaged_header_the_scan_finds_the_next_frame(place: Place, into: int) -> None:
    offsets = _three_frames(place)
    _flip(place.pack(1), offsets[1] + into)
    scanned = list(place.open().scan(1))
    assert [item.offset for item in scanned] == offsets
    assert [type(item) for item in scanned] == [ScannedFrame, ScannedGap, ScannedFrame]
    assert sum(item.length for item in scanned) + 32 == place.pack(1).stat().st_size


def test_a_frame_is_found_again_across_the_border_of_a_search_window(place: Place) -> None:
    store = place.open()
    place.keep(store, noise((1 << 20) - 32 - 37 - 1))
    place.keep(store, b"next")
    first, second = store.scan(1)
    assert (second.offset - (first.offset + 1)) % (1 << 20) == (1 << 20) - 2
    _flip(place.pack(1), first.offset)
    gap, again = store.scan(1)
    assert isinstance(gap, ScannedGap)
    assert again == second


def test_a_damaged_pack_header_is_a_gap_and_the_frames_are_still_found(place: Place) -> None:
    _three_frames(place)
    _flip(place.pack(1), 3)
    gap, *found = place.open().scan(1)
    assert gap == ScannedGap(1, 0, 32, "the file does not begin like a pack")
    assert [type(item) for item in found] == [ScannedFrame] * 3


@pytest.mark.parametrize("length", [0, 20, 32, 100])
def test_a_pack_that_is_too_short_ends_in_a_gap(place: Place, length: int) -> None:
    _three_frames(place)
    end = place.index.committed(1)
    os.truncate(place.pack(1), length)
    scanned = list(place.open().scan(1, end))
    last = scanned[-1]
    assert isinstance(last, ScannedGap)
    assert last.offset + last.length == end
    assert str(length) in last.detail


def test_a_missing_pack_is_named_by_scan_and_size(place: Place) -> None:
    store = place.open()
    with pytest.raises(DamagedPack, match=r"00000007\.pack"):
        store.scan(7)
    with pytest.raises(DamagedPack, match=r"00000007\.pack"):
        store.area_size(7)


def test_numbers_and_sizes_are_those_of_the_files(place: Place) -> None:
    store = place.open(pack_limit=50)
    for n in range(3):
        place.keep(store, noise(100 + n, n))
    (place.directory / "notes.txt").touch()
    assert store.areas() == [1, 2, 3]
    assert {n: store.area_size(n) for n in store.areas()} == place.index.area_lengths
    assert place.open().areas() == store.areas()


def test_a_directory_that_is_gone_holds_no_packs(tmp_path: Path) -> None:
    index = MemoryIndex()
    store = PackObjects(tmp_path / "absent", STORE, index.locate, index.committed)
    assert store.areas() == []


def test_a_pack_whose_constructor_a_signal_ended_is_dropped_in_silence() -> None:
    object.__new__(OwnPack).__del__()
