"""A rewind is killed anywhere: files are of one side, and a transcript is whole or not there."""

from __future__ import annotations

import errno
import json
from contextlib import suppress
from pathlib import Path

import pytest

import mulligan
from mulligan.coding.agent_session import agent_session
from mulligan.coding.rewind.run import RewindOptions, plan_rewind, rewind, undo_rewind
from mulligan.coding.rewind.target import Conversation
from mulligan.coding.transcripts import transcript
from mulligan.coding.transcripts.transcript_format import NewSession
from mulligan.errors import CannotRewind
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.testing.failpoints import FailpointCounter, fail_at, kill_at
from mulligan.testing.stores import open_store
from tests.children import run_child
from tests.unit.coding.claude_entries import NEW, OLD
from tests.unit.coding.recorded import Recorded

POINTS = [
    *(point for point in Failpoint if point.name.startswith("REWIND_")),
    Failpoint.RESTORE_MARKED,
    Failpoint.RESTORE_TEMPORARY_WRITTEN,
    Failpoint.RESTORE_WRITTEN,
    Failpoint.RESTORE_DELETED,
    Failpoint.JOURNAL_BEFORE_COMMIT,
    Failpoint.JOURNAL_COMMITTED,
]

BEFORE = {"a.txt": "three", "b.txt": "two"}
AFTER = {"a.txt": "one"}


class Place:
    """An agent with three turns, and a rewind to before the second."""

    def __init__(self, root: Path) -> None:
        self.root = root
        agent = Recorded(root)
        agent.turn("first", "a.txt", "one")
        agent.turn("second", "b.txt", "two")
        agent.turn("third", "a.txt", "three")
        agent.session.close()
        agent.store.close()
        self.work, self.folder, self.path = agent.work, agent.folder, agent.path
        self.said = agent.path.read_bytes()

    def rewind(self, failpoint: FailpointHook = ignore, id: str = NEW) -> None:
        with open_store(self.root / "store", failpoint=failpoint) as store:
            session = store.session(f"claude-{OLD}", workspace=self.work)
            options = RewindOptions("both", self.work, self.folder)
            rewind(
                session, plan_rewind(Conversation(session), "2", options, lambda: id), self.folder
            )
            session.close()

    def undo(self, failpoint: FailpointHook = ignore) -> None:
        with open_store(self.root / "store", failpoint=failpoint) as store:
            session = store.session(f"claude-{OLD}", workspace=self.work, recover=False)
            undo_rewind(session, store.session(f"claude-{NEW}", create=False))
            session.close()

    def transcript(self, id: str) -> Path:
        return self.folder.transcript(self.work, NewSession(id, ""))

    def files(self) -> dict[str, str]:
        return {one.name: one.read_text() for one in self.work.iterdir()}

    def check(self) -> None:
        """Check both branches, then rewind once more."""
        assert self.path.read_bytes() == self.said
        with mulligan.open(self.root / "store") as store:
            # Opening finishes a restore that was interrupted.
            session = store.session(f"claude-{OLD}", workspace=self.work)
            assert self.files() in (BEFORE, AFTER)
            assert store.verify().problems == ()
            self._check_branch(store)
            session.close()
        self.rewind(id="again")
        assert self.files() == AFTER
        assert self.transcript("again").is_file()
        left = [one.name for one in self.path.parent.rglob("*.mulligan")]
        assert left == [], "the next rewind removes drafts that a killed one has left"

    def _check_branch(self, store: mulligan.Store) -> None:
        made = self.transcript(NEW)
        if not made.exists():
            return
        last = json.loads(made.read_text().splitlines()[-1])
        assert last["type"] == "last-prompt"
        known = agent_session(store.session(f"claude-{NEW}", create=False))
        assert known is not None
        assert known.id == NEW
        assert transcript.read_new(made).progress == known.progress


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_every_point_is_reached(place: Place) -> None:
    reached = FailpointCounter()
    place.rewind(reached)
    assert [point for point in POINTS if not reached.counts[point]] == []


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_of_a_rewind(place: Place, point: Failpoint, nth: int) -> None:
    killed = run_child(lambda _: place.rewind(kill_at(point, nth)))
    assert killed.by_sigkill or nth > 1, f"{point} was not reached"
    place.check()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("point", POINTS)
def test_an_error_at_a_point(place: Place, point: Failpoint, error: BaseException) -> None:
    with suppress(OSError, mulligan.errors.MulliganError, KeyboardInterrupt):
        place.rewind(fail_at(point, error))
    place.check()


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize(
    "point", [Failpoint.RESTORE_MARKED, Failpoint.RESTORE_WRITTEN, Failpoint.JOURNAL_COMMITTED]
)
def test_an_undo_that_was_killed_is_finished_by_the_next_one(
    place: Place, point: Failpoint, nth: int
) -> None:
    place.rewind()
    assert place.transcript(NEW).exists()
    killed = run_child(lambda _: place.undo(kill_at(point, nth)))
    assert killed.by_sigkill or nth > 1, f"{point} was not reached"
    with suppress(CannotRewind):  # it was killed right after its last step
        place.undo()
    assert place.files() == BEFORE
    assert not place.transcript(NEW).exists()
