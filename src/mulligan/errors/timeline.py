"""Every error Mulligan raises, in one tree.

Each class has an exit code for the command line. Each instance has a one-sentence message
(``str(error)``), a ``hint`` that says what is safe and what to do next, and ``retryable``: whether
the same call may succeed later without any change.

::

    MulliganError (1)
    ├── StoreError
    │   ├── StoreNotFound (10)      nothing there
    │   ├── NotAStore (11)          something else is there
    │   ├── UnknownFormat (12)      written by a version that this one does not know
    │   ├── StoreOpenedTwice (13)   the journal is open elsewhere in this process
    │   ├── ReadOnlyStore (14)      a write to a store that cannot be written
    │   ├── DiskFull (15)           no space left; nothing acknowledged was lost
    │   ├── StoreClosed (16)        the handle was closed
    │   ├── InvalidConfig (17)      config.toml cannot be used
    │   ├── StoreUnwritable (18)    the system refused to write a store file; retryable
    │   ├── StoreGone (19)          it was removed or replaced while it was open
    │   ├── MemoryLimit (25)        a limit on memory leaves too little to open the journal
    │   ├── StoreInUse (24)         other processes have it open; retryable
    │   ├── UpkeepBusy (26)         another process looks after it; retryable
    │   ├── QuotaExceeded (29)      what must be kept is larger than its quota
    │   ├── PurgeRefused (122)      it would remove what must stay, or was not confirmed
    │   └── PurgeUnfinished (123)   bytes of what was purged may be left
    ├── SessionError
    │   ├── UnknownSession (20)
    │   ├── SessionExists (21)
    │   ├── InvalidName (22)
    │   └── KeyTaken (23)           a foreign key that another session or checkpoint has
    ├── PointError
    │   ├── UnknownPoint (30)
    │   ├── AmbiguousPoint (31)
    │   ├── NothingToUndo (32)
    │   ├── InvalidMark (33)        a verdict that is neither good nor bad
    │   ├── CannotBisect (34)       the points or the command leave nothing to search
    │   ├── PointFolded (35)        its event was removed by retention
    │   ├── FilesPruned (36)        the checkpoint with its files was removed by retention
    │   ├── CheckpointPruned (37)   retention removed it; its event is still there
    │   ├── CheckpointDamaged (38)  it lost a part of what it held to damage
    │   ├── CheckpointNeeded (45)   it cannot be deleted: something needs it
    │   └── PlanOutdated (39)       a plan of a restore that is not known, or no longer holds
    ├── StateError
    │   ├── UnstorableValue (40)
    │   ├── InvalidPath (41)
    │   ├── PathNotFound (42)
    │   ├── Conflict (43)           compare-and-set found another value; retryable
    │   └── BatchOpen (44)          another task's batch is open on this handle; retryable
    ├── LeaseError
    │   ├── LeaseHeld (50)          retryable
    │   └── StaleLease (51)         this writer was replaced
    ├── TaskError
    │   ├── UnknownTask (90)
    │   ├── InvalidTask (91)        an invalid task, message or agent state
    │   ├── NotAttached (92)        no supervisor started this process
    │   ├── InvalidWorkflow (93)    a workflow that cannot be run
    │   └── NotRunning (94)         no supervisor runs the session
    ├── DriftError
    │   ├── InvalidTrace (110)      a recorded run that cannot be read
    │   ├── InvalidSignal (111)     an installed signal that cannot be used
    │   └── AgentIsolated (112)     the ladder of responses has ended; a person decides
    ├── RecoveryError
    │   ├── StillRunning (100)      a live supervisor runs the session
    │   ├── RecoveryStopped (101)   every recovery step was tried
    │   └── DrillFailed (102)       a drill did not bring everything back
    ├── EffectError
    │   ├── UnknownEffect (113)     no effect or tool call of that id
    │   ├── InvalidEffect (114)     an effect, rule, answer or step that cannot be meant
    │   ├── EffectInDoubt (115)     it may have happened: check, then settle it
    │   ├── EffectDenied (116)      a person, a deadline or a rule denied it
    │   ├── ApprovalPending (117)   it waits for approval; retryable
    │   ├── EffectRepeated (118)    it was done beyond the point that was restored
    │   ├── LeftBehind (119)        a restore would leave irreversible effects behind
    │   ├── CompensationFailed (120) the undo of an effect failed; nothing was restored
    │   └── StepChanged (121)       a step was recorded with other arguments
    ├── WorkspaceError
    │   ├── UnsafeWorkspace (80)    the directory must not be a workspace
    │   ├── UnsafeName (81)         a tree that would write outside its root
    │   ├── RestoreBusy (82)        another process restores files in the directory; retryable
    │   ├── RestoreIncomplete (83)  the files are not all as the checkpoint says
    │   ├── RestorePending (84)     an earlier restore must be finished or abandoned first
    │   └── WorkspaceNeeded (85)    the call involves files, and this handle has no directory
    ├── CodingAgentError
    │   ├── InvalidHook (103)       hook JSON that cannot be used; the agent goes on
    │   ├── InvalidSettings (104)   the agent's settings file is not as expected; unchanged
    │   ├── HooksUnhealthy (105)    `mulligan doctor` found something wrong
    │   └── CannotRewind (106)      there is no such conversation, prompt or checkpoint
    ├── RequestError
    │   ├── InvalidArguments (124)  a tool was called with arguments that it does not take
    │   └── UnsafeHelper (125)      the helper's directory is not this user's
    └── DamageError
        ├── DamagedObject (60)
        ├── MissingObject (61)
        ├── DamagedPack (62)
        ├── DamagedJournal (63)
        └── PurgedContent (65)      it was removed from all history on purpose
"""

