"""A process is killed while a batch writes state, files and a checkpoint: all of it, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.failpoints import Failpoint
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from tests.children import Tell, run_child

POINTS = [
    Failpoint.PACK_FRAME_HALF_WRITTEN,
    Failpoint.PACK_FRAME_WRITTEN,
    Failpoint.PACK_SYNCED,
    Failpoint.JOURNAL_TRANSACTION_STARTED,
    Failpoint.JOURNAL_INDEXED,
    Failpoint.JOURNAL_APPENDED,
    Failpoint.JOURNAL_BEFORE_COMMIT,
    Failpoint.JOURNAL_COMMITTED,
]


class Later:
    """A hook that does nothing until it is armed."""

    def __init__(self, point: Failpoint, nth: int) -> None:
        self._hook = kill_at(point, nth)
        self.is_armed = False

    def __call__(self, point: Failpoint) -> None:
        if self.is_armed:
            self._hook(point)


def one_step(session: Session, work: Path, number: int) -> int:
    """Write a step's file, then its state and its checkpoint in one batch; return the seq."""
    (work / "file").write_text(f"{number} " * 2_000)
    with session.batch() as batch:
        session.state.set("step", number)
        session.state.append("large", f"{number} " * 4_000)  # an object of its own
        batch.checkpoint("routine", data={"step": number})
    return batch.seq


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_all_of_a_batch_or_nothing(
    tmp_path: Path, point: Failpoint, nth: int
) -> None:
    work = tmp_path / "work"
    work.mkdir()

    def body(tell: Tell) -> None:
        hook = Later(point, nth)
        with open_store(tmp_path / "store", failpoint=hook) as store:
            session = store.session("run", workspace=work)
            session.checkpoint()
            hook.is_armed = True
            for number in range(1, 6):
                tell(f"{number} {one_step(session, work, number)}")

    killed = run_child(body)
    assert killed.by_sigkill, f"{point} was not reached {nth} times"
    acknowledged = len(killed.told)
    with mulligan.open(tmp_path / "store") as store:
        assert store.verify(full=True).problems == ()
        session = store.session("run", workspace=work)
        taken = session.checkpoints()[1:]
        # The last one may be complete although its call did not return.
        assert acknowledged <= len(taken) <= acknowledged + 1
        assert [f"{c.data['step']} {c.seq}" for c in taken][:acknowledged] == killed.told
        assert session.state.get("step", 0) == len(taken)
        for number, checkpoint in enumerate(taken, 1):
            assert checkpoint.data == {"step": number}
            assert session.state.at(checkpoint).get("step") == number
            assert len(session.state.at(checkpoint).get("large")) == number
            assert session.files.read(checkpoint, "file").startswith(f"{number} ".encode())
        assert one_step(session, work, 9) == session.head.seq
