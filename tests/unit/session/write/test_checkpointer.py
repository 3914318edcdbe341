"""What a checkpoint captures is durable before its decision, and counts once it is committed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import mulligan
from mulligan.engine import PendingObjects
from mulligan.objects.protocol import Flushed
from mulligan.session.environment import EnvironmentReader
from mulligan.session.write.checkpointer import Checkpointer, CheckpointParts, CheckpointRequest
from mulligan.session.write.writer import Work, Writer
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.space.fold import fold_session
from mulligan.upkeep.space.gc import collect
from tests.threads import elsewhere


def test_a_decision_that_runs_twice_syncs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "file").write_text("text")
    syncs: list[int] = []
    during: list[int] = []
    flush, add = PendingObjects.flush, Checkpointer.add

    def flushed(bundle: PendingObjects) -> Flushed:
        syncs.append(1)
        return flush(bundle)

    with mulligan.open(tmp_path / "store") as store:
        session, other = store.session("run", workspace=work), store.session("run")
        session.state.set("known", 1)

        def added(
            self: Checkpointer, txn: Work, request: CheckpointRequest, parts: CheckpointParts
        ) -> int:
            before = len(syncs)
            seq = add(self, txn, request, parts)
            during.append(len(syncs) - before)
            if len(during) == 1:
                elsewhere(lambda: other.state.set("from another handle", 2))
            return seq

        monkeypatch.setattr(PendingObjects, "flush", flushed)
        monkeypatch.setattr(Checkpointer, "add", added)
        made = session.checkpoint()
        assert during == [0, 0]
        assert made.cost.bytes > 0
        assert session.state.at(made).get() == {"known": 1, "from another handle": 2}
        assert session.files.read(made, "file") == b"text"


def test_an_environment_that_was_not_committed_is_put_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run")
        with monkeypatch.context() as patched:
            patched.setattr(Writer, "commit", _struck)
            with pytest.raises(KeyboardInterrupt):
                session.checkpoint()
        made = session.checkpoint()
        assert made.cost.bytes > 0
        assert session.checkpoints.at(made).environment.python
        assert store.verify(full=True).ok


def test_an_environment_that_a_collection_removed_is_put_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handle that put it last does not look it up at every checkpoint."""
    with mulligan.open(tmp_path) as store:
        engine, session = store._engine, store.session("run")
        first = session.checkpoint()
        elsewhere = msgspec.structs.replace(first.environment, host="elsewhere")
        with monkeypatch.context() as patch:
            patch.setattr(EnvironmentReader, "capture", lambda _: elsewhere)
            newest = store.session("run").checkpoint()
        with engine.write() as txn:
            txn.prune(1, [first.seq])
        with upkeep_lock(engine, wait=False):
            fold_session(engine, store._record("run", False, "cli"), newest.seq, min_events=1)
            assert collect(engine).removed
        session.checkpoint()
        engine.environment.cache_clear()
        assert session.checkpoints.at("@latest").environment == first.environment


def _struck(*_: object) -> None:
    raise KeyboardInterrupt
