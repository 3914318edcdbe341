"""Which paths of trees and states are lost with an object."""

from __future__ import annotations

from pathlib import Path

import pytest

from mulligan import Digest, Store
from mulligan.codec import Ref
from mulligan.document.document import settle_root
from mulligan.engine import Engine
from mulligan.model import ObjectKind
from mulligan.testing.objects import noise
from mulligan.testing.stores import open_store
from mulligan.timeline.lost_objects import LostInState, LostInTrees


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


def forget(engine: Engine, *digests: Digest) -> None:
    """Take objects out of the index, as a repair does with damaged ones."""
    with engine.write() as txn:
        txn.condemn(digests)
        txn.set_phase("sweep")
        txn.sweep(digests)
        txn.set_phase("idle")


def stored(engine: Engine, value: object) -> Digest:
    with engine.pin():
        bundle = engine.bundle()
        digest = settle_root(value, lambda data: bundle.put(ObjectKind.VALUE, data))
        with engine.write(bundle):
            return digest


def tree_of(engine: Engine, store: Store, work: Path) -> Digest:
    tree = store.session("run", workspace=work).checkpoint().workspace
    assert tree is not None
    return tree


def test_nothing_is_lost_of_a_sound_tree(store: Store, work: Path) -> None:
    (work / "a").write_text("a")
    assert LostInTrees(store._engine).lost_in(tree_of(store._engine, store, work)) == []


def test_a_lost_chunk_costs_the_files_that_have_it(store: Store, work: Path) -> None:
    (work / "deep").mkdir()
    for name in ("one", "deep/two"):
        (work / name).write_text("the same")
    (work / "other").write_text("other")
    engine, tree = store._engine, tree_of(store._engine, store, work)
    with engine.read() as view:
        places = [digest for digest, _ in view.locations()]
    [chunk] = [
        d for d, data in engine.objects.get_all(ObjectKind.CHUNK, places) if data[:1] == b"t"
    ]
    forget(engine, chunk)
    lost = LostInTrees(engine)
    assert [path for path, _ in lost.lost_in(tree)] == [("deep", "two"), ("one",)]
    assert lost.missing == {chunk}


def test_a_lost_directory_is_one_path(store: Store, work: Path) -> None:
    for name in ("kept", "gone"):
        (work / name).mkdir()
        (work / name / "file").write_text(name)
    engine, tree = store._engine, tree_of(store._engine, store, work)
    held = store.session("run").files
    assert held.read("@latest", "gone/file") == b"gone"
    [gone] = [
        found.digest
        for name, found in _entries(engine, tree).items()
        if name == "gone" and isinstance(found, Ref)
    ]
    forget(engine, gone)
    assert LostInTrees(engine).lost_in(tree) == [(("gone",), None)]


def _entries(engine: Engine, tree: Digest) -> dict[str, object]:
    from mulligan import codec

    found = codec.decode(engine.load(tree))
    assert isinstance(found, dict)
    return found


def test_a_patch_hides_what_its_base_lost(store: Store, work: Path) -> None:
    engine = store._engine
    for number in range(300):
        (work / f"{number}").write_text(f"{number}")
    session = store.session("run", workspace=work)
    first = session.checkpoint().workspace
    (work / "7").write_text("changed")
    second = session.checkpoint().workspace
    assert first is not None
    assert second is not None
    with engine.read() as view:
        places = [digest for digest, _ in view.locations()]
    [chunk] = [d for d, data in engine.objects.get_all(ObjectKind.CHUNK, places) if data == b"7"]
    forget(engine, chunk)
    lost = LostInTrees(engine)
    assert [path for path, _ in lost.lost_in(first)] == [("7",)]
    assert lost.lost_in(second) == []


def test_a_lost_part_of_the_state_is_a_path(store: Store) -> None:
    engine = store._engine
    text = noise(6_000).hex()
    root = {"state": {"memory": {"long": text, "short": 1}, "list": [text[::-1]]}}
    digest = stored(engine, root)
    state = LostInState(engine)
    assert not state.lost_below(digest)
    with engine.read() as view:
        places = [found for found, _ in view.locations()]
    values = dict(engine.objects.get_all(ObjectKind.VALUE, places))
    lost = [d for d, data in values.items() if text[:50].encode() in data and d != digest]
    forget(engine, *lost)
    state = LostInState(engine)
    assert state.lost_below(digest)
    assert state.lost_paths(Ref(digest)) == ["memory/long"]
