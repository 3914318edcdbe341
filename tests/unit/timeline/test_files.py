"""The files of points after a restore: what it brought back, wherever they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mulligan import Session, Store
from mulligan.errors import InvalidMark, MulliganError
from mulligan.failpoints import Failpoint
from mulligan.model import Digest
from mulligan.testing.stores import open_store


class Hook:
    """Raises at a failpoint when it is told to."""

    point: Failpoint | None = None

    def __call__(self, reached: Failpoint) -> None:
        if reached is self.point:
            self.point = None
            raise RuntimeError(f"interrupted at {reached}")


@pytest.fixture
def hook() -> Hook:
    return Hook()


@pytest.fixture
def store(tmp_path: Path, hook: Hook) -> Iterator[Store]:
    with open_store(tmp_path / "store", failpoint=hook) as store:
        yield store


@pytest.fixture
def session(store: Store, work: Path) -> Session:
    """A session that was good at ``A``, went bad, and was brought back to ``A`` at its end."""
    session = store.session("run", workspace=work)
    (work / "f").write_text("good")
    session.checkpoint(label="A")
    (work / "f").write_text("bad")
    session.restore("A")
    return session


def text_at(session: Session, point: object) -> str:
    return session.files.read(point, "f").decode()  # type: ignore[arg-type]


def test_a_point_after_a_restore_has_what_it_brought_back(
    session: Session, store: Store, work: Path, tmp_path: Path
):
    after = session.head
    assert [text_at(session, seq) for seq in (2, 3, 4, 5)] == ["good", "bad", "bad", "good"]
    assert not session.diff("A", after)
    assert [change.path for change in session.diff(3, after).files] == ["f"]
    assert session.files.copy(after, tmp_path / "copy") == []
    assert (tmp_path / "copy/f").read_text() == "good"
    branch = session.fork(after, workspace=tmp_path / "branch")
    assert (tmp_path / "branch/f").read_text() == "good"
    assert text_at(branch, branch.head) == "good"
    held = session.internal.files_at(after)
    assert held is not None
    assert (held.seq, held.checkpoint) == (5, None)
    (work / "f").write_text("later")
    assert [change.path for change in session.files.plan(after).files] == ["f"]
    session.restore(after)
    assert (work / "f").read_text() == "good"
    assert store.verify().ok


def test_undo_and_redo_are_restores_too(session: Session, work: Path):
    session.undo()
    undone = session.head
    session.redo()
    redone = session.head
    assert [text_at(session, point) for point in (undone, redone)] == ["bad", "good"]
    session.restore(undone)
    assert (work / "f").read_text() == "bad"


def test_a_part_that_was_brought_back_is_among_the_files_of_then(session: Session, work: Path):
    (work / "f").write_text("worse")
    (work / "g").write_text("new")
    session.restore("A", only=["f"])
    after = session.head
    assert (text_at(session, after), session.files.read(after, "g")) == ("good", b"new")


def test_a_restore_of_the_state_alone_leaves_the_files(session: Session, store: Store, work: Path):
    (work / "f").write_text("third")
    session.checkpoint()
    store.session("run").restore("A")
    assert text_at(session, session.head) == "third"


def test_a_restore_under_way_or_abandoned_has_the_files_and_state_of_before(
    session: Session, hook: Hook, work: Path
):
    """Halfway, files are neither; the state is as before, and so are the files of the point."""
    (work / "f").write_text("before")
    session.state.set("x", "before")
    hook.point = Failpoint.RESTORE_WRITTEN
    with pytest.raises(RuntimeError):
        session.restore("A")
    session.state.set("y", 1)
    assert session.files.pending is not None
    assert text_at(session, session.head) == "before"
    session.files.abandon()
    assert text_at(session, session.head) == "before"
    assert session.state.at(session.head).get() == {"x": "before", "y": 1}
    (work / "f").write_text("after")
    session.checkpoint()
    assert text_at(session, session.head) == "after"


def test_a_restore_that_is_finished_late_counts_from_then_on(
    session: Session, hook: Hook, work: Path
):
    (work / "f").write_text("before")
    hook.point = Failpoint.RESTORE_WRITTEN
    with pytest.raises(RuntimeError):
        session.restore("A")
    begun = session.head
    session.files.recover()
    assert [text_at(session, point) for point in (begun, session.head)] == ["before", "good"]


def test_one_interrupted_on_its_way_to_a_restored_point_is_finished(
    session: Session, hook: Hook, work: Path, store: Store
):
    """What such a restore has noted of its target is enough to go on with."""
    (work / ".mulliganignore").write_text("left/\n")
    (work / "left").mkdir()
    (work / "left/alone").write_text("mine")
    session.restore("A")  # takes the rule away, and what it left out stays
    session.undo()
    after = session.head
    (work / ".mulliganignore").unlink()
    (work / "f").write_text("more")
    hook.point = Failpoint.RESTORE_WRITTEN
    with pytest.raises(RuntimeError):
        session.restore(after)
    again = store.session("run", workspace=work)
    assert again.internal.recovered is not None
    assert again.files.pending is None
    assert (work / "left/alone").read_text() == "mine"
    assert (work / ".mulliganignore").read_text() == "left/\n"
    assert (work / "f").read_text() == text_at(again, after) == "good"


def test_what_a_restore_did_not_capture_is_not_deleted_by_going_back_to_it(
    session: Session, work: Path
):
    """Its coverage is its own, not that of the safety checkpoint before it."""
    (work / ".mulliganignore").write_text("cache/\n")
    session.checkpoint(label="ignoring")
    (work / ".mulliganignore").unlink()
    (work / "cache").mkdir()
    (work / "cache/big").write_text("not held")
    session.restore("ignoring", only=[".mulliganignore"])
    after = session.head
    (work / ".mulliganignore").unlink()
    session.restore(after)
    assert (work / "cache/big").read_text() == "not held"


def test_another_sessions_restore_is_a_conflict(session: Session, store: Store, work: Path):
    other = store.session("other", workspace=work)
    (work / "f").write_text("of the other")
    other.checkpoint(label="B")
    (work / "f").write_text("still")
    before = session.checkpoint()
    other.restore("B")
    (conflict,) = [text for text in session.files.plan(before).conflicts if "restored" in text]
    assert "'other' restored 1 path" in conflict


def test_a_verdict_on_a_point_after_a_restore_is_refused(session: Session):
    """The checkpoint before it holds what the restore took away."""
    with pytest.raises(InvalidMark, match="restore #5"):
        session.checkpoints.mark(session.head, "good")
    assert session.checkpoints.marks() == {}
    session.checkpoint()
    session.checkpoints.mark(session.head, "good")


def test_verify_finds_that_the_tree_of_a_restore_is_lost(
    session: Session, store: Store, work: Path, monkeypatch: pytest.MonkeyPatch
):
    (work / "f").write_text("bad")
    (work / "g").write_text("together with the good f only after the restore")
    session.restore("A", only=["f"])
    held = session.internal.files_at(session.head)
    assert held is not None
    load = session._engine.objects.get

    def lossy(kind: int, digest: Digest) -> bytes:
        if digest == held.tree:
            raise MulliganError("it is lost")
        return load(kind, digest)

    monkeypatch.setattr(session._engine.objects, "get", lossy)
    problems = store.verify(full=False).problems
    assert any("restore #" in problem.where for problem in problems), problems
