"""An undo takes back the newest restore, also one that came after it was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import mulligan
from mulligan.model import Restored
from mulligan.session.write.restorer import Restorer, Target


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
