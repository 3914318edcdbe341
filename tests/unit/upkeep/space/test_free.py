"""Freeing: what is given back, what stays readable, and what happens beside it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import mulligan
from mulligan import Session, Store
from mulligan.engine import Engine
from mulligan.failpoints import Failpoint
from mulligan.model import Checkpoint, Digest, Location, ObjectKind
from mulligan.objects import holes, pack_space
from mulligan.testing.failpoints import fail_at
from mulligan.testing.stores import open_store
from mulligan.upkeep.space import free as freeing
from mulligan.upkeep.space.free import Freed, free
from mulligan.upkeep.space.gc import collect


def engine_of(store: Store) -> Engine:
    return store._engine


def assert_sound(store: Store) -> None:
    assert store.verify(full=True).problems == ()


def prune(store: Store, session: Session, *checkpoints: Checkpoint) -> None:
    engine = engine_of(store)
    with engine.read() as view:
        record = view.find(session.name)
    assert record is not None
    with engine.write(session=record.number) as txn:
        txn.prune(record.number, [checkpoint.seq for checkpoint in checkpoints])


@pytest.fixture(params=["disk", "memory"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    place = "memory:" if request.param == "memory" else str(tmp_path / "store")
    with mulligan.open(place) as opened:
        yield opened


def noise(seed: int, size: int) -> bytes:
    """Bytes that do not compress, so that sizes on disk can be told."""
    return Random(seed).randbytes(size)


def usage(store: Store) -> int:
    objects = engine_of(store).objects
    return sum(objects.area_usage(area) for area in objects.areas())


def packs(store: Store) -> list[int]:
    return engine_of(store).objects.areas()


def take(session: Session, work: Path, *contents: bytes) -> Checkpoint:
    for number, content in enumerate(contents):
        (work / f"file-{number}").write_bytes(content)
    return session.checkpoint()


def index(engine: Engine) -> dict[Digest, Location]:
    with engine.read() as view:
        return dict(view.locations())


def reclaim(store: Store) -> Freed:
    collect(engine_of(store))
    return free(engine_of(store))


def test_a_pruned_checkpoints_bytes_are_given_back(any_store: Store, work: Path) -> None:
    session = any_store.session("run", workspace=work)
    session.checkpoint()  # later trees may be patches to this one
    first = take(session, work, noise(1, 600_000))
    second = take(session, work, noise(2, 600_000))
    prune(any_store, session, first)
    before = usage(any_store)
    done = reclaim(any_store)
    assert done.total >= 500_000
    assert usage(any_store) <= before - 500_000
    assert_sound(any_store)
    (work / "file-0").unlink()
    session.restore(second)
    assert (work / "file-0").read_bytes() == noise(2, 600_000)


def test_nothing_is_freed_twice(store: Store, session: Session, work: Path) -> None:
    session.checkpoint()  # later trees may be patches to this one
    first = take(session, work, noise(1, 600_000))
    take(session, work, noise(2, 600_000))
    prune(store, session, first)
    assert reclaim(store).total > 0
    assert reclaim(store).total == 0


def test_what_was_stored_and_is_not_yet_committed_stays(tmp_path: Path, work: Path) -> None:
    """Two bundles share a pack; the second is committed, the first flushed, when freeing starts."""
    with open_store(tmp_path / "store") as store:
        engine = engine_of(store)
        with engine.pin():
            early = engine.bundle()
            data = noise(1, 300_000)
            digest = early.put(ObjectKind.CHUNK, data)
            early.flush()
            late = engine.bundle()
            late.put(ObjectKind.CHUNK, noise(2, 300_000))
            with engine.write(late):
                pass
            # It waits for this pin, so it gives up.
            assert free(engine, stop=lambda: True).stopped
            with engine.write(early):
                pass
        free(engine)
        assert engine.objects.get(ObjectKind.CHUNK, digest) == data


def test_a_bundle_that_was_given_up_is_freed(store: Store) -> None:
    engine = engine_of(store)
    with engine.pin():
        early = engine.bundle()
        early.put(ObjectKind.CHUNK, noise(1, 300_000))
        early.flush()
        late = engine.bundle()
        kept = late.put(ObjectKind.CHUNK, noise(2, 300_000))
        with engine.write(late):
            pass
    assert free(engine).extent_bytes >= 280_000
    assert engine.objects.get(ObjectKind.CHUNK, kept) == noise(2, 300_000)


def test_a_pack_without_live_frames_goes_and_its_number_is_not_used_again(
    tmp_path: Path, work: Path
) -> None:
    place = tmp_path / "store"
    with open_store(place) as store:
        engine = engine_of(store)
        with engine.pin(), engine.write(bundle := engine.bundle()):
            digest = bundle.put(ObjectKind.CHUNK, noise(1, 300_000))
        [number] = packs(store)
    with open_store(place) as store:
        assert digest in index(engine_of(store))
        done = reclaim(store)
        assert (done.areas, packs(store)) == (1, [])
        assert done.area_bytes >= 300_000
        session = store.session("run", workspace=work)
        take(session, work, b"new")
        assert min(packs(store)) > number
        assert_sound(store)


def test_a_pack_that_a_writer_owns_stays(store: Store, session: Session, work: Path) -> None:
    engine = engine_of(store)
    with engine.pin(), engine.write(bundle := engine.bundle()):
        bundle.put(ObjectKind.CHUNK, noise(1, 300_000))
    before = packs(store)
    done = reclaim(store)
    assert (done.areas, packs(store)) == (0, before)
    assert done.extent_bytes >= 280_000


def mixed(store: Store, session: Session, work: Path) -> Checkpoint:
    """Take two checkpoints that share frames, prune the first; most of each frame is dead then."""
    session.checkpoint()  # later trees may be patches to this one
    first = take(session, work, *(noise(n, 20_000) for n in range(60)))
    for number in range(60):
        if number % 10:
            (work / f"file-{number}").unlink()
    second = session.checkpoint()
    prune(store, session, first)
    return second


def restored(session: Session, work: Path, checkpoint: Checkpoint) -> None:
    for file in work.iterdir():
        file.unlink()
    session.restore(checkpoint)
    for number in range(0, 60, 10):
        assert (work / f"file-{number}").read_bytes() == noise(number, 20_000)


def test_live_objects_move_out_of_frames_that_are_mostly_dead(
    store: Store, session: Session, work: Path
) -> None:
    kept = mixed(store, session, work)
    done = reclaim(store)
    assert done.moved >= 6
    live = 6 * 20_000
    assert usage(store) <= 1.5 * live + 64_000
    assert_sound(store)
    restored(session, work, kept)


def test_a_filesystem_without_holes_gets_its_packs_rewritten(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_space, "punch", lambda *_: False)
    place = tmp_path / "store"
    with open_store(place) as store:
        session = store.session("run", workspace=work)
        kept = mixed(store, session, work)
    with open_store(place) as store:
        done = reclaim(store)
        assert done.areas == 1
        assert any("no holes" in reason for reason in done.skipped)
        assert usage(store) <= 1.5 * 6 * 20_000 + 64_000
        assert_sound(store)
        restored(store.session("run", workspace=work), work, kept)


def test_a_damaged_object_is_left_where_it_is(store: Store, session: Session, work: Path) -> None:
    mixed(store, session, work)
    engine = engine_of(store)
    collect(engine)
    places = index(engine)
    chunk = next(d for d, data in engine.objects.get_all(ObjectKind.CHUNK, places) if data)
    place = places[chunk]
    file = Path(str(engine.directory)) / "packs" / engine.objects.area_name(place.area)
    with file.open("rb+") as handle:
        handle.seek(place.offset + 1_000)
        handle.write(b"\xff" * (place.length - 1_000))
    free(engine)
    left = {d: p for d, p in index(engine).items() if p.offset == place.offset}
    assert left
    # Everything that can be read can still be read, and the damage is still reported.
    assert store.verify(full=True).problems != ()


def test_without_room_nothing_is_copied(
    store: Store, session: Session, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freeing, "MIN_ROOM", 1 << 62)
    kept = mixed(store, session, work)
    done = reclaim(store)
    assert done.moved == 0
    assert any("nearly full" in reason for reason in done.skipped)
    assert_sound(store)
    restored(session, work, kept)


def test_a_disk_that_fills_up_ends_the_copying(tmp_path: Path, work: Path) -> None:
    armed = False
    full = fail_at(Failpoint.PACK_FRAME_HALF_WRITTEN, OSError(errno.ENOSPC, "full"))

    def hook(point: Failpoint) -> None:
        if armed:
            full(point)

    with open_store(tmp_path / "store", failpoint=hook) as store:
        session = store.session("run", workspace=work)
        kept = mixed(store, session, work)
        collect(engine_of(store))
        armed = True
        done = free(engine_of(store))
        armed = False
        assert done.moved == 0
        assert any("full" in reason for reason in done.skipped)
        assert_sound(store)
        restored(session, work, kept)


def test_a_reader_finds_an_object_that_moved_after_its_look_up(
    store: Store, session: Session, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(store, session, work)
    engine = engine_of(store)
    collect(engine)
    before = index(engine)
    assert free(engine).moved
    moved = next(d for d, place in index(engine).items() if before.get(d) not in (None, place))
    objects = engine.objects
    real = objects.locate  # type: ignore[attr-defined]
    answers = [before[moved]]
    monkeypatch.setattr(objects, "locate", lambda d: answers.pop() if answers else real(d))
    kinds = (ObjectKind.VALUE, ObjectKind.CHUNK, ObjectKind.EVENTS)
    stored = {kind: dict(objects.get_all(kind, [moved])) for kind in kinds}
    kind = next(kind for kind, found in stored.items() if moved in found)
    assert objects.get(kind, moved) == stored[kind][moved]
    assert not answers


def test_the_tail_of_a_dead_writer_is_cut(tmp_path: Path, work: Path) -> None:
    place = tmp_path / "store"
    with open_store(place) as store:
        take(store.session("run", workspace=work), work, b"content")
    pack = next((place / ".mulligan" / "packs").iterdir())
    size = pack.stat().st_size
    with pack.open("ab") as file:
        file.write(b"torn" * 10_000)
    with open_store(place) as store:
        assert free(engine_of(store)).tail_bytes >= 32_000
        assert pack.stat().st_size == size
        assert_sound(store)


def test_a_hole_is_no_damage_and_damage_beside_it_is(
    store: Store, session: Session, work: Path
) -> None:
    session.checkpoint()  # later trees may be patches to this one
    first = take(session, work, noise(1, 600_000))
    take(session, work, noise(2, 600_000))
    prune(store, session, first)
    reclaim(store)
    assert_sound(store)
    engine = engine_of(store)
    last = max(index(engine).values(), key=lambda place: (place.length, place.offset))
    pack = Path(str(engine.directory)) / "packs" / engine.objects.area_name(last.area)
    with pack.open("rb+") as file:
        file.seek(last.offset)
        file.write(b"\0" * 32)
    assert store.verify(full=False).problems != ()


def test_a_hole_is_skipped_and_not_read(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb+") as file:
        file.truncate(1 << 40)
        file.seek((1 << 40) - 4096)
        file.write(b"x" * 4096)
        file.flush()
        assert holes.next_data(file.fileno(), 0, 1 << 40) > (1 << 39)
        assert holes.next_data(file.fileno(), 0, 100) == 100
