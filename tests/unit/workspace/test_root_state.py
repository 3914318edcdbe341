"""Sessions of one process that have the same directory share its index and its watcher."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from mulligan import Session, Store, codec
from mulligan.errors import MulliganError
from mulligan.model import Digest, ObjectKind
from mulligan.store import engine_of
from mulligan.testing.stores import open_store
from mulligan.upkeep import delete_checkpoints
from mulligan.upkeep.space import gc as collector
from mulligan.upkeep.space.deleted import remove_deleted
from mulligan.upkeep.space.gc import collect
from mulligan.workspace.capture.index import Index, packed_stat
from mulligan.workspace.capture.scan import Scan
from mulligan.workspace.root_state import RootState
from mulligan.workspace.watch.watcher import Watcher, available

FILES = 40


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def tree(work: Path) -> Path:
    for number in range(FILES):
        (work / f"f{number:02}").write_text(f"{number}")
    return work


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scans of a whole tree, and those of single paths, in order."""
    done: list[str] = []
    everything, paths = Scan.everything, Scan.paths
    monkeypatch.setattr(Scan, "everything", lambda s: [done.append("all"), everything(s)][1])
    monkeypatch.setattr(Scan, "paths", lambda s, *a: [done.append("some"), paths(s, *a)][1])
    return done


def state(session: Session) -> RootState:
    assert session._workspace is not None
    return session._workspace._state


def content(session: Session, path: str) -> str:
    return session.files.read("@latest", path).decode()


def test_a_second_session_continues_from_the_index_of_the_first(
    store: Store, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Path] = []
    monkeypatch.setattr(
        "mulligan.workspace.workspace.load_index", lambda file, _: loads.append(file)
    )
    known: list[bool] = []
    init = Scan.__init__

    def begin(self: Scan, root: bytes, index: object, rules: object) -> None:
        known.append(index is not None)
        init(self, root, index, rules)  # type: ignore[arg-type]

    monkeypatch.setattr(Scan, "__init__", begin)
    one = store.session("one", workspace=tree)
    one.checkpoint()
    (tree / "f00").write_text("changed")
    two = store.session("two", workspace=tree.parent / "." / tree.name)
    first = len(known)
    two.checkpoint()
    assert state(one) is state(two)
    assert len(loads) == 1
    # The first scan of each: directories that change meanwhile are looked at again.
    assert (known[0], known[first]) == (False, True)
    assert content(two, "f00") == "changed"
    assert content(one, "f00") == "0"
    assert store.verify().ok


@pytest.mark.skipif(not available(), reason="needs inotify")
def test_there_is_one_watcher_and_the_last_session_ends_it(
    store: Store, tree: Path, scans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Watcher] = []
    start = Watcher.start
    monkeypatch.setattr(Watcher, "start", lambda self: [started.append(self), start(self)][1])
    sessions = [store.session(f"s{number}", workspace=tree) for number in range(3)]
    for session in sessions:
        session.internal.watch()
        session.checkpoint()
    if state(sessions[0]).watcher is None or sessions[0]._workspace.unwatched:  # type: ignore[union-attr]
        pytest.skip("this file system cannot be watched")
    assert len(started) == 1
    assert scans == ["all", "some", "some"]
    for number, session in enumerate(sessions):
        (tree / "f01").write_text(f"by {number}")
        session.checkpoint()
        assert content(session, "f01") == f"by {number}"
    for session in sessions[:2]:
        session.close()
        session.close()
        assert state(sessions[2]).watcher is not None
    sessions[2].close()
    assert state(sessions[2]).watcher is None
    # A later one starts again, from the index that is there.
    scans.clear()
    later = store.session("later", workspace=tree)
    later.checkpoint()
    assert scans == ["all"]
    assert state(later).watcher is None


