"""The restore of files that a rewind made: found also if it was interrupted, and then undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mulligan.errors import CannotRewind, WorkspaceNeeded
from mulligan.model import Point
from mulligan.session.names import WORKSPACE
from mulligan.timeline.undo import first_restore, restores

if TYPE_CHECKING:
    from mulligan.model import Event, PendingRestore, Restored
    from mulligan.session import Session


def is_interrupted(session: Session, point: Point) -> bool:
    """Whether a restore of all files to a point is half done."""
    pending = session.files.pending
    return pending is not None and pending.paths is None and _leads_to(pending, "restore", point)


def restore_files(session: Session, point: Point) -> Restored:
    """Restore the files of a point; one that was interrupted goes on.

    Its undo goes back to what was there when it started: the safety checkpoint is that of then.
    """
    pending = session.files.pending if is_interrupted(session, point) else None
    done = None if pending is None else session.files.recover()
    if pending is None or done is None:
        return session.restore(point, (WORKSPACE,))
    safety = session.checkpoints.at(Point(session.name, pending.origin.safety))
    return msgspec.structs.replace(done, safety=safety)


def find_restore(session: Session, point: Point, since: int) -> int | None:
    """Return the first restore after an event, if it led to a point: finished or abandoned."""
    found = first_restore(session.events(since=since))
    return found.seq if found is not None and _is(found, "restore", point) else None


def undo_interrupted(session: Session) -> Restored:
    """Undo the restore that was interrupted, from where it stopped."""
    if not session.internal.has_files:
        # Without the files, the next undo of the session would be that of an earlier restore.
        raise WorkspaceNeeded("Files are part of the rewind that undo takes back.")
    return session.undo()


def undo_restore(session: Session, seq: int) -> Restored | None:
    """Undo a restore; None if that was done. An undo that was interrupted is finished.

    Refused if the next undo of the session would undo something else.
    """
    before = Point(session.name, seq - 1)
    pending, effective = session.files.pending, _effective(session, seq)
    if pending is None and not any(effective):
        return None
    is_last = effective[-1:] == [seq]
    if pending is not None and is_last and _leads_to(pending, "undo", before):
        return session.files.recover()
    if pending is not None or not is_last:
        raise CannotRewind(
            f"Files of {session.name!r} were restored again since that rewind.",
            hint=f"Nothing was changed. `mulligan undo -s {session.name}` undoes one after "
            "another.",
        )
    return session.undo()


def _effective(session: Session, seq: int) -> list[int]:
    """Return a restore and those after it that are not undone, in the order of their undo.

    The last one is undone first. A 0 is a restore from before, which was undone and redone.
    """
    effective, undone = [seq], list[int]()
    for event in restores(session.events(since=seq)):
        mode = event.payload["mode"]
        if mode == "restore":
            effective.append(event.seq)
            undone.clear()
        elif mode == "undo":
            undone.append(effective.pop() if effective else 0)
        else:
            effective.append(undone.pop() if undone else 0)
    return effective


def _leads_to(pending: PendingRestore, mode: str, point: Point) -> bool:
    to = (pending.mode, pending.point.session, pending.point.seq)
    return to == (mode, point.session, point.seq)


def _is(event: Event, mode: str, point: Point) -> bool:
    """Whether the event of a restore led to a point."""
    to = (event.payload["mode"], event.payload["session"], event.payload["seq"])
    return to == (mode, point.session, point.seq)
