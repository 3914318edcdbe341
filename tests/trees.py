"""Trees as plain values, whichever way they are stored, and trees that no capture has made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mulligan import Session, codec
from mulligan.document.document import Document, LoadBytes
from mulligan.model import Checkpoint, Digest, ObjectKind
from mulligan.timeline.checkpoints import checkpoint_change
from mulligan.workspace.capture.patch import open_tree


def plain_tree(load: LoadBytes, tree: Digest | None) -> dict[str, Any]:
    """Return all that is in a tree: directories as dicts, all else as lists."""
    assert tree is not None
    document = open_tree(Document({}, load), tree)
    found: dict[str, Any] = document.plain(document.root)
    return found


def checkpoint_of(
    session: Session, tree: Callable[[Callable[[int, bytes], Digest]], Any]
) -> Checkpoint:
    """Add a checkpoint that names a forged tree; what makes its value may put objects, too."""
    engine = session._engine
    with engine.pin():
        bundle = engine.bundle()
        digest = bundle.put(ObjectKind.VALUE, codec.encode(tree(bundle.put)))
        held = session.checkpoint()
        with engine.read() as view:
            payload = next(iter(view.events(session._record.number, held.seq, held.seq))).payload

        def decide(work: Any) -> int:
            change = checkpoint_change(
                kind="manual",
                label=None,
                note=None,
                parent=held.id,
                keyframe=None,
                environment=payload["environment"].digest,
                ms=0.0,
                size=0,
                tree=digest,
                coverage=held.coverage,
            )
            seq: int = work.add(change)
            work.labels[seq] = None
            return seq

        return session.checkpoints.at(session._writer.commit(decide, bundle))
