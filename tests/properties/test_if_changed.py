"""``checkpoint(if_changed=True)`` takes one exactly when state or files differ from the latest."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import mulligan
from mulligan import Session

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["set", "delete", "write", "remove", "mark", "nothing", "other", "reopen"]),
        st.integers(0, 2),
        st.integers(0, 1),
    ),
    max_size=25,
)


def act(session: Session, work: Path, name: str, place: int, value: int) -> None:
    """Change something, in the ways that a step of an agent can."""
    if name == "set":
        session.state.set(("memory", str(place)), value)
    elif name == "delete" and session.state.get(("memory", str(place))) is not None:
        session.state.delete(("memory", str(place)))
    elif name == "write":
        (work / str(place)).write_text(str(value))
        # Equal times for equal content: what comes back is what was there.
        os.utime(work / str(place), (place, value))
    elif name == "remove":
        (work / str(place)).unlink(missing_ok=True)
    elif name == "mark" and session.checkpoints(1):
        session.checkpoints.mark("@latest", "good")
    os.utime(work, (1, 1))  # and for the directory that holds it


def picture(session: Session, work: Path) -> Any:
    return session.state.get(""), {path.name: path.read_text() for path in work.iterdir()}


@given(STEPS)
def test_one_is_taken_exactly_when_something_differs(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        work = Path(place, "work")
        work.mkdir()
        with mulligan.open(Path(place, "store")) as store:
            session = store.session("run", workspace=work)
            latest, held = None, None
            for name, where, value in steps:
                act(store.session("run") if name == "other" else session, work, name, where, value)
                if name == "reopen":
                    session.close()
                    session = store.session("run", workspace=work)
                now = picture(session, work)
                taken = session.checkpoint(if_changed=True)
                assert (latest is None or taken.seq > latest.seq) == (now != held)
                if now != held:
                    assert session.state.at(taken).get() == now[0]
                latest, held = taken, now
            assert store.verify().problems == ()