from __future__ import annotations

from typing import ClassVar


class MulliganError(Exception):
    """The base of every error that Mulligan raises deliberately."""

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = self.default_hint if hint is None else hint
        if self.hint:
            self.add_note(f"Hint: {self.hint}")  # so that tracebacks show it, too


class StoreError(MulliganError):
    """The store as a whole cannot be used as requested."""


class StoreNotFound(StoreError):
    """There is no store at the path."""

    exit_code = 10
    default_hint = "Run `mulligan init` in the directory you work in, or pass --store."


class NotAStore(StoreError):
    """The path exists and is something other than a store."""

    exit_code = 11
    default_hint = "Nothing was changed there. Choose another path, or an empty directory."


class UnknownFormat(StoreError):
    """The store was written in a format that this version does not know."""

    exit_code = 12
    default_hint = "Nothing was changed. Upgrade Mulligan, then try again."


class StoreOpenedTwice(StoreError):
    """The journal is already open in this process through something other than Mulligan."""

    exit_code = 13
    default_hint = "Use one handle per process: share the Store, or close the other one first."


class ReadOnlyStore(StoreError):
    """A write to a store that cannot be written."""

    exit_code = 14
    default_hint = "Reading still works. Make the directory writable, or copy the store elsewhere."


class DiskFull(StoreError):
    """The disk has no space left."""

    exit_code = 15
    retryable = True
    default_hint = "Everything acknowledged before is safe. Free some space, then try again."


class StoreClosed(StoreError):
    """The store handle was closed."""

    exit_code = 16
    default_hint = "Open the store again with mulligan.open()."


class InvalidConfig(StoreError):
    """The store's configuration is invalid."""

    exit_code = 17
    default_hint = "Nothing was changed. Fix or delete the file; without it, defaults apply."


class StoreUnwritable(StoreError):
    """The operating system refused to write a file of the store."""

    exit_code = 18
    retryable = True
    default_hint = "Everything acknowledged before is safe. Fix what the message names, then retry."


class StoreGone(StoreError):
    """The store was removed, moved or replaced while it was open."""

    exit_code = 19
    default_hint = (
        "What was written before is gone with it; nothing more is written. Put the store back from "
        "a copy, or create a new one with `mulligan init`, then start again."
    )


class MemoryLimit(StoreError):
    """A limit on this process's memory leaves too little to open the journal."""

    exit_code = 25
    default_hint = "Nothing was changed. Raise the limit (`ulimit -v`), then try again."


class StoreInUse(StoreError):
    """Other processes have the store open."""

    exit_code = 24
    retryable = True
    default_hint = "Nothing was changed. End the agents and programs that use it, then try again."


