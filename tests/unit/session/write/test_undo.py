"""An undo takes back the newest restore, also one that came after it was asked for."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import NothingToUndo
from mulligan.failpoints import Failpoint
from mulligan.model import Restored
from mulligan.session.write.restore_target import Target
from mulligan.session.write.restorer import Restorer
from mulligan.testing.stores import open_store


@pytest.mark.parametrize("files", [False, True], ids=["state", "files"])
def test_an_undo_takes_back_a_restore_that_came_after_its_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: bool
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work if files else None)
        other = store.session("run", workspace=work if files else None)
        for number in (1, 2, 3):
            session.state.set("number", number)
            (work / "file").write_text(str(number))
            session.checkpoint(label=f"at-{number}")
        session.restore("at-1")
        choices: list[int | None] = []
        go_to = Restorer._go_to

        def raced(restorer: Restorer, target: Target, mode: str) -> Restored:
            if mode == "undo":
                choices.append(target.takes_back)
                if len(choices) == 1:
                    other.restore("at-2")
            return go_to(restorer, target, mode)

        monkeypatch.setattr(Restorer, "_go_to", raced)
        done = session.undo()
        first, second = [e.seq for e in session.events() if e.kind == "restore.applied"][:2]
        assert choices == [first, second]
        assert done.point.seq == second - 1
        assert session.state.get("number") == 1
        if files:
            assert (work / "file").read_text() == "1"
        session.undo()
        assert session.state.get("number") == 3
        assert store.verify(full=True).ok


def test_a_restore_has_its_target_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mulligan.open(tmp_path / "store") as store:
        session, other = store.session("run"), store.session("run")
        session.state.set("number", 1)
        session.checkpoint(label="here")
        session.state.set("number", 2)
        go_to = Restorer._go_to

        def raced(restorer: Restorer, target: Target, mode: str) -> Restored:
            assert target.takes_back is None
            other.checkpoint(label="here")
            return go_to(restorer, target, mode)

        monkeypatch.setattr(Restorer, "_go_to", raced)
        session.restore("here")
        assert session.state.get("number") == 1


def test_a_restore_elsewhere_while_an_undo_captures_files_is_taken_back_instead(
    tmp_path: Path,
) -> None:
    """The directory's lock does not keep a restore of the state alone out."""
    work = tmp_path / "work"
    work.mkdir()
    reached: list[Failpoint] = []

    def restore_elsewhere(point: Failpoint) -> None:
        # The objects of the undo's safety checkpoint are durable; its transaction is still to come.
        if armed and point is Failpoint.PACK_SYNCED and not reached:
            reached.append(point)
            elsewhere.restore("at-2")

    armed = False
    with (
        open_store(tmp_path / "store", failpoint=restore_elsewhere) as store,
        mulligan.open(tmp_path / "store") as other,
    ):
        session, elsewhere = store.session("run", workspace=work), other.session("run")
        for number in (1, 2, 3):
            session.state.set("number", number)
            (work / "file").write_text(str(number))
            session.checkpoint(label=f"at-{number}")
        session.restore("at-1")
        (work / "new").write_text("read by the capture of the undo")
        armed = True
        done = session.undo()
        assert reached
        first, second = [e.seq for e in session.events() if e.kind == "restore.applied"][:2]
        assert first < second == done.point.seq + 1
        assert session.state.get("number") == 1
        assert (work / "file").read_text() == "1"
        assert session.files.pending is None
        assert store.verify(full=True).ok


def test_undos_that_race_with_restores_take_back_the_newest_one_each(tmp_path: Path) -> None:
    with mulligan.open(tmp_path / "store") as one, mulligan.open(tmp_path / "store") as two:
        session = one.session("run")
        for number in (1, 2):
            session.state.set("number", number)
            session.checkpoint(label=f"at-{number}")
        session.restore("at-1")

        def restore(number: int) -> None:
            two.session("run").restore(f"at-{1 + number % 2}")

        def undo(number: int) -> None:
            with contextlib.suppress(NothingToUndo):
                session.undo()

        with ThreadPoolExecutor(2) as pool:
            for number in range(20):
                list(pool.map(lambda act, number=number: act(number), (restore, undo)))
        assert one.verify(full=True).ok
        assert takes_back_the_newest(session) > 0


def takes_back_the_newest(session: Session) -> int:
    """Follow the stack of restores, check every undo against it, and return how many there were."""
    stack: list[int] = []
    undone = 0
    for event in session.events():
        if event.kind != "restore.applied":
            continue
        if event.payload["mode"] == "restore":
            stack.append(event.seq)
        else:
            assert event.payload["seq"] == stack.pop() - 1
            undone += 1
    return undone
