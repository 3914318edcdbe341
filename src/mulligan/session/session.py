"""The session: one timeline of one agent or a team of agents."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path as OsPath
from types import TracebackType
from typing import Any, Self

import msgspec

from mulligan.document.document import MISSING
from mulligan.document.fold import STATE
from mulligan.document.values import PathLike, freeze, parse_path
from mulligan.engine import Engine
from mulligan.errors import (
    InvalidMark,
    UnknownPoint,
    UnstorableValue,
)
from mulligan.model import (
    Checkpoint,
    CheckpointKind,
    Event,
    Lease,
    PendingRestore,
    Plan,
    Point,
    Problem,
    Restored,
    Rollback,
    SessionRecord,
    UndoMode,
    Verdict,
)
from mulligan.session import arguments
from mulligan.session.environment import EnvironmentReader
from mulligan.session.history import History
from mulligan.session.internals import Internals
from mulligan.session.names import check_name
from mulligan.session.parts.agents import Agent
from mulligan.session.parts.mailbox import Mailbox
from mulligan.session.parts.operations import Operation
from mulligan.session.parts.state import State
from mulligan.session.parts.tasks import Tasks
from mulligan.session.runtime.loop import REFRESH_SECONDS, Cycle, Loop
from mulligan.session.write import leases
from mulligan.session.write.capture_guard import CaptureGuard, note_without_files
from mulligan.session.write.checkpointer import Checkpointer, CheckpointRequest
from mulligan.session.write.files import Files
from mulligan.session.write.fork import make_fork
from mulligan.session.write.fork_with_files import Forker
from mulligan.session.write.restorer import Restorer, Target
from mulligan.session.write.targets import RestorePreview, Targets
from mulligan.session.write.writer import Writer
from mulligan.timeline.diff import Diff, diff, known_parts
from mulligan.timeline.labels import drop_change, label_seq
from mulligan.timeline.marks import Mark, mark_change, read_marks
from mulligan.timeline.points import PointLike
from mulligan.timeline.record import changed_paths, checkpoint_record
from mulligan.timeline.undo import first_restore
from mulligan.workspace.locks import is_restoring
from mulligan.workspace.workspace import Workspace


class Session:
    """One run of one agent or a team: its state, its checkpoints, its history.

    ``store.session(name)`` opens one, and ``store.agent(name, session=...)`` opens one as the only
    writer of an agent. Every process that opens a session sees what the others write, and may
    write itself. Use it as a context manager, or call :meth:`close`.

    ``state`` is the shared document, ``tasks`` the plan of work, ``mailbox`` the messages between
    agents, ``agent`` the record of the agent that this handle writes for. ``internal`` is for
    Mulligan itself and may change at any time.
    """

    def __init__(
        self,
        engine: Engine,
        record: SessionRecord,
        actor: str,
        environment: EnvironmentReader,
        workspace: Workspace | None = None,
    ) -> None:
        self._engine = engine
        self._record = record
        self._environment_reader = environment
        self._workspace = workspace
        self._writer = Writer(engine, record, actor)
        self._checkpointer = Checkpointer(engine, environment, workspace)
        self._files = Files(engine, record, workspace)
        self._history = History(engine, record, self._writer)
        self._targets = Targets(self._writer, self._files, workspace, self._history.document_at)
        self._restorer = Restorer(engine, record, self._writer, self._checkpointer, workspace)
        self._captures = CaptureGuard(engine, record, self._restorer, workspace)
        self._state = State(self._writer)
        self._tasks = Tasks(self._writer)
        self._mailbox = Mailbox(self._writer, leases.this_process())
        self._agent = Agent(self._writer, actor)
        self._internal = Internals(
            engine,
            record,
            environment,
            workspace,
            self._writer,
            self._history,
            self._files,
            self._captures,
        )

    def __repr__(self) -> str:
        return f"<Session {self.name!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def state(self) -> State:
        """The shared document: get, set, append, extend, put and delete values by path."""
        return self._state

    @property
    def tasks(self) -> Tasks:
        """The plan: tasks with dependencies, each claimed by one agent at a time."""
        return self._tasks

    @property
    def mailbox(self) -> Mailbox:
        """The messages to this handle's agent, and the way to send messages to others."""
        return self._mailbox

    @property
    def agent(self) -> Agent:
        """The record of the agent that this handle writes for."""
        return self._agent

    @property
    def internal(self) -> Internals:
        """Leases, control records and raw events, for Mulligan itself; no public API."""
        return self._internal

    @property
    def name(self) -> str:
        """The session's name."""
        return self._record.name

    @property
    def created(self) -> datetime:
        """When the session was made."""
        return self._record.created

    @property
    def actor(self) -> str:
        """The name under which this handle writes."""
        return self._writer.actor

    @property
    def parent(self) -> Point | None:
        """Where this session was forked from, if it was."""
        return self._history.parent()

    @property
    def directory(self) -> OsPath | None:
        """The directory of this fork, or of its nearest ancestor; None without one.

        The files were there when it was made; they may have been moved since.
        """
        return self._history.directory()

    @property
    def head(self) -> Point:
        """The session and sequence number of the newest event."""
        with self._engine.read() as view:
            return Point(self.name, view.head(self._record.number).seq)

    @property
    def updated(self) -> datetime:
        """When the newest event was written."""
        with self._engine.read() as view:
            return view.head(self._record.number).time

    @property
    def lease(self) -> Lease | None:
        """The lease this handle holds as the one writer of its agent."""
        return self._writer.lease

    def close(self) -> None:
        """Save the file index for the next process, and release the lease.

        Idempotent; the store stays open. Without it, the next process reads all files again.
        """
        try:
            if self.agent.heart is not None:
                self.agent.heart.stop()
            if self._workspace is not None:
                self._workspace.close()
        finally:
            # Last: while the index is written, no other process may write for this agent.
            if self.lease is not None:
                self.internal.release()

    def batch(self) -> AbstractContextManager[None]:
        """Group all state changes inside into one transaction: all of them happen, or none.

        It belongs to the thread and the asyncio task that opened it. Until it ends, its changes
        are not visible elsewhere, and other threads that write through this handle wait. Other
        tasks of the thread, and work started inside (``asyncio.gather``, ``asyncio.to_thread``),
        may read; their writes raise ``BatchOpen``. Give each task its own handle,
        ``store.session(name)``, if they have to write at the same time.
        """
        return self._writer.batch()

    def operation(self, name: str, rollback: Rollback | None = None) -> Operation:
        """Take a checkpoint before something risky; roll back to it if that raises.

        A context manager and a decorator. ``rollback`` says what is rolled back: ``state``,
        ``workspace``, ``both`` or ``none``. The default is both, but only the state while other
        agents are at work here, because they share the files. What others wrote to the state in
        the meantime always stays. A recovery checkpoint keeps what the failure left before the
        rollback; afterwards the exception propagates.
        """
        return Operation(self, name, rollback)

    def loop(
        self,
        checkpoint_interval: float | None = None,
        refresh_after: float = REFRESH_SECONDS,
        collect: Callable[[], Any] | None = None,
    ) -> Iterator[Cycle]:
        """Yield the cycles of an agent that owns its loop, until it is asked to pause.

        Between two cycles is a safe point. There, a routine checkpoint is taken every
        ``checkpoint_interval`` seconds and the supervisor's requests are answered, with what
        ``collect`` returns as the agent's private state. After ``refresh_after`` seconds, a
        recovery checkpoint is taken and the process restarted. Use ``with cycle:`` around the
        body, so that an exception leaves a recovery checkpoint before it propagates.
        """
        period = (
            self.internal.checkpoint_interval
            if checkpoint_interval is None
            else arguments.seconds(checkpoint_interval, "checkpoint_interval=", zero=True)
        )
        age = arguments.seconds(refresh_after, "refresh_after=", zero=True)
        return iter(Loop(self, period, age, collect))

    def checkpoint(
        self,
        kind: CheckpointKind | str = "manual",
        note: str | None = None,
        label: str | None = None,
    ) -> Checkpoint:
        """Take a checkpoint of the newest state; it is durable when this returns.

        ``kind`` is ``routine``, ``pre_operation``, ``recovery``, ``manual`` or one of your own. A
        ``label`` that is in use moves here; the checkpoint that had it keeps it in its record.
        It waits while another process restores files in the workspace, and first finishes an
        interrupted restore. If that fails, the checkpoint holds no files, and its note says so.
        """
        check_name(kind, "checkpoint kind")
        if label is not None:
            check_name(label, "label")
        if note is not None:
            note = freeze(arguments.text(note, "A note", UnstorableValue), ("note",))
        started = self._engine.clock.monotonic()
        bundle = self._engine.bundle()
        # The lock is held until the commit: otherwise a restore could come in between, and files
        # from before it would be recorded after it.
        with self._writer.alone(), self._captures.settled() as pending:
            noted = note if pending is None else note_without_files(note, pending)
            request = CheckpointRequest(kind, noted, label)
            with self._checkpointer.capture(bundle, started, files=pending is None) as parts:
                seq = self._writer.commit(
                    lambda work: self._checkpointer.add(work, request, parts), bundle
                )
        return self._history.checkpoint_at(seq)

    def checkpoints(self, newest: int | None = None) -> list[Checkpoint]:
        """Return the checkpoints on this timeline, oldest first, those before a fork included.

        ``newest`` limits them to the last ones.
        """
        return self._history.checkpoints(newest)

    def find_checkpoint(self, point: PointLike) -> Checkpoint:
        """Return the checkpoint at or before a point."""
        return self._history.find_checkpoint(point)

    def mark(self, point: PointLike, verdict: Verdict, note: str | None = None) -> Checkpoint:
        """Give the checkpoint at or before a point the verdict ``good`` or ``bad``; return it.

        ``@good`` and ``@bad`` name the latest ones; a rollback prefers the last good one.
        """
        arguments.optional_text(note, "A note", InvalidMark)
        place = self.point(point)
        if place.session != self.name:
            raise UnknownPoint(
                f"#{place.seq} of {place.session!r} is not on the timeline of {self.name!r}.",
                hint=f"Mark it in the session {place.session!r}.",
            )
        checkpoint = self.find_checkpoint(place)
        if restored := first_restore(self.events(checkpoint, place)):
            raise InvalidMark(
                f"No checkpoint holds what was at #{place.seq}: the restore #{restored.seq} came "
                f"after the checkpoint #{checkpoint.seq}.",
                hint="Nothing was marked. Name a checkpoint, or take one and mark that.",
            )
        self.internal.commit_events(
            lambda _: [mark_change(checkpoint.id, Mark(verdict, self.actor, note))]
        )
        return checkpoint

    def marks(self) -> dict[str, Mark]:
        """Return the verdicts on checkpoints of this timeline, by their ids."""
        return read_marks(self._writer.document())

    def labels(self) -> dict[str, Point]:
        """Return the labels of this timeline with the checkpoints that they name, newest first.

        A label names the newest checkpoint that got it.
        """
        return self._history.labels()

    def drop_label(self, label: str) -> Checkpoint:
        """Remove a label, and return the checkpoint it named.

        The checkpoint stays and can be named by its id; a later one can get the label.
        """
        with self._engine.read() as view:
            seq = label_seq(self._engine, view, self._record, check_name(label, "label"))
        if seq is None:
            raise UnknownPoint(
                f"There is no label {label!r} on the timeline of session {self.name!r}.",
                hint="`mulligan label` lists the labels of a session.",
            )
        checkpoint = self.find_checkpoint(seq)
        self.internal.commit_events(lambda _: [drop_change(label, seq, checkpoint.id)])
        return checkpoint

    def point(self, point: PointLike) -> Point:
        """Return the session and sequence number of a point; see ``mulligan.timeline.points``."""
        return self._history.point(point)

    def events(
        self, since: PointLike | None = None, until: PointLike | None = None, follow: bool = False
    ) -> Iterator[Event]:
        """Yield the events after ``since`` up to and including ``until``.

        With ``follow``, it waits for new events from any process, and does not end on its own.
        It raises ``StoreGone`` once the store was removed or replaced.
        """
        return self._history.events(since, until, follow=follow)

    def state_at(self, point: PointLike, path: PathLike = "", default: Any = None) -> Any:
        """Return the state as it was at a point, or one value of it; nothing is changed."""
        document = self._history.document_at(self.point(point))
        found = document.find((*STATE, *parse_path(path)))
        return default if found is MISSING else document.plain(found)

    def diff(
        self,
        before: PointLike,
        after: PointLike | None = None,
        only: Sequence[PathLike] | None = None,
    ) -> Diff:
        """Return what differs in state, conversation and files between two points.

        ``after`` defaults to the present. The points may be in different sessions. ``only`` names
        the parts to compare; a part that neither point has raises ``PathNotFound``.
        """
        only = arguments.parts(only)
        one = self.point(before)
        other = self.head if after is None else self.point(after)
        beside = self._targets.find(other)
        target = self._targets.find(one, only, beside)
        found = diff(one, other, target.document, beside.document, target.only)
        if target.tree is None:
            return found
        if after is None:
            with self._writer.exclusive():
                changes = self._files.changes_until_now(target.tree, target.paths)
        elif beside.tree is None:
            return found
        else:
            changes = self._files.changes(target.tree, beside.tree, target.paths)
        return msgspec.structs.replace(found, files=tuple(changes))

    def record(self, point: PointLike) -> dict[str, Any]:
        """Return the checkpoint at or before a point as one document for recovery.

        Its fields are those of ``mulligan show --json``; see ``mulligan.timeline.record``.
        """
        checkpoint = self.find_checkpoint(point)
        named = self.labels().get(checkpoint.label or "")
        with self._engine.read() as view:
            records = view.sessions()
        return checkpoint_record(
            checkpoint,
            self.state_at(checkpoint),
            digest=self.internal.state_digest(checkpoint),
            changed=changed_paths(self.diff(checkpoint.parent or 1, checkpoint)),
            sessions=[made.name for made in records if made.created <= checkpoint.time],
            mark=self.marks().get(checkpoint.id),
            label_at=named.checkpoint if named else None,
        )

    def restore(
        self,
        point: PointLike,
        only: Sequence[PathLike] | None = None,
        *,
        touch: bool = False,
    ) -> Restored:
        """Restore the state and files of a point, or the named parts of them.

        A safety checkpoint keeps the present first, and history is never rewritten: the restore is
        a new event, which :meth:`undo` reverses. With ``touch``, restored files get the current
        time instead of their recorded one, for builds that compare times.
        """
        target = msgspec.structs.replace(self._restore_target(point, only), touch=touch)
        return self._restorer.restore(target)

    def plan(self, point: PointLike, only: Sequence[PathLike] | None = None) -> Plan:
        """Return what a restore of files would do, without doing it."""
        target = self._restore_target(point, only)
        self._restorer.check(target)
        with self._writer.exclusive():
            return self._files.plan(target.point, target.tree, target.paths, target.held)

    def preview(self, mode: UndoMode) -> RestorePreview:
        """Return what :meth:`undo` or :meth:`redo` would do, depending on the mode."""
        target = self._restorer.undo_target(mode)
        with self._writer.exclusive():
            plan = self._files.plan(target.point, target.tree, target.paths, target.held)
        here, document = self.head, self._writer.document()
        known = known_parts(document, target.document, target.only)
        found = diff(here, target.point, document, target.document, known)
        only = None if target.only is None else tuple(target.only)
        return RestorePreview(found, plan, only, target.workspace)

    def _restore_target(self, point: PointLike, only: Sequence[PathLike] | None) -> Target:
        """Return the target of a restore; files that are named must exist there."""
        only = arguments.parts(only)
        target = self._targets.find(self.point(point), only)
        if only is not None and target.paths != [] and target.tree is None:
            self._files.tree_at(target.point)
        return target

    def read_file(self, point: PointLike, path: str) -> bytes:
        """Return the content of a file as it was at a point."""
        return self._files.read(self._files.tree_at(self.point(point)), path)

    def copy_files(
        self, point: PointLike, to: str | os.PathLike[str], only: Sequence[PathLike] | None = None
    ) -> list[Problem]:
        """Write the files of a point into a new or empty directory; nothing else is touched.

        ``only`` selects some of them. Returns the paths that could not be written.
        """
        parts, target = arguments.parts(only), OsPath(arguments.directory(to, "The directory"))
        tree = self._files.tree_at(self.point(point))
        return self._files.copy(tree, target, self._files.paths_in(tree, parts))

    def undo(self, *, touch: bool = False) -> Restored:
        """Undo the last restore; repeat to go further back. ``touch`` is as in :meth:`restore`."""
        return self._restorer.undo_or_redo("undo", touch=touch)

    def redo(self, *, touch: bool = False) -> Restored:
        """Reverse the last undo; repeat to go further. ``touch`` is as in :meth:`restore`."""
        return self._restorer.undo_or_redo("redo", touch=touch)

    def recover(self) -> Restored | None:
        """Complete a restore of files that another process started and did not finish."""
        return self._captures.recover()

    @property
    def recovery_error(self) -> Exception | None:
        """Why an interrupted restore could not be completed; see ``pending``."""
        return self._captures.recovery_error

    @property
    def pending(self) -> PendingRestore | None:
        """The restore of files that has started and not ended, in any directory.

        Opening the session with that directory finishes it, unless there is a ``recovery_error`` or
        it was opened with ``recover=False``.
        """
        pending = self._restorer.pending()
        if pending is None:
            return None
        is_running = is_restoring(self._engine, OsPath(pending.directory))
        return msgspec.structs.replace(pending, is_running=is_running)

    def abandon(self) -> PendingRestore | None:
        """End the pending restore as it is, and return it; :meth:`undo` reverses it."""
        return self._restorer.abandon()

    def fork(
        self,
        point: PointLike,
        name: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        *,
        pointer: bool = False,
    ) -> Session:
        """Make a new session that continues from a point and shares all storage with this one.

        With ``workspace``, the files of the point are written into that new or empty directory,
        which belongs to the new session alone. Session and directory are created together or not
        at all, and are durable when this returns. With ``pointer``, commands in the directory find
        the store and the session. The fork copies the current marks of its checkpoints up to the
        point; later marks stay in the session that they are made in.
        """
        if name is not None:
            check_name(name, "session name")
        place = self.point(point)  # resolved once, so that files and state are from the same moment
        if workspace is None:
            record, files = make_fork(self._engine, place, name, self.actor), None
        else:
            to = OsPath(arguments.directory(workspace, "The workspace"))
            forker = Forker(self._engine, self._files, self.actor)
            record, files = forker.fork_into(place, name, to, pointer=pointer)
        return Session(self._engine, record, self.actor, self._environment_reader, files)
