"""Mulligan: checkpoint and recovery for long-running AI agents.

A store holds sessions; a session is one durable timeline. The layout, from the top::

    cli/          the command line
    views/        every JSON shape that a command, a server or an MCP server shows
    coding/       coding agents: hooks and what they record; transcripts/, settings/, rewind/
    supervisor/   teams of agents as processes: started, watched, restarted, paused
    recovery/     interrupted sessions: found, planned, resumed; bisect
    aio.py        the public calls as awaitables; aio_worker.py the thread behind each handle
    make_store.py the store of a directory: made, or adopted
    move_store.py a store moved into its project, or out of it
    repair/       damaged files rebuilt from what is intact, losses healed and named
    opener.py     what mulligan.open() does: find, check, join
    upkeep/       what a store keeps, removes and proves: retention/, space/, purge/, drill/
    store.py      Store: the open handle, what mulligan.open() returns
    session/      Session: write/ the write path, parts/ with their own API, runtime/ in an agent
    drift/        runs that go wrong: signals, detector, ladder of responses, hand-over
    check/        verify: everything against everything
    timeline/     points, checkpoint records, labels, marks, diff, undo
    workspace/    files: capture/, watch/, restore/ in place, checkout/ into an empty directory
    document/     the state: values, persistent containers, fold of events, keyframes
    engine.py     joins journal and objects, and owns the order of writes
    locate/       the store of a directory: pointers, the registry, projects, git
    locked_notes.py  what a process has made and may not live to remove
    journal/      events, checkpoints, leases and the object index, in LMDB or in memory
    objects/      content-addressed packs, or memory
    codec.py      canonical encoding          model/      the nouns
    failpoints.py where a crash is injected   errors/     every error, in one tree
    procfs.py     other processes             redact.py   no secrets at rest
    decoding.py   threads decode into types   owner.py    whose the files of a store are
    pins.py       nothing is removed while an operation may still use it
    attempts.py   attempts in a row: cooldown, and how many to remember
    storage_limit.py  how much a store may still grow
    config/       tables of TOML files, checked; errors with file, line and key

Imports point down this list; ``tests/unit/test_layers.py`` holds it.
"""

from __future__ import annotations

import os

# Not from ``typing``, nor anything else that takes time to import: until ``cli.entry`` runs, a
# Ctrl-C would print a traceback.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from mulligan import errors
    from mulligan.document.document import MISSING
    from mulligan.document.values import PathLike
    from mulligan.errors import MulliganError
    from mulligan.journal.lock_owner import LockOwner, OnWait
    from mulligan.model import (
        AgentState,
        CallStatus,
        Changing,
        Checkpoint,
        CheckpointKind,
        Cost,
        Coverage,
        Digest,
        Effect,
        EffectKind,
        EffectPlan,
        EffectRule,
        EffectStatus,
        Environment,
        Event,
        FileChange,
        Finding,
        Holder,
        Lease,
        LeftOut,
        Location,
        Message,
        OpenFile,
        PathChange,
        PendingRestore,
        Plan,
        Point,
        Priority,
        Problem,
        Question,
        Repeat,
        Report,
        Restored,
        RestoreMode,
        RestoreOrigin,
        Rollback,
        Stakes,
        Task,
        TaskStatus,
        ToolCall,
        ValueChange,
        Verdict,
    )
    from mulligan.session import Session
    from mulligan.session.names import session_name
    from mulligan.session.parts.agents import Agent
    from mulligan.session.parts.approvals import Approvals
    from mulligan.session.parts.batch import Batch
    from mulligan.session.parts.checkpoints import Checkpoints
    from mulligan.session.parts.effects import ActiveEffect, Effects
    from mulligan.session.parts.files import Files
    from mulligan.session.parts.mailbox import Mailbox
    from mulligan.session.parts.operations import Operation
    from mulligan.session.parts.state import State
    from mulligan.session.parts.tasks import Tasks
    from mulligan.session.parts.tools import ActiveCall, Tools
    from mulligan.session.runtime.loop import Cycle
    from mulligan.session.state_view import StateView
    from mulligan.store import Store
    from mulligan.timeline.diff import Diff, Difference
    from mulligan.timeline.marks import Mark
    from mulligan.timeline.pinned import PinnedBy
    from mulligan.timeline.points import PointLike

__all__ = [
    "MISSING",
    "ActiveCall",
    "ActiveEffect",
    "Agent",
    "AgentState",
    "Approvals",
    "Batch",
    "CallStatus",
    "Changing",
    "Checkpoint",
    "CheckpointKind",
    "Checkpoints",
    "Cost",
    "Coverage",
    "Cycle",
    "Diff",
    "Difference",
    "Digest",
    "Effect",
    "EffectKind",
    "EffectPlan",
    "EffectRule",
    "EffectStatus",
    "Effects",
    "Environment",
    "Event",
    "FileChange",
    "Files",
    "Finding",
    "Holder",
    "Lease",
    "LeftOut",
    "Location",
    "LockOwner",
    "Mailbox",
    "Mark",
    "Message",
    "MulliganError",
    "OpenFile",
    "Operation",
    "PathChange",
    "PathLike",
    "PendingRestore",
    "PinnedBy",
    "Plan",
    "Point",
    "PointLike",
    "Priority",
    "Problem",
    "Question",
    "Repeat",
    "Report",
    "RestoreMode",
    "RestoreOrigin",
    "Restored",
    "Rollback",
    "Session",
    "Stakes",
    "State",
    "StateView",
    "Store",
    "Task",
    "TaskStatus",
    "Tasks",
    "ToolCall",
    "Tools",
    "ValueChange",
    "Verdict",
    "attach",
    "errors",
    "open",
    "session_name",
]

