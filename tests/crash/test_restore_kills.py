"""Processes are killed while they capture and restore files; the next open completes the work."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.store import Store
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from mulligan.workspace.restore import deleter
from mulligan.workspace.restore.swap import TEMPORARY_PREFIX
from tests.children import Tell, run_child
from tests.pictures import Picture, picture, without_times
from tests.scale import passes, times

RESTORE_POINTS = [point for point in Failpoint if point.name.startswith("RESTORE_")]
COMMIT_POINTS = [Failpoint.JOURNAL_BEFORE_COMMIT, Failpoint.JOURNAL_COMMITTED]


def drafts(work: Path) -> list[str]:
    return [
        path.name for path in work.rglob("*") if path.name.encode().startswith(TEMPORARY_PREFIX)
    ]


def make_first(work: Path, rng: random.Random, files: int) -> None:
    for place in ("", "src", "src/deep", "docs"):
        (work / place).mkdir(parents=True, exist_ok=True)
        for number in range(files):
            file = work / place / f"{number}.txt"
            file.write_bytes(rng.randbytes(rng.choice((0, 10, 5000))))
            os.utime(file, ns=(1, rng.randrange(2 * 10**18)))
    (work / "src" / "0.txt").chmod(0o755)
    (work / "link").symlink_to("src/0.txt")
    (work / "closed").mkdir()
    (work / "closed" / "file").write_bytes(b"closed")
    (work / "closed").chmod(0o500)
    (work / "swap").mkdir()
    (work / "swap" / "inner").write_bytes(b"a directory")


def make_second(work: Path, rng: random.Random, files: int) -> None:
    """Turn the first tree into another one: changes, additions, deletions, other kinds."""
    for place in ("", "src", "docs"):
        for number in range(0, files, 2):
            (work / place / f"{number}.txt").write_bytes(rng.randbytes(rng.choice((0, 10, 5000))))
        (work / place / "1.txt").unlink()
    shutil.rmtree(work / "src" / "deep")
    (work / "new" / "deep").mkdir(parents=True)
    for number in range(files):
        (work / "new" / "deep" / f"{number}.txt").write_bytes(rng.randbytes(100))
    (work / "link").unlink()
    (work / "link").symlink_to("new")
    (work / "closed").chmod(0o700)
    (work / "closed" / "file").write_bytes(b"changed")
    (work / "closed" / "more").write_bytes(b"more")
    (work / "closed").chmod(0o500)
    shutil.rmtree(work / "swap")
    (work / "swap").write_bytes(b"a file")


def prepare(tmp_path: Path, rng: random.Random, files: int) -> tuple[Path, dict[str, Picture]]:
    """Make a store with two checkpoints; what is there now is a third tree, in none of them."""
    work = tmp_path / "work"
    pictures = {}
    with mulligan.open(tmp_path / "store") as store:
        work.mkdir()
        session = store.session("run", workspace=work)
        for which, make in (("first", make_first), ("second", make_second)):
            make(work, rng, files)
            session.state.set("which", which)
            session.checkpoint(label=which)
            pictures[which] = picture(work)
        (work / "unsaved").write_bytes(b"in no checkpoint")
        (work / "src" / "0.txt").write_bytes(b"in no checkpoint")
        session.state.set("which", "present")
        pictures["present"] = picture(work)
    return work, pictures


def opened(store: Store, work: Path) -> Session:
    session = store.session("run", workspace=work)
    assert drafts(work) == []
    return session


def assert_consistent(session: Session, work: Path, pictures: dict[str, Picture]) -> str:
    """Check that the files are those that the state speaks of, all of them."""
    which: str = session.state.get("which")
    assert picture(work) == pictures[which], f"the files are not {which}"
    return which


# --- at every point --------------------------------------------------------------------------


@pytest.mark.parametrize("nth", passes(3))
@pytest.mark.parametrize("point", RESTORE_POINTS + COMMIT_POINTS)
@pytest.mark.parametrize("files", [3, 30], ids=["few files", "many files"])
def test_killed_at_a_point_of_a_restore(
    tmp_path: Path, point: Failpoint, nth: int, files: int
) -> None:
    work, pictures = prepare(tmp_path, random.Random(files), files)
    killed = run_child(lambda _: walk(tmp_path, work, kill_at(point, nth)))
    assert killed.by_sigkill, f"{point} was not reached {nth} times"
    with mulligan.open(tmp_path / "store") as store:
        assert store.verify().problems == ()
        session = opened(store, work)
        which = assert_consistent(session, work, pictures)
        assert which in ("present", "first")
        if session.internal.recovered is not None:
            assert session.internal.recovered.problems == ()
            assert which == ("present" if session.internal.recovered.mode == "undo" else "first")
        elif which == "present" and nth == 1:
            session.restore("first")  # it was never begun
        if which == "present" and session.internal.recovered is not None:
            session.redo()
        elif nth == 1:
            session.undo()
            assert assert_consistent(session, work, pictures) == "present"
            session.redo()
        assert store.verify().problems == ()
    # The next process has nothing left to do.
    with mulligan.open(tmp_path / "store") as store:
        session = opened(store, work)
        assert session.internal.recovered is None
        assert_consistent(session, work, pictures)


@pytest.mark.parametrize("point", RESTORE_POINTS)
def test_killed_while_others_delete_what_was_replaced(
    tmp_path: Path, point: Failpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleter, "SERIAL_SECONDS", -1.0)
    work, pictures = prepare(tmp_path, random.Random(11), 30)
    assert run_child(lambda _: walk(tmp_path, work, kill_at(point, 3))).by_sigkill
    with mulligan.open(tmp_path / "store") as store:
        session = opened(store, work)
        assert_consistent(session, work, pictures)
        assert store.verify().problems == ()


def walk(tmp_path: Path, work: Path, failpoint: FailpointHook) -> None:
    with open_store(tmp_path / "store", failpoint=failpoint) as store:
        session = store.session("run", workspace=work)
        session.restore("first")
        session.undo()
        session.redo()


@pytest.mark.parametrize("point", RESTORE_POINTS)
def test_killed_again_while_what_was_begun_is_finished(tmp_path: Path, point: Failpoint) -> None:
    work, pictures = prepare(tmp_path, random.Random(5), 5)
    first = run_child(lambda _: walk(tmp_path, work, kill_at(Failpoint.RESTORE_RENAMED, 4)))
    assert first.by_sigkill
    for _ in range(3):
        again = run_child(lambda _: open_only(tmp_path, work, kill_at(point)))
        assert again.by_sigkill or point.name.startswith(("RESTORE_TEMPORARY", "RESTORE_RENAMED"))
    with mulligan.open(tmp_path / "store") as store:
        session = opened(store, work)
        assert assert_consistent(session, work, pictures) == "first"
        session.undo()
        assert assert_consistent(session, work, pictures) == "present"
        assert store.verify().problems == ()


def open_only(tmp_path: Path, work: Path, failpoint: FailpointHook) -> None:
    with open_store(tmp_path / "store", failpoint=failpoint) as store:
        store.session("run", workspace=work)


@pytest.mark.parametrize("point", RESTORE_POINTS)
@pytest.mark.parametrize("only", [["src/2.txt", "link"], ["src"], ["swap", "closed"]], ids="+".join)
def test_killed_while_parts_are_restored(tmp_path: Path, point: Failpoint, only: list[str]) -> None:
    work, pictures = prepare(tmp_path, random.Random(6), 4)

    def body(_: Tell) -> None:
        with open_store(tmp_path / "store", failpoint=kill_at(point)) as store:
            store.session("run", workspace=work).restore("first", only=only)

    assert run_child(body).by_sigkill
    with mulligan.open(tmp_path / "store") as store:
        session = opened(store, work)
        assert session.internal.recovered is not None
        assert session.internal.recovered.problems == ()
        after = picture(work)
        for path in {*after, *pictures["first"]}:
            if any(path == p.encode() or path.startswith(p.encode() + b"/") for p in only):
                assert after.get(path) == pictures["first"].get(path)
        assert session.state.get("which") == "present"
        session.undo()
        assert picture(work) == pictures["present"]


def test_work_done_after_the_kill_is_kept_before_the_restore_is_finished(tmp_path: Path) -> None:
    work, pictures = prepare(tmp_path, random.Random(7), 4)
    point = kill_at(Failpoint.RESTORE_RENAMED, 3)
    assert run_child(lambda _: walk(tmp_path, work, point)).by_sigkill
    (work / "src" / "2.txt").write_bytes(b"edited by a person, who knew of nothing")
    (work / "src" / "added.txt").write_bytes(b"added by a person")
    with mulligan.open(tmp_path / "store") as store:
        session = opened(store, work)
        assert session.internal.recovered is not None
        assert assert_consistent(session, work, pictures) == "first"
        safety = session.internal.recovered.safety
        assert session.files.read(safety, "src/added.txt") == b"added by a person"
        assert session.files.read(safety, "src/2.txt").startswith(b"edited by a person")
        session.undo()
        assert assert_consistent(session, work, pictures) == "present"


@pytest.mark.parametrize("only", [None, ["0.txt", "link"]], ids=["everything", "parts"])
def test_no_draft_is_left_where_rules_hide_it_nor_kept_in_a_checkpoint(
    tmp_path: Path, only: list[str] | None
) -> None:
    work, _ = prepare(tmp_path, random.Random(9), 4)
    (work / ".mulliganignore").write_text(".*\n")

    def body(_: Tell) -> None:
        hook = kill_at(Failpoint.RESTORE_TEMPORARY_WRITTEN)
        with open_store(tmp_path / "store", failpoint=hook) as store:
            store.session("run", workspace=work).restore("first", only=only)

    assert run_child(body).by_sigkill
    assert len(drafts(work)) == 1
    with mulligan.open(tmp_path / "store") as store:
        session = opened(store, work)
        assert session.internal.recovered is not None
        session.files.copy(session.internal.recovered.safety, tmp_path / "copy")
        assert drafts(tmp_path / "copy") == []


@pytest.mark.parametrize("point", RESTORE_POINTS)
def test_killed_at_any_point_no_stale_cache_is_left(tmp_path: Path, point: Failpoint) -> None:
    work = tmp_path / "work"
    with mulligan.open(tmp_path / "store") as store:
        for name in ("a.py", "b.py", "src/a.py"):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text("x = 1\n")
        session = store.session("run", workspace=work)
        session.checkpoint(label="first")
        then = picture(work)
        for name in ("a.py", "src/a.py", "new/deep/a.py"):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text("x = 2\n")
            cache = (work / name).parent / "__pycache__"
            cache.mkdir()
            (cache / "a.cpython-311.pyc").write_text("of x = 2")
        (work / "__pycache__/b.cpython-311.pyc").write_text("of x = 1")

    def body(_: Tell) -> None:
        with open_store(tmp_path / "store", failpoint=kill_at(point)) as store:
            store.session("run", workspace=work).restore("first")

    assert run_child(body).by_sigkill
    with mulligan.open(tmp_path / "store") as store:
        session = opened(store, work)
        assert session.internal.recovered is not None
        assert session.internal.recovered.problems == ()
    assert picture(work, skip=(b"__pycache__",)) == then
    assert [path.name for path in work.rglob("*.pyc")] == ["b.cpython-311.pyc"]


@pytest.mark.parametrize("point", RESTORE_POINTS)
def test_killed_at_any_point_all_that_changes_is_touched(tmp_path: Path, point: Failpoint) -> None:
    work, pictures = prepare(tmp_path, random.Random(10), 4)
    old = 10**9
    for path in work.rglob("*.txt"):
        os.utime(path, ns=(old, old))

    def body(_: Tell) -> None:
        with open_store(tmp_path / "store", failpoint=kill_at(point)) as store:
            store.session("run", workspace=work).restore("first", touch=True)

    before = picture(work)
    assert run_child(body).by_sigkill
    with mulligan.open(tmp_path / "store") as store:
        session = opened(store, work)
        assert session.internal.recovered is not None
        assert session.internal.recovered.problems == ()
        after = picture(work)
        assert without_times(after) == without_times(pictures["first"])
        changed = {
            path
            for path, seen in after.items()
            if seen.kind == "file" and before.get(path, seen._replace(size=-1))[3:5] != seen[3:5]
        }
        assert changed
        for path in changed:
            assert after[path].mtime != pictures["first"][path].mtime
        session.undo()
        assert picture(work) == before


TORN = {
    "nothing": lambda _: b"",
    "its beginning": lambda whole: whole[:1024],
    "zeros": lambda whole: bytes(len(whole)),
    "zeros in it": lambda whole: whole[:512] + bytes(1024) + whole[1536:],
    "more zeros than there were bytes": lambda whole: bytes(len(whole) + 4096),
}


@pytest.mark.parametrize("left", TORN.values(), ids=TORN.keys())
def test_what_a_power_cut_left_of_a_successor_goes(
    tmp_path: Path, left: Callable[[bytes], bytes]
) -> None:
    work, whole = begun_with_one_file(tmp_path, Failpoint.RESTORE_TEMPORARY_WRITTEN)
    [draft] = work.glob(".mulligan-draft-*")
    draft.rename(draft.with_name(draft.name + ".swap")).write_bytes(left(whole))
    with mulligan.open(tmp_path / "store") as store:
        assert store.session("run").files.abandon() is not None
    assert drafts(work) == []


@pytest.mark.parametrize("left", [b"", bytes(4096)], ids=["nothing", "zeros"])
def test_what_a_power_cut_left_of_what_was_taken_out_goes(tmp_path: Path, left: bytes) -> None:
    """Names reach the disk before bytes do."""
    work, whole = begun_with_one_file(tmp_path, Failpoint.RESTORE_SWAPPED)
    [swap] = work.glob(".mulligan-draft-*.swap")
    swap.write_bytes(left)
    with mulligan.open(tmp_path / "store") as store:
        assert opened(store, work).internal.recovered is not None
    assert (work / "file").read_bytes() == whole


@pytest.mark.parametrize("point", [Failpoint.RESTORE_TEMPORARY_WRITTEN, Failpoint.RESTORE_SWAPPED])
def test_what_no_power_cut_can_have_left_stays(tmp_path: Path, point: Failpoint) -> None:
    work, whole = begun_with_one_file(tmp_path, point)
    [left] = work.glob(".mulligan-draft-*")
    swap = left.rename(left.with_name(left.name.removesuffix(".swap") + ".swap"))
    swap.write_bytes(whole[:1024] + b"somebody's work")
    with mulligan.open(tmp_path / "store") as store:
        assert store.session("run").files.abandon() is not None
    assert swap.read_bytes().endswith(b"somebody's work")


def begun_with_one_file(tmp_path: Path, point: Failpoint) -> tuple[Path, bytes]:
    """Have the restore of one file killed at a point; return the workspace and what was wanted."""
    work, whole = tmp_path / "work", random.Random(3).randbytes(5000)
    work.mkdir()
    (work / "file").write_bytes(whole)
    with mulligan.open(tmp_path / "store") as store:
        store.session("run", workspace=work).checkpoint(label="first")
    (work / "file").write_bytes(b"present")

    def body(_: Tell) -> None:
        with open_store(tmp_path / "store", failpoint=kill_at(point)) as store:
            store.session("run", workspace=work).restore("first", only=["file"])

    assert run_child(body).by_sigkill
    return work, whole


def test_a_killed_process_leaves_no_lock_behind(tmp_path: Path) -> None:
    work, _ = prepare(tmp_path, random.Random(8), 3)
    assert run_child(lambda _: walk(tmp_path, work, kill_at(Failpoint.RESTORE_WRITTEN))).by_sigkill
    with mulligan.open(tmp_path / "store") as store:
        assert opened(store, work).internal.recovered is not None
        assert opened(store, work).internal.recovered is None


# --- at any moment ---------------------------------------------------------------------------


def test_killed_at_any_moment_of_restores(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    work, pictures = prepare(tmp_path, rng, 30)
    finished = 0
    for _ in range(times(5)):
        killed = run_child(
            lambda tell: restore_for_ever(tmp_path, work, tell), seconds=rng.uniform(0, 0.12)
        )
        assert killed.by_sigkill
        with mulligan.open(tmp_path / "store") as store:
            session = opened(store, work)
            finished += session.internal.recovered is not None
            assert_consistent(session, work, pictures)
            for _ in range(2):
                session.undo()
                assert_consistent(session, work, pictures)
            assert store.verify(full=False).problems == ()
    print(f"{finished} restores were finished by the next open")
    with mulligan.open(tmp_path / "store") as store:
        assert store.verify().problems == ()


def restore_for_ever(tmp_path: Path, work: Path, tell: Tell) -> None:
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        session.restore("first")
        session.restore("second")
        tell("ready")
        while True:
            session.restore("first")
            session.undo()
            session.redo()
            session.restore("second")


def test_killed_at_any_moment_of_captures(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    work = tmp_path / "work"
    work.mkdir()
    for round_ in range(times(4)):
        killed = run_child(
            lambda tell, round_=round_: capture_for_ever(tmp_path, work, tell, round_),
            seconds=rng.uniform(0, 0.15),
        )
        assert killed.by_sigkill
        with mulligan.open(tmp_path / "store") as store:
            session = opened(store, work)
            assert store.verify().problems == ()
            for label in killed.told:
                assert session.files.read(label, "src/number") == label.encode() * 20
                assert len(session.files.read(label, "large")) == 1_500_000
            now = picture(work)
            assert session.diff(session.checkpoint()).files == ()
            session.restore(killed.told[-1])
            assert (work / "src" / "number").read_bytes() == killed.told[-1].encode() * 20
            session.undo()
            assert picture(work) == now


def capture_for_ever(tmp_path: Path, work: Path, tell: Tell, round_: int) -> None:
    with open_store(tmp_path / "store", failpoint=ignore) as store:
        session = store.session("run", workspace=work)
        rng = random.Random(round_)
        (work / "src").mkdir(exist_ok=True)
        for number in range(10**6):
            label = f"round {round_} number {number}"
            (work / "src" / "number").write_text(label * 20)
            (work / "large").write_bytes(rng.randbytes(1_500_000))
            session.checkpoint(label=label)
            session.close()  # the saved index is at stake, too
            tell(label)
