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

from mulligan.errors.agents import (
    AgentIsolated,
    ApprovalPending,
    CompensationFailed,
    DriftError,
    DrillFailed,
    EffectDenied,
    EffectError,
    EffectInDoubt,
    EffectRepeated,
    InvalidEffect,
    InvalidSignal,
    InvalidTask,
    InvalidTrace,
    InvalidWorkflow,
    LeaseError,
    LeaseHeld,
    LeftBehind,
    NotAttached,
    NotRunning,
    RecoveryError,
    RecoveryStopped,
    StaleLease,
    StepChanged,
    StillRunning,
    TaskError,
    UnknownEffect,
    UnknownTask,
)
from mulligan.errors.base import (
    MulliganError,
)
from mulligan.errors.programs import (
    CannotRewind,
    CodingAgentError,
    HooksUnhealthy,
    InvalidArguments,
    InvalidHook,
    InvalidSettings,
    RequestError,
    UnsafeHelper,
)
from mulligan.errors.store import (
    DamagedJournal,
    DamagedObject,
    DamagedPack,
    DamageError,
    DiskFull,
    InvalidConfig,
    MemoryLimit,
    MissingObject,
    NotAStore,
    PurgedContent,
    PurgeRefused,
    PurgeUnfinished,
    QuotaExceeded,
    ReadOnlyStore,
    StoreClosed,
    StoreError,
    StoreGone,
    StoreInUse,
    StoreNotFound,
    StoreOpenedTwice,
    StoreUnwritable,
    UnknownFormat,
    UpkeepBusy,
)
from mulligan.errors.timeline import (
    AmbiguousPoint,
    BatchOpen,
    CannotBisect,
    CheckpointDamaged,
    CheckpointNeeded,
    CheckpointPruned,
    Conflict,
    FilesPruned,
    InvalidMark,
    InvalidName,
    InvalidPath,
    KeyTaken,
    NothingToUndo,
    PathNotFound,
    PlanOutdated,
    PointError,
    PointFolded,
    RestoreBusy,
    RestoreIncomplete,
    RestorePending,
    SessionError,
    SessionExists,
    StateError,
    UnknownPoint,
    UnknownSession,
    UnsafeName,
    UnsafeWorkspace,
    UnstorableValue,
    WorkspaceError,
    WorkspaceNeeded,
)

__all__ = [
    "AgentIsolated",
    "AmbiguousPoint",
    "ApprovalPending",
    "BatchOpen",
    "CannotBisect",
    "CannotRewind",
    "CheckpointDamaged",
    "CheckpointNeeded",
    "CheckpointPruned",
    "CodingAgentError",
    "CompensationFailed",
    "Conflict",
    "DamageError",
    "DamagedJournal",
    "DamagedObject",
    "DamagedPack",
    "DiskFull",
    "DriftError",
    "DrillFailed",
    "EffectDenied",
    "EffectError",
    "EffectInDoubt",
    "EffectRepeated",
    "FilesPruned",
    "HooksUnhealthy",
    "InvalidArguments",
    "InvalidConfig",
    "InvalidEffect",
    "InvalidHook",
    "InvalidMark",
    "InvalidName",
    "InvalidPath",
    "InvalidSettings",
    "InvalidSignal",
    "InvalidTask",
    "InvalidTrace",
    "InvalidWorkflow",
    "KeyTaken",
    "LeaseError",
    "LeaseHeld",
    "LeftBehind",
    "MemoryLimit",
    "MissingObject",
    "MulliganError",
    "NotAStore",
    "NotAttached",
    "NotRunning",
    "NothingToUndo",
    "PathNotFound",
    "PlanOutdated",
    "PointError",
    "PointFolded",
    "PurgeRefused",
    "PurgeUnfinished",
    "PurgedContent",
    "QuotaExceeded",
    "ReadOnlyStore",
    "RecoveryError",
    "RecoveryStopped",
    "RequestError",
    "RestoreBusy",
    "RestoreIncomplete",
    "RestorePending",
    "SessionError",
    "SessionExists",
    "StaleLease",
    "StateError",
    "StepChanged",
    "StillRunning",
    "StoreClosed",
    "StoreError",
    "StoreGone",
    "StoreInUse",
    "StoreNotFound",
    "StoreOpenedTwice",
    "StoreUnwritable",
    "TaskError",
    "UnknownEffect",
    "UnknownFormat",
    "UnknownPoint",
    "UnknownSession",
    "UnknownTask",
    "UnsafeHelper",
    "UnsafeName",
    "UnsafeWorkspace",
    "UnstorableValue",
    "UpkeepBusy",
    "WorkspaceError",
    "WorkspaceNeeded",
]
