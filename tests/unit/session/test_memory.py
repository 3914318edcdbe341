"""What a session keeps in memory does not grow with the number of its checkpoints."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import mulligan
from mulligan import Session
from mulligan.document.document import Document
from mulligan.objects.pack_reader import KEPT_BYTES
from mulligan.session.write.known_documents import MAX_KNOWN_DOCUMENTS
from mulligan.session.write.writer import Work

STEPS = 600
"""More than there are events between two keyframes."""

VALUE = 700


def step(session: Session, work: Path, number: int) -> None:
    source = random.Random(number)
    session.state.set(f"memory/key-{number % 400}", source.randbytes(VALUE).hex())
    (work / f"file-{number % 10}").write_bytes(source.randbytes(50))
    session.checkpoint()


def test_a_long_lived_session_keeps_a_bounded_number_of_things(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        session.internal.watch()
        counts = []
        for number in range(STEPS):
            step(session, work, number)
            if number in (STEPS // 3, STEPS - 1):
                gc.collect()
                counts.append(len(gc.get_objects()))
        assert counts[1] < counts[0] * 1.2
        reader = session._engine.objects.handles().reader  # type: ignore[attr-defined]
        # Whatever is read after the last write comes on top; one frame is at most so large.
        assert reader._cached <= KEPT_BYTES + (2 << 20)
        assert len(session._writer._known) <= MAX_KNOWN_DOCUMENTS


def test_what_was_written_is_let_go_without_the_garbage_collector(tmp_path: Path) -> None:
    """A transaction that refers to itself keeps a whole document until the collector comes by."""
    work = tmp_path / "work"
    work.mkdir()
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        step(session, work, 0)
        gc.collect()
        gc.disable()
        try:
            # Tests before this one may have left some, such as in the traceback of an error.
            before, works = living(Document), living(Work)
            for number in range(40):
                step(session, work, number)
            assert living(Work) <= works
            assert living(Document) <= before + MAX_KNOWN_DOCUMENTS
        finally:
            gc.enable()


def living(kind: type) -> int:
    return sum(isinstance(found, kind) for found in gc.get_objects())