@pytest.mark.skipif(not available(), reason="needs inotify")
def test_each_session_looks_for_changes_of_its_own(store: Store, tree: Path) -> None:
    one, two = (store.session(name, workspace=tree) for name in ("one", "two"))
    one.internal.watch()
    one.checkpoint()
    if one.internal.look_for_changes() is None:
        pytest.skip("this file system cannot be watched")
    assert two.internal.look_for_changes() is True  # it has no checkpoint of it
    two.checkpoint()
    assert [s.internal.look_for_changes() for s in (one, two)] == [False, False]
    (tree / "f02").write_text("changed")
    assert [s.internal.look_for_changes() for s in (one, two)] == [True, True]
    assert [s.internal.look_for_changes() for s in (one, two)] == [False, False]
    (tree / "f02").write_text("changed again")
    one.checkpoint()
    # What the capture of the other session has found is news for this one.
    assert [s.internal.look_for_changes() for s in (one, two)] == [False, True]
    two.checkpoint()
    assert content(two, "f02") == "changed again"


def test_concurrent_captures_of_two_sessions_hold_what_was_there(store: Store, tree: Path) -> None:
    """Each thread writes its own file, and takes a checkpoint that must have it."""
    rounds = 15
    barrier = threading.Barrier(3)

    def work(name: str) -> list[tuple[str, str]]:
        session = store.session(name, workspace=tree)
        session.internal.watch()
        taken: list[tuple[str, str]] = []
        for number in range(rounds):
            barrier.wait()
            (tree / name).write_text(f"{name} {number}")
            taken.append((session.checkpoint().id, f"{name} {number}"))
        session.close()
        return taken

    with ThreadPoolExecutor(3) as pool:
        taken = dict(zip("abc", pool.map(work, "abc"), strict=True))
    for name, points in taken.items():
        session = store.session(name)
        for identity, expected in points:
            assert session.files.read(identity, name).decode() == expected
            assert session.files.read(identity, "f39") == b"39"
    assert store.verify().problems == ()


