"""Damage heals: content that is found damaged is stored again when it is captured again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import mulligan
from mulligan import Session, Store
from mulligan.errors import DamagedObject
from mulligan.store import engine_of
from mulligan.testing.objects import noise
from mulligan.testing.stores import open_store
from mulligan.upkeep.space.gc import collect
from mulligan.workspace.workspace import Workspace
from tests.damage import flip_object

BIG = noise(300_000, 7)
OTHER = noise(200_000, 8)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "big.bin").write_bytes(BIG)
    (work / "other.bin").write_bytes(OTHER)
    return work


@pytest.fixture
def store(tmp_path: Path, work: Path) -> Iterator[Store]:
    with mulligan.open(tmp_path / "store") as opened:
        yield opened


def opened(store: Store, work: Path) -> Session:
    return store.session("run", workspace=work)


def damage(store: Store, content: bytes) -> None:
    """Flip a bit of the stored chunk that begins like the content."""
    flip_object(engine_of(store), content)


def noted(store: Store) -> int:
    with engine_of(store).read() as view:
        return len(list(view.damaged()))


def restored(session: Session, point: str, to: Path) -> dict[str, bytes]:
    session.files.copy(point, to)
    return {path.name: path.read_bytes() for path in to.iterdir() if path.is_file()}


def test_a_chunk_that_verify_found_damaged_is_stored_by_the_next_capture(
    store: Store, work: Path, tmp_path: Path
) -> None:
    session = opened(store, work)
    session.checkpoint(label="before")
    damage(store, BIG)
    found = store.verify()
    assert [problem.fault for problem in found.problems] == ["object"]
    assert noted(store) == 1
    # The file did not change since; its content is stored again all the same.
    session.checkpoint(label="after")
    assert store.verify().ok
    assert noted(store) == 0
    for number, point in enumerate(("before", "after")):
        assert restored(session, point, tmp_path / f"to-{number}")["big.bin"] == BIG


def test_the_next_process_heals_what_an_earlier_one_found(tmp_path: Path, work: Path) -> None:
    with mulligan.open(tmp_path / "store") as store:
        opened(store, work).checkpoint(label="before")
        damage(store, BIG)
    with mulligan.open(tmp_path / "store") as store:
        assert not store.verify().ok
    with mulligan.open(tmp_path / "store") as store:
        opened(store, work).checkpoint()
        assert store.verify().ok


def test_the_structure_check_repeats_what_is_noted_until_it_is_healed(
    store: Store, work: Path
) -> None:
    session = opened(store, work)
    session.checkpoint()
    damage(store, BIG)
    assert store.verify(full=False).ok  # it reads no bytes
    store.verify()
    [problem] = store.verify(full=False).problems
    assert (problem.fault, problem.what) == ("object", "object")
    assert problem.digest is not None
    [again] = store.verify(sample=1.0).problems
    assert again.digest == problem.digest
    session.checkpoint()
    assert store.verify(full=False).ok


def test_damage_that_a_read_finds_is_noted_and_healed(
    store: Store, work: Path, tmp_path: Path
) -> None:
    session = opened(store, work)
    session.checkpoint(label="before")
    damage(store, BIG)
    with pytest.raises(DamagedObject):
        session.files.read("before", "big.bin")
    session.checkpoint()
    assert store.verify().ok


def test_a_value_is_healed_when_it_is_written_again(store: Store) -> None:
    session = store.session("run")
    text = "a long text " * 20_000
    session.state.set("text", text)
    flip_object(engine_of(store), text.encode())
    assert not store.verify().ok
    session.state.set("again", text)
    assert store.verify().ok


def test_unhealable_damage_costs_one_full_read_and_not_more(
    store: Store, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(store, work)
    session.checkpoint()
    damage(store, BIG)
    (work / "big.bin").unlink()
    store.verify()
    session.checkpoint()
    assert noted(store) == 1
    resets: list[Workspace] = []
    real = Workspace._reset

    def counted(workspace: Workspace) -> None:
        resets.append(workspace)
        real(workspace)

    monkeypatch.setattr(Workspace, "_reset", counted)
    session.checkpoint()
    assert resets == []
    store.verify()  # the same damage again
    session.checkpoint()
    assert resets == []


def test_a_note_is_dropped_when_the_object_proves_intact(store: Store, work: Path) -> None:
    session = opened(store, work)
    session.checkpoint()
    engine = engine_of(store)
    with engine.read() as view:
        some = next(view.locations())[0]
    engine.note_damaged([some])
    assert not store.verify(full=False).ok
    assert store.verify().ok
    assert noted(store) == 0
    assert store.verify(full=False).ok


def test_collected_objects_are_not_noted_any_more(tmp_path: Path, work: Path) -> None:
    with open_store(tmp_path / "store") as store:
        engine = engine_of(store)
        with engine.pin():
            bundle = engine.bundle()
            digest = bundle.put(2, BIG)
            with engine.write(bundle):
                pass
        engine.note_damaged([digest])
        assert noted(store) == 1
        collect(engine)
        assert noted(store) == 0
        assert not engine.objects.has(digest)


def test_a_read_only_store_notes_nothing(tmp_path: Path, work: Path) -> None:
    with mulligan.open(tmp_path / "store") as store:
        opened(store, work).checkpoint()
        damage(store, BIG)
    with mulligan.open(tmp_path / "store", read_only=True) as store:
        assert not store.verify().ok
        assert noted(store) == 0


def test_a_failed_copy_of_files_is_healed(store: Store, work: Path, tmp_path: Path) -> None:
    session = opened(store, work)
    session.checkpoint(label="before")
    damage(store, BIG)
    [problem] = session.files.copy("before", tmp_path / "to")
    assert problem.where == "big.bin"
    session.checkpoint()
    assert store.verify().ok


@pytest.mark.parametrize("lost", ["header", "pack"])
def test_lost_frames_and_packs_are_healed(tmp_path: Path, work: Path, lost: str) -> None:
    with mulligan.open(tmp_path / "store") as store:
        opened(store, work).checkpoint(label="before")
    [pack] = (tmp_path / "store" / ".mulligan" / "packs").iterdir()
    if lost == "pack":
        pack.unlink()
    else:
        data = bytearray(pack.read_bytes())
        data[32:36] = b"gone"  # the beginning of the first frame
        pack.write_bytes(data)
    with mulligan.open(tmp_path / "store") as store:
        assert not store.verify().ok
        session = opened(store, work)
        session.checkpoint(label="after")
        assert store.verify().problems == ()
        for point in ("before", "after"):
            assert restored(session, point, tmp_path / point)["big.bin"] == BIG