_HOMES = {
    "RestoreOrigin": "mulligan.model",
    "Holder": "mulligan.model",
    "MISSING": "mulligan.document.document",
    "Agent": "mulligan.session.parts.agents",
    "AgentState": "mulligan.model",
    "Changing": "mulligan.model",
    "Checkpoint": "mulligan.model",
    "CheckpointKind": "mulligan.model",
    "Checkpoints": "mulligan.session.parts.checkpoints",
    "Cost": "mulligan.model",
    "Coverage": "mulligan.model",
    "Cycle": "mulligan.session.runtime.loop",
    "Diff": "mulligan.timeline.diff",
    "Difference": "mulligan.timeline.diff",
    "Digest": "mulligan.model",
    "Environment": "mulligan.model",
    "Event": "mulligan.model",
    "FileChange": "mulligan.model",
    "Files": "mulligan.session.parts.files",
    "Lease": "mulligan.model",
    "LeftOut": "mulligan.model",
    "Location": "mulligan.model",
    "LockOwner": "mulligan.journal.lock_owner",
    "Mailbox": "mulligan.session.parts.mailbox",
    "Mark": "mulligan.timeline.marks",
    "Message": "mulligan.model",
    "MulliganError": "mulligan.errors",
    "OpenFile": "mulligan.model",
    "Operation": "mulligan.session.parts.operations",
    "PathChange": "mulligan.model",
    "PathLike": "mulligan.document.values",
    "PendingRestore": "mulligan.model",
    "PinnedBy": "mulligan.timeline.pinned",
    "Plan": "mulligan.model",
    "Point": "mulligan.model",
    "PointLike": "mulligan.timeline.points",
    "Priority": "mulligan.model",
    "Finding": "mulligan.model",
    "Problem": "mulligan.model",
    "Report": "mulligan.model",
    "RestoreMode": "mulligan.model",
    "Restored": "mulligan.model",
    "Rollback": "mulligan.model",
    "Session": "mulligan.session",
    "State": "mulligan.session.parts.state",
    "StateView": "mulligan.session.state_view",
    "Store": "mulligan.store",
    "Task": "mulligan.model",
    "TaskStatus": "mulligan.model",
    "Tasks": "mulligan.session.parts.tasks",
    "ValueChange": "mulligan.model",
    "Verdict": "mulligan.model",
    "ActiveCall": "mulligan.session.parts.tools",
    "ActiveEffect": "mulligan.session.parts.effects",
    "Approvals": "mulligan.session.parts.approvals",
    "Batch": "mulligan.session.parts.batch",
    "CallStatus": "mulligan.model",
    "Effect": "mulligan.model",
    "EffectKind": "mulligan.model",
    "EffectPlan": "mulligan.model",
    "EffectRule": "mulligan.model",
    "EffectStatus": "mulligan.model",
    "Effects": "mulligan.session.parts.effects",
    "Question": "mulligan.model",
    "Repeat": "mulligan.model",
    "Stakes": "mulligan.model",
    "ToolCall": "mulligan.model",
    "Tools": "mulligan.session.parts.tools",
    "session_name": "mulligan.session.names",
}
"""Where the public names live.

They are imported when they are first used, so that the help of the command line, which needs none
of them, starts fast.
"""


def open(
    path: str | os.PathLike[str],
    create: bool = True,
    *,
    read_only: bool = False,
    salvage: bool = False,
    keep_env: Iterable[str] = (),
    on_wait: OnWait | None = None,
) -> Store:
    """Open the store of a directory, made inside it (``DIR/.mulligan``) if there is none.

    Missing directories are made on the way.
    If the directory has a pointer, or a store that ``mulligan init`` made knows the directory, that
    store is opened. A directory with another one's pointer is refused with ``UnsafeWorkspace``.
    Without ``create``, no store is made.

    ``"memory:"`` gives a store that exists only as long as the handle. A store in a directory that
    cannot be written is opened for reading, as with ``read_only``, which waits for no writer.
    ``salvage`` also opens one with a damaged journal, for ``verify`` and to read what is intact.
    ``keep_env`` names further environment variables that checkpoints record; whatever looks like a
    secret is never stored. ``on_wait`` is called when a write, a capture or a restore has waited
    seconds for another process, with the name of that process.
    """
    from mulligan.failpoints import ignore
    from mulligan.opener import open_store

    return open_store(
        path,
        os.environ,
        create,
        keep_env,
        None,
        ignore,
        on_wait,
        read_only=read_only,
        salvage=salvage,
    )


def attach() -> Session:
    """Return the session of the agent that this process was started for.

    For processes started by ``mulligan run`` and ``mulligan up``: store, session, agent and epoch
    come from the ``MULLIGAN_*`` variables, and a separate thread sends heartbeats to the
    supervisor. Raises ``StaleLease`` when the process was replaced meanwhile.
    """
    from mulligan.opener import attach as attached

    return attached(os.environ)


def __getattr__(name: str) -> Any:
    """Import a public name from its home."""
    from importlib import import_module

    if name == "errors":
        return import_module("mulligan.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'mulligan' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """Return the public names, imported yet or not."""
    return sorted({*globals(), *__all__})
