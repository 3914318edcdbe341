"""A session name that is not found is an error: no other session stands in for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import UnknownSession
from mulligan.model import Digest, Point
from mulligan.timeline.sessions import known_session

MISSING = Point("missing", 1)

USES: dict[str, Callable[[Session], object]] = {
    "point": lambda session: session.point(MISSING),
    "files of a point": lambda session: session._file_side.stored.held_at(MISSING),
    "conflicts of a plan": lambda session: session._file_side.stored._conflicts(
        MISSING, "", Digest(b"")
    ),
    "document of a point": lambda session: session._history.document_at(MISSING),
    "target of an undo": lambda session: session._file_side.restorer._target(MISSING, None, None),
    "files of a target": lambda session: session._file_side.restorer._held(MISSING, 1),
}


@pytest.mark.parametrize("use", USES)
def test_an_unknown_session_is_an_error_although_the_present_one_has_the_seq(
    tmp_path: Path, use: str
) -> None:
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run")
        session.checkpoint()
        with pytest.raises(UnknownSession, match="'missing'"):
            USES[use](session)


def test_a_known_session_is_found(tmp_path: Path) -> None:
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run")
        with session._engine.read() as view:
            assert known_session(view, "run") == session._record