class UpkeepBusy(StoreError):
    """Another process prunes, collects, purges or repairs the store."""

    exit_code = 26
    retryable = True
    default_hint = "Nothing was changed. Try again when the other process is done."


class QuotaExceeded(StoreError):
    """The store is larger than its quota, although all that may be removed was."""

    exit_code = 29
    default_hint = (
        "Checkpoints hold no files until there is room. Raise the quota, or unpin, drop labels and "
        "clear checkpoints: `mulligan prune --dry-run` says what keeps each."
    )


class PurgeRefused(StoreError):
    """A purge that cannot be done as requested, or that was not confirmed."""

    exit_code = 122
    default_hint = "Nothing was changed."


class PurgeUnfinished(StoreError):
    """What was purged is out of reach, but bytes of it may be left in files of the store."""

    exit_code = 123
    default_hint = (
        "Nothing can read it through Mulligan any more. End what the message names, then run "
        "`mulligan purge --finish`."
    )


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


class LeaseError(MulliganError):
    """A writer's lease could not be taken or kept."""


class LeaseHeld(LeaseError):
    """Another live writer holds the lease."""

    exit_code = 50
    retryable = True
    default_hint = "Wait until it expires or its holder ends, or take it over with steal=True."


class StaleLease(LeaseError):
    """This writer was replaced; its writes are no longer accepted."""

    exit_code = 51
    default_hint = "Stop this process. Its successor continues from the journal's head."


class TaskError(MulliganError):
    """A task, a message or an agent cannot be used as requested."""


class UnknownTask(TaskError):
    """There is no task with that id."""

    exit_code = 90
    default_hint = "`mulligan tasks` lists the tasks of a session."


class InvalidTask(TaskError):
    """A task, a message or the state of an agent is not valid."""

    exit_code = 91
    default_hint = "Nothing was written."


class NotAttached(TaskError):
    """This process was not started for an agent."""

    exit_code = 92
    default_hint = "Start it with `mulligan run -- CMD`, or open the store with mulligan.open()."


class InvalidWorkflow(TaskError):
    """A workflow is not valid."""

    exit_code = 93
    default_hint = "Nothing was started. `mulligan help agents` lists every key of a workflow."


class NotRunning(TaskError):
    """No supervisor runs the session, or it does not respond."""

    exit_code = 94
    default_hint = (
        "`mulligan status` shows what runs; `mulligan up` or `mulligan resume` continues."
    )


class DriftError(MulliganError):
    """Something about the detection of drift."""


class InvalidTrace(DriftError):
    """A file of recorded runs cannot be read."""

    exit_code = 110
    default_hint = (
        "`mulligan help signals` describes the format: one JSON object per line, with steps."
    )


class InvalidSignal(DriftError):
    """An installed package offers a signal that cannot be used, or that failed."""

    exit_code = 111
    default_hint = "Fix or remove the package that offers it, or turn it off in [drift]."


class AgentIsolated(DriftError):
    """The agent went wrong so often that it is not started again until a person says so."""

    exit_code = 112
    default_hint = (
        "Nothing is lost. `mulligan drift --explain` shows what happened; "
        "`mulligan drift release AGENT` lets it go on."
    )


class RecoveryError(MulliganError):
    """A session cannot be recovered as requested."""


class StillRunning(RecoveryError):
    """A live supervisor runs the session."""

    exit_code = 100
    default_hint = "Nothing was changed. `mulligan pause` stops it at a safe point first."


class RecoveryStopped(RecoveryError):
    """Every way to recover the session was tried and failed."""

    exit_code = 101
    default_hint = (
        "Nothing is lost. Choose a point in `mulligan log`, then `mulligan resume --from POINT`."
    )


class DrillFailed(RecoveryError):
    """A drill could not bring back everything that the point holds."""

    exit_code = 102
    default_hint = (
        "Nothing was changed. `mulligan verify --full` lists all damage; `mulligan drill POINT` "
        "tries an earlier point."
    )