def test_a_capture_that_fails_is_forgotten_by_all_sessions(
    store: Store, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (store.session(name, workspace=tree) for name in ("one", "two"))
    one.checkpoint()
    (tree / "f03").write_text("lost " * 5_000)
    with monkeypatch.context() as patch:
        patch.setattr(one._writer, "commit", _fails)
        with pytest.raises(OSError, match="on purpose"):
            one.checkpoint()
    two.checkpoint()
    assert content(two, "f03") == "lost " * 5_000
    assert store.verify().problems == ()


def _fails(*_: object) -> None:
    raise OSError("on purpose")


def test_a_restore_of_one_session_is_seen_by_the_other(store: Store, tree: Path) -> None:
    one, two = (store.session(name, workspace=tree) for name in ("one", "two"))
    for session in (one, two):
        session.internal.watch()
    one.checkpoint(label="before")
    (tree / "f04").write_text("after")
    two.checkpoint(label="after")
    one.restore("before")
    assert (tree / "f04").read_text() == "4"
    two.checkpoint()
    assert content(two, "f04") == "4"
    two.restore("after")
    assert (tree / "f04").read_text() == "after"
    one.checkpoint()
    assert content(one, "f04") == "after"
    assert store.verify().problems == ()


def test_a_forked_process_does_not_wait_for_a_lock_of_its_parent(store: Store, tree: Path) -> None:
    session = store.session("one", workspace=tree)
    session.checkpoint()
    with state(session).lock():
        child = os.fork()
        if not child:
            # The lock of the parent's thread is copied as held, but its owner is not here.
            with ThreadPoolExecutor(1) as pool:
                pool.submit(store.session("child", workspace=tree).checkpoint).result()
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert content(store.session("child"), "f05") == "5"


def test_sessions_that_are_dropped_leave_no_state(store: Store, tree: Path) -> None:
    session = store.session("one", workspace=tree)
    session.checkpoint()
    roots = store._roots
    assert roots is not None
    assert len(roots._states) == 1
    del session
    import gc

    gc.collect()
    assert len(roots._states) == 0


def test_a_whole_tree_of_a_second_session_has_what_changed_since_the_base_of_the_first(
    tmp_path: Path, work: Path
) -> None:
    (work / "there").mkdir()
    for number in range(5):
        (work / f"there/f{number}").write_text(str(number))
    with open_store(tmp_path / "store") as store:
        one, two = (store.session(name, workspace=work) for name in ("one", "two"))
        one.internal.watch()
        one.checkpoint()
        (work / "there/f0").unlink()
        (work / "there/f1").write_text("changed")
        one.checkpoint()  # a patch
        taken = two.checkpoint()  # nothing changed since: all of it is in the edits
        assert content(two, "there/f1") == "changed"
        assert two.diff(taken, "one:@latest").files == ()
        with pytest.raises(MulliganError):
            two.files.read(taken, "there/f0")


def test_an_index_of_a_base_tree_that_lacks_files_is_not_used(store: Store, work: Path) -> None:
    """Two processes have an index of a directory each; that of the first is of the base tree."""
    session = store.session("based", workspace=work)
    (work / "file").write_text("first")
    first = session.checkpoint()
    shared = state(session)
    assert shared.index is not None
    assert shared.index.tree == first.workspace
    older = msgspec.msgpack.decode(msgspec.msgpack.encode(shared.index), type=Index)
    (work / "file").write_text("second")
    session.checkpoint()
    delete_checkpoints(store, session, [first])
    collect(engine_of(store))
    (work / "file").write_text("first")
    # As if nothing had changed since the index was made.
    seen = older.leaf(b"file")
    assert seen is not None
    seen.stat = packed_stat((work / "file").stat())
    older.taken, shared.index = time.time_ns() + 10**9, older
    again = session.checkpoint()
    assert store.verify(full=True).problems == ()
    (work / "file").unlink()
    session.restore(again)
    assert (work / "file").read_text() == "first"


def test_an_index_of_a_tree_that_was_collected_in_part_is_not_used(
    store: Store, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collection is stopped after the content of a file has gone, and before the tree has."""
    # Objects go in the order of their digests.
    text = next(text for text in map(str, range(10**6)) if chunk(text)[:2] == bytes(2))
    kept, deleted = (store.session(name, workspace=work) for name in ("kept", "deleted"))
    kept.checkpoint()
    (work / "file").write_text(text)
    deleted.checkpoint()
    index = state(kept).index
    assert index is not None
    # As if some time had passed between the write and the checkpoint.
    index.taken = time.time_ns() + 10**9
    deleted.close()
    store.delete("deleted")
    remove_deleted(engine_of(store))
    monkeypatch.setattr(collector, "SLICE_OBJECTS", 1)
    objects = engine_of(store).objects
    assert collect(engine_of(store), lambda: not objects.has(chunk(text))).stopped
    kept.checkpoint()
    assert store.verify(full=True).problems == ()
    assert content(kept, "file") == text


def chunk(text: str) -> Digest:
    return codec.digest(ObjectKind.CHUNK, text.encode())


def test_sessions_that_take_turns_store_changes_only(tmp_path: Path, work: Path) -> None:
    """Each patches the same base, so two sessions store about as much as one."""
    for number in range(400):
        (work / f"f{number}").write_text(f"{number}")
    grown = [_bytes_of_turns(tmp_path / str(count), work, count) for count in (1, 2)]
    assert grown[1] < 1.5 * grown[0]


def _bytes_of_turns(place: Path, work: Path, count: int) -> int:
    """Return how many bytes of packs twelve checkpoints add, which sessions take in turn."""
    with open_store(place) as store:
        sessions = [store.session(f"s{number}", workspace=work) for number in range(count)]
        for session in sessions:
            session.checkpoint()
        before = _size(place)
        for number in range(12):
            (work / "f3").write_text(f"turn {number} of {count}")
            sessions[number % count].checkpoint()
        return _size(place) - before


def _size(place: Path) -> int:
    return sum(file.stat().st_size for file in place.rglob("*.pack"))
