"""The files of a point: which tree was in the workspace at any place on a timeline.

They are those of the newest event at or before the point that records them: a checkpoint with
files, or a restore of files, which captures its result at the end. A restore that was started and
not finished, or that was abandoned, left the files in an unknown state. Until the next checkpoint,
its files, like its state, are those before it, which its safety checkpoint holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from mulligan.document.document import MISSING
from mulligan.document.fold import CHECKPOINT, PENDING, RESTORE_BEGUN, RESTORED
from mulligan.document.history import document_at
from mulligan.engine import Engine
from mulligan.errors import DamagedJournal, FilesPruned
from mulligan.journal.protocol import View
from mulligan.model import ID_SIZE, Coverage, Digest, Event, HeldFiles, LeftOut
from mulligan.timeline.checkpoints import event_at, is_safety, read_coverage
from mulligan.timeline.sessions import known_session


def files_at(engine: Engine, view: View, number: int, seq: int) -> HeldFiles | None:
    """Return the files at a place on a timeline; None if nothing at or before it holds any.

    Raises ``FilesPruned`` if retention removed the checkpoint that held them: the files of an
    older one would be wrong.
    """
    checkpoint = _checkpoint_with_files(view, number, seq)
    pruned = _pruned_with_files(view, number, seq, after=checkpoint.seq if checkpoint else 0)
    newest = pruned or checkpoint
    if newest is None:
        return None
    restored = _restored_after(engine, view, number, newest, seq)
    if pruned is not None and restored is None:
        raise _files_pruned(view, number, seq, checkpoint)
    return restored or _of_checkpoint(engine, newest)


def remaining_files_at(engine: Engine, view: View, number: int, seq: int) -> HeldFiles | None:
    """Return the newest files at or before a place that are still there.

    Those of checkpoints that retention removed are passed over.
    """
    try:
        return files_at(engine, view, number, seq)
    except FilesPruned:
        checkpoint = _checkpoint_with_files(view, number, seq)
        return None if checkpoint is None else files_at(engine, view, number, checkpoint.seq)


def read_files(engine: Engine, view: View, number: int, seq: int) -> HeldFiles:
    """Return the files that the event at ``seq`` holds: a checkpoint, or a restore of files."""
    event = event_at(view, number, seq)
    if event.kind == CHECKPOINT:
        held = _of_checkpoint(engine, event)
    else:
        held = _of_restore(engine, view, number, event)
    if held is None:
        raise DamagedJournal(f"Event #{seq} of {event.session!r} holds no files.")
    return held


def restored_files(engine: Engine, event: Event) -> dict[str, Any] | None:
    """Return what a restore records of files; None for one without, and for any other event."""
    if event.kind != RESTORED or "files" not in event.payload:
        return None
    files: dict[str, Any] = engine.plain(event.payload["files"])
    return files


def _checkpoint_with_files(view: View, number: int, seq: int) -> Event | None:
    """Return the newest checkpoint at or before ``seq`` that holds files."""
    found = view.checkpoint_before(number, seq)
    while found is not None:
        event = event_at(view, number, found[0])
        if _has_files(event):
            return event
        found = view.checkpoint_before(number, found[0] - 1)
    return None


def _pruned_with_files(view: View, number: int, seq: int, after: int) -> Event | None:
    """Return the newest checkpoint in ``after + 1 .. seq`` that held files and was pruned."""
    found = view.pruned_before(number, seq)
    while found is not None and found[0] > after:
        event = event_at(view, number, found[0])
        if _has_files(event):
            return event
        found = view.pruned_before(number, found[0] - 1)
    return None


def _files_pruned(view: View, number: int, seq: int, before: Event | None) -> FilesPruned:
    """Return the error for a point without files; it names those before and after that remain."""
    after = next((e for e in _later_checkpoints(view, number, seq) if _has_files(e)), None)
    near = [e for e in (before, after) if e is not None]
    places = " and ".join(f"{e.hash[:ID_SIZE].hex()[:12]} at #{e.seq}" for e in near)
    known = f"The nearest checkpoints with files are {places}." if near else "No other has any."
    return FilesPruned(
        f"The checkpoint that held the files at #{seq} of session "
        f"{view.session(number).name!r} was pruned. {known}"
    )


def _later_checkpoints(view: View, number: int, seq: int) -> Iterator[Event]:
    for place, _ in view.checkpoints(number, seq + 1, view.head(number).seq):
        yield event_at(view, number, place)


def _has_files(checkpoint: Event) -> bool:
    return bool(checkpoint.payload.get("workspace"))


def _restored_after(
    engine: Engine, view: View, number: int, checkpoint: Event, seq: int
) -> HeldFiles | None:
    """Return what a restore left in the workspace between a checkpoint with files and ``seq``."""
    if checkpoint.seq == seq or not _is_restoring(engine, view, number, checkpoint):
        return None
    # At most one is found: each restore of files begins with a checkpoint that holds files.
    # Where events between them were folded away, this one was kept: see ``upkeep.needed``.
    for event in view.remaining(number, checkpoint.seq + 1, seq):
        if event.kind == RESTORED and "files" in event.payload:
            return _of_restore(engine, view, number, event)
    return None


def _is_restoring(engine: Engine, view: View, number: int, checkpoint: Event) -> bool:
    """Whether a restore of files is under way right after a checkpoint.

    Each starts with its own safety checkpoint, so there is no other way to find one.
    """
    if is_safety(checkpoint):
        return True
    document = document_at(view, number, checkpoint.seq, engine.load)
    return document.find(PENDING) is not MISSING


def _of_checkpoint(engine: Engine, event: Event) -> HeldFiles | None:
    """Return the files of a checkpoint; its other content is not read, and may be damaged."""
    tree = event.payload.get("workspace")
    if not tree:
        return None
    coverage = _coverage(engine, event)
    identity = event.hash[:ID_SIZE].hex()
    return HeldFiles(event.session, event.seq, event.time, Digest(tree), coverage, identity)


def _of_restore(engine: Engine, view: View, number: int, event: Event) -> HeldFiles | None:
    """Return the files that a restore captured at its end; None if it was abandoned."""
    files = restored_files(engine, event)
    if files is None or "after" not in files:
        return None
    coverage = read_coverage(engine, files.get("coverage"))
    if coverage is None:
        coverage = _likely_coverage(engine, view, number, files["safety"])
    tree = Digest(files["after"])
    return HeldFiles(event.session, event.seq, event.time, tree, coverage)


def _likely_coverage(engine: Engine, view: View, number: int, safety: int) -> Coverage | None:
    """Return the coverage of a restore by a version that did not record it.

    Paths left out before the restore, or by the checkpoint it restored, may exist and are not held.
    """
    before = _coverage(engine, event_at(view, number, safety))
    start = event_at(view, number, safety + 1)
    left = {*(before.left_out if before else ())} | _left_out_of_target(engine, view, start)
    return before and msgspec.structs.replace(before, left_out=sorted(left))


def _left_out_of_target(engine: Engine, view: View, start: Event) -> set[LeftOut]:
    if start.kind != RESTORE_BEGUN or start.payload["held"] is None:
        return set()
    session = known_session(view, start.payload["session"])
    event = event_at(view, session.number, start.payload["held"])
    coverage = _coverage(engine, event)
    return {*coverage.left_out} if coverage else set()


def _coverage(engine: Engine, checkpoint: Event) -> Coverage | None:
    return read_coverage(engine, checkpoint.payload.get("coverage"))