class EffectError(MulliganError):
    """An effect, a step or a tool call is not possible as requested.

    ``effect`` is the id of the effect, where the error is about one.
    """

    def __init__(self, message: str, *, hint: str | None = None, effect: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.effect = effect


class UnknownEffect(EffectError):
    """There is no effect, and no tool call, of that id."""

    exit_code = 113
    default_hint = "`mulligan effects` lists the effects of a session, `mulligan tools` the calls."


class InvalidEffect(EffectError):
    """An effect, a rule, an answer or a step that cannot be meant."""

    exit_code = 114
    default_hint = "Nothing was written."


class EffectInDoubt(EffectError):
    """Whether the effect happened is not known: its process died while it acted."""

    exit_code = 115
    default_hint = (
        "Nothing was done again. Check outside, then `mulligan effects settle ID done|failed`."
    )


class EffectDenied(EffectError):
    """The effect must not happen."""

    exit_code = 116
    default_hint = "Nothing was done. `mulligan effects` shows who decided, and why."


class ApprovalPending(EffectError):
    """The effect waits for approval; the same call goes on once there is an answer."""

    exit_code = 117
    retryable = True
    default_hint = "`mulligan approve ID` or `mulligan deny ID` answers; then call it again."


class EffectRepeated(EffectError):
    """The same effect was done beyond the point that the session went back to."""

    exit_code = 118
    default_hint = 'Choose: repeat="reuse" takes its result, repeat="allow" does it again.'


class LeftBehind(EffectError):
    """A restore would leave effects behind that cannot be undone."""

    exit_code = 119
    default_hint = "Nothing was changed. Accept it: accept_left_behind=True, --accept-left-behind."


class CompensationFailed(EffectError):
    """The undo of an effect failed, so nothing was restored."""

    exit_code = 120
    default_hint = "Nothing was restored. Restore again: it goes on with this effect."


class StepChanged(EffectError):
    """A step is recorded with other arguments than it is called with."""

    exit_code = 121
    default_hint = (
        'Nothing ran. Choose: session.durable(changed="reuse") or changed="rerun", or another name.'
    )


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


class CodingAgentError(MulliganError):
    """The hooks of a coding agent, or its settings, cannot be used as requested."""


class InvalidHook(CodingAgentError):
    """The JSON that a coding agent gave its hook cannot be used."""

    exit_code = 103
    default_hint = "Nothing was recorded. The next hook records what this one would have."


class InvalidSettings(CodingAgentError):
    """The settings file of a coding agent is not as expected."""

    exit_code = 104
    default_hint = "Nothing was changed. Fix the file, or add the hooks by hand."


class HooksUnhealthy(CodingAgentError):
    """A check of hooks and store found something wrong."""

    exit_code = 105
    default_hint = "The sentences above say what is wrong and what helps."


class CannotRewind(CodingAgentError):
    """A conversation cannot be taken back as requested."""

    exit_code = 106
    default_hint = "Nothing was changed. `mulligan rewind` lists the prompts of a conversation."


class RequestError(MulliganError):
    """A request of another program cannot be answered as it was made."""


class InvalidArguments(RequestError):
    """A tool was called with arguments that it does not take."""

    exit_code = 124
    default_hint = "Nothing was done. The schema of the tool says what it takes."


class UnsafeHelper(RequestError):
    """The directory of the resident helper does not belong to this user."""

    exit_code = 125
    default_hint = "Nothing was sent. Hooks work without the helper; remove that directory."


class DamageError(MulliganError):
    """Stored bytes differ from what was written."""


class DamagedObject(DamageError):
    """An object's bytes do not match its digest."""

    exit_code = 60
    default_hint = "Nothing wrong was returned. `mulligan verify --full` lists all damage."


class MissingObject(DamageError):
    """An object that is referred to is not in the store."""

    exit_code = 61
    default_hint = "`mulligan verify --full` lists all damage; other sessions may be unaffected."


class DamagedPack(DamageError):
    """A pack file differs from what the index says."""

    exit_code = 62
    default_hint = "Objects in other packs are safe. `mulligan verify --full` lists all damage."


class DamagedJournal(DamageError):
    """A journal record does not match its hash chain."""

    exit_code = 63
    table: str | None = None
    """The table of the damaged record, if it is known."""
    default_hint = "Nothing wrong was returned. `mulligan verify` says where the chain breaks."


class PurgedContent(DamageError):
    """Content that a purge removed from all history; the message says when, by whom and why."""

    exit_code = 65
    default_hint = "Everything else of the point is there. `mulligan show` names what is not."
