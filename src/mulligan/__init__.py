"""Mulligan: checkpoint and recovery for long-running AI agents.

A store holds sessions; a session is one durable timeline. The layout, from the top::

    cli/          the command line
    views/        every JSON shape that a command, a server or an MCP server shows
    supervisor/   teams of agents as processes: started, watched, restarted, paused
    aio.py        the public calls as awaitables
    recovery/     interrupted sessions: found, planned, resumed; bisect
    opener.py     what mulligan.open() does: find, check, join
    move_store.py a store moved into its project, or out of it
    store.py      Store: the open handle, what mulligan.open() returns
    session/      Session: write/ the write path, parts/ with their own API, runtime/ in an agent
    check/        verify: everything against everything
    timeline/     points, checkpoint records, labels, marks, diff, undo
    workspace/    files: capture/, watch/, restore/ in place, checkout/ into an empty directory
    document/     the state: values, persistent containers, fold of events, keyframes
    engine.py     joins journal and objects, and owns the order of writes
    locate/       the store of a directory: pointers, the registry, projects, git
    journal/      events, checkpoints, leases and the object index, in LMDB or in memory
    objects/      content-addressed packs, or memory
    codec.py      canonical encoding          model.py    the nouns
    failpoints.py where a crash is injected   errors.py   every error, in one tree
    procfs.py     other processes             redact.py   no secrets at rest

Imports point down this list; ``tests/unit/test_layers.py`` holds it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mulligan import errors
from mulligan.errors import MulliganError

if TYPE_CHECKING:
    from mulligan.document.document import MISSING
    from mulligan.document.values import PathLike
    from mulligan.journal.lock_owner import LockOwner, OnWait
    from mulligan.model import (
        AgentState,
        Changing,
        Checkpoint,
        CheckpointKind,
        Cost,
        Coverage,
        Digest,
        Environment,
        Event,
        FileChange,
        Holder,
        Lease,
        LeftOut,
        Message,
        OpenFile,
        PathChange,
        PendingRestore,
        Plan,
        Point,
        Priority,
        Problem,
        Report,
        Restored,
        RestoreMode,
        RestoreOrigin,
        Rollback,
        Task,
        TaskStatus,
        UndoMode,
        ValueChange,
        Verdict,
    )
    from mulligan.session import Session
    from mulligan.session.parts.agents import Agent
    from mulligan.session.parts.mailbox import Mailbox
    from mulligan.session.parts.operations import Operation
    from mulligan.session.parts.state import State
    from mulligan.session.parts.tasks import Tasks
    from mulligan.session.runtime.loop import Cycle
    from mulligan.session.write.targets import RestorePreview
    from mulligan.store import Store
    from mulligan.timeline.diff import Diff, Difference
    from mulligan.timeline.marks import Mark
    from mulligan.timeline.points import PointLike

__all__ = [
    "MISSING",
    "Agent",
    "AgentState",
    "Changing",
    "Checkpoint",
    "CheckpointKind",
    "Cost",
    "Coverage",
    "Cycle",
    "Diff",
    "Difference",
    "Digest",
    "Environment",
    "Event",
    "FileChange",
    "Holder",
    "Lease",
    "LeftOut",
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
    "Plan",
    "Point",
    "PointLike",
    "Priority",
    "Problem",
    "Report",
    "RestoreMode",
    "RestoreOrigin",
    "RestorePreview",
    "Restored",
    "Rollback",
    "Session",
    "State",
    "Store",
    "Task",
    "TaskStatus",
    "Tasks",
    "UndoMode",
    "ValueChange",
    "Verdict",
    "attach",
    "errors",
    "open",
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
    "Cost": "mulligan.model",
    "Coverage": "mulligan.model",
    "Cycle": "mulligan.session.runtime.loop",
    "Diff": "mulligan.timeline.diff",
    "Difference": "mulligan.timeline.diff",
    "Digest": "mulligan.model",
    "Environment": "mulligan.model",
    "Event": "mulligan.model",
    "FileChange": "mulligan.model",
    "Lease": "mulligan.model",
    "LeftOut": "mulligan.model",
    "LockOwner": "mulligan.journal.lock_owner",
    "Mailbox": "mulligan.session.parts.mailbox",
    "Mark": "mulligan.timeline.marks",
    "Message": "mulligan.model",
    "OpenFile": "mulligan.model",
    "Operation": "mulligan.session.parts.operations",
    "PathChange": "mulligan.model",
    "PathLike": "mulligan.document.values",
    "PendingRestore": "mulligan.model",
    "Plan": "mulligan.model",
    "Point": "mulligan.model",
    "PointLike": "mulligan.timeline.points",
    "Priority": "mulligan.model",
    "Problem": "mulligan.model",
    "Report": "mulligan.model",
    "RestoreMode": "mulligan.model",
    "RestorePreview": "mulligan.session.write.targets",
    "Restored": "mulligan.model",
    "Rollback": "mulligan.model",
    "Session": "mulligan.session",
    "State": "mulligan.session.parts.state",
    "Store": "mulligan.store",
    "Task": "mulligan.model",
    "TaskStatus": "mulligan.model",
    "Tasks": "mulligan.session.parts.tasks",
    "UndoMode": "mulligan.model",
    "ValueChange": "mulligan.model",
    "Verdict": "mulligan.model",
}
"""Where the public names live. They are imported when they are first used, so that the help of
the command line, which needs none of them, starts fast."""


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

    A pointer in the directory is followed, and so is what the stores that ``mulligan init`` made
    know of it; a directory with the pointer of another one is refused with ``UnsafeWorkspace``.
    None is made unless ``create``.

    ``"memory:"`` gives a store that lives and dies with the handle. A store in a directory that
    cannot be written is opened for reading, as with ``read_only``, which waits for no writer.
    ``salvage`` opens one with a damaged journal, too, for ``verify`` and to read what is sound.
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
    come from the ``MULLIGAN_*`` variables, and a thread of its own tells the supervisor that the
    process lives. Raises ``StaleLease`` when the process was replaced meanwhile.
    """
    from mulligan.opener import attach as attached

    return attached(os.environ)


def __getattr__(name: str) -> Any:
    """Import a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mulligan' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """Return the public names, imported yet or not."""
    return sorted({*globals(), *__all__})
