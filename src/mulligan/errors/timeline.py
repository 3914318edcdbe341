"""Errors of sessions, points, states and the files that belong to them."""

from __future__ import annotations

from mulligan.errors.base import MulliganError


class SessionError(MulliganError):
    """A session cannot be used as requested."""


class UnknownSession(SessionError):
    """There is no session with that name."""

    exit_code = 20
    default_hint = "`mulligan status` lists the sessions of this store."


class SessionExists(SessionError):
    """A session with that name already exists."""

    exit_code = 21
    default_hint = "Choose another name."


class InvalidName(SessionError):
    """A session name, label, kind or actor is not acceptable."""

    exit_code = 22
    default_hint = (
        "Use 1 to 120 printable characters, no ':' and no '~', "
        "not starting with '@', '#' or '-', no space at either end."
    )


class KeyTaken(SessionError):
    """Another session, or another checkpoint on the timeline, has that foreign key."""

    exit_code = 23
    default_hint = "Nothing was written. `find` returns what has the key."


class PointError(MulliganError):
    """A place on the timeline cannot be found."""


class UnknownPoint(PointError):
    """No place on the timeline matches the point."""

    exit_code = 30
    default_hint = "`mulligan log` lists the checkpoints of a session."


class AmbiguousPoint(PointError):
    """More than one place on the timeline matches the point."""

    exit_code = 31
    default_hint = "Use a longer id from the candidates."


class NothingToUndo(PointError):
    """There is no restore to undo or redo."""

    exit_code = 32
    default_hint = "`mulligan log` shows the restores of a session."


class InvalidMark(PointError):
    """The verdict is not valid."""

    exit_code = 33
    default_hint = "Nothing was marked."


class CannotBisect(PointError):
    """The search cannot find a first bad checkpoint."""

    exit_code = 34
    default_hint = "Give a good point and a later bad one on the same timeline."


class PointFolded(PointError):
    """The event was folded away: retention keeps no point there."""

    exit_code = 35
    default_hint = "`mulligan log` lists the checkpoints that remain."


class FilesPruned(PointError):
    """Retention removed the checkpoint that held the files of the point."""

    exit_code = 36
    default_hint = "The state of the point is still there; `--only` restores parts of it."


class CheckpointPruned(PointError):
    """Retention removed the checkpoint; the state at its event is still there."""

    exit_code = 37
    default_hint = "`mulligan pin POINT` keeps a checkpoint whatever the policy says."


class CheckpointNeeded(PointError):
    """A checkpoint cannot be deleted, because something needs it."""

    exit_code = 45
    default_hint = "Nothing was deleted."


class CheckpointDamaged(PointError):
    """Files of the store were damaged, and the checkpoint lacks a part of what it held."""

    exit_code = 38
    default_hint = "`mulligan status` lists the checkpoints that lost something."


class PlanOutdated(PointError):
    """The plan of a restore is not known, or something has changed since it was made."""

    exit_code = 39
    default_hint = "Nothing was changed. Make another plan and look at it."


class StateError(MulliganError):
    """The state cannot be read or changed as requested."""


class UnstorableValue(StateError):
    """The value has a type or size that the state cannot hold."""

    exit_code = 40
    default_hint = (
        "Store None, bool, int, float, str, bytes, datetime, "
        "and lists and string-keyed dicts of them."
    )


class InvalidPath(StateError):
    """The path is not valid in this state."""

    exit_code = 41
    default_hint = "A path is a tuple or 'a/b/c'; list items are addressed by their index."


class PathNotFound(StateError):
    """There is nothing at the path."""

    exit_code = 42
    default_hint = "`mulligan state get` shows what is there."


class Conflict(StateError):
    """Compare-and-set found a value other than the expected one."""

    exit_code = 43
    retryable = True
    default_hint = "Read the value again, decide again, then retry."


class BatchOpen(StateError):
    """Another caller's batch is open on the handle, and waiting for it would deadlock."""

    exit_code = 44
    retryable = True
    default_hint = "Nothing was written. Give each task a handle of its own: store.session(NAME)."


class WorkspaceError(MulliganError):
    """The files of a session cannot be captured or restored as requested."""


class UnsafeWorkspace(WorkspaceError):
    """The directory must not be a workspace, unless forced."""

    exit_code = 80
    default_hint = "Choose the directory of one project, or force it if you are sure."


class UnsafeName(WorkspaceError):
    """A tree holds a name that would lead out of the workspace."""

    exit_code = 81
    default_hint = "Nothing was written. The tree did not come from a capture; do not trust it."


class RestoreBusy(WorkspaceError):
    """Another process is restoring files in the same directory."""

    exit_code = 82
    retryable = True
    default_hint = "Nothing was changed. Wait until the other restore is done, then try again."


class RestoreIncomplete(WorkspaceError):
    """After a restore, some files differ from the checkpoint."""

    exit_code = 83
    default_hint = (
        "What was there before is kept in the safety checkpoint. "
        "Fix what is said of each path, then restore again; `mulligan undo` goes back."
    )


class RestorePending(WorkspaceError):
    """The session has an unfinished restore in another directory."""

    exit_code = 84
    default_hint = (
        "Nothing was changed. In that directory, `mulligan restore --continue` finishes it and "
        "`mulligan restore --abandon` ends it where it stands; in a program, "
        "session.files.abandon()."
    )


class WorkspaceNeeded(WorkspaceError):
    """The call involves files, and the session was opened without its directory."""

    exit_code = 85
    default_hint = "Nothing was changed. Open the session with workspace=DIR."
