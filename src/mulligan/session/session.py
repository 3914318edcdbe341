"""The session: one timeline of one agent or a team of agents."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path as OsPath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, cast

import msgspec

from mulligan.document.values import PathLike
from mulligan.session import arguments
from mulligan.session.acts import Acts
from mulligan.session.file_side import FileSide
from mulligan.session.history import History
from mulligan.session.internals import Internals
from mulligan.session.names import check_key, check_name
from mulligan.session.write.writer import Writer

if TYPE_CHECKING:  # imported where they are used: a command that only looks needs few of them
    from mulligan.engine import Engine
    from mulligan.model import (
        Checkpoint,
        CheckpointKind,
        Effect,
        EffectKind,
        Event,
        Point,
        Repeat,
        Restored,
        Rollback,
        SessionRecord,
        Stakes,
        UndoMode,
    )
    from mulligan.session.checkpoint_taker import CheckpointTaker
    from mulligan.session.environment import EnvironmentReader
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
    from mulligan.session.parts.tools import Tools
    from mulligan.session.runtime.loop import Cycle
    from mulligan.session.state_view import StateView
    from mulligan.timeline.diff import Diff
    from mulligan.timeline.points import PointLike
    from mulligan.workspace.workspace import Workspace

P = ParamSpec("P")
R = TypeVar("R")

REFRESH_SECONDS = 2 * 60 * 60.0
"""Default seconds after which a loop restarts its process from a recovery checkpoint."""


class Session:
    """One run of one agent or a team: its state, its checkpoints, its history.

    ``store.session(name)`` opens one, and ``store.agent(name, session=...)`` opens one as the only
    writer of an agent. Every process that opens a session sees what the others write, and may
    write itself. Use it as a context manager, or call :meth:`close`.

    ``state`` is the shared document, ``checkpoints`` what was taken of it, ``tasks`` the plan of
    work, ``mailbox`` the messages between agents, ``agent`` the record of the agent that this
    handle writes for, ``files`` what is known of the workspace. ``step`` and ``durable`` record
    results, ``effect`` acts on the outside world; ``effects``, ``approvals`` and ``tools`` are what
    is known of such acts. ``internal`` is for Mulligan itself and may change at any time.
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
        self._history = History(engine, record, self._writer)
        self._file_side = FileSide(
            engine, record, environment, workspace, self._writer, self._history
        )
        self._state: State | None = None
        self._tasks: Tasks | None = None
        self._checkpoints: Checkpoints | None = None
        self._mailbox: Mailbox | None = None
        self._agent: Agent | None = None
        self._files: Files | None = None
        self._internal = Internals(
            engine, record, environment, workspace, self._writer, self._history, self._file_side
        )
        internal = self._internal
        self._acts = Acts(
            self._writer,
            self._history,
            lambda: internal.has_acts,
            internal.changed_files,
            self.checkpoint,
            internal.refuse_beside_restore,
        )
        internal.steps = lambda: self._acts.steps
        internal.undo_effects = lambda point, accept: self._acts.undo_after(point, accept=accept)

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
        """The shared document: read and write values by path."""
        if self._state is None:
            from mulligan.session.parts.state import State

            self._state = State(self._writer, self._history.view_at)
        return self._state

    @property
    def tasks(self) -> Tasks:
        """The plan: tasks with dependencies, each claimed by one agent at a time."""
        if self._tasks is None:
            from mulligan.session.parts.tasks import Tasks

            self._tasks = Tasks(self._writer, self._acts.scope)
        return self._tasks

    @property
    def mailbox(self) -> Mailbox:
        """The messages to this handle's agent, and the way to send messages to others."""
        if self._mailbox is None:
            from mulligan.session.parts.mailbox import Mailbox
            from mulligan.session.write.leases import this_process

            self._mailbox = Mailbox(self._writer, this_process())
        return self._mailbox

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints on this timeline: call it to list them; find, mark and label them."""
        if self._checkpoints is None:
            from mulligan.session.parts.checkpoints import Checkpoints

            self._checkpoints = Checkpoints(self._writer, self._history)
        return self._checkpoints

    @property
    def agent(self) -> Agent:
        """The record of the agent that this handle writes for."""
        if self._agent is None:
            from mulligan.session.parts.agents import Agent

            self._agent = Agent(self._writer, self.actor)
        return self._agent

    @property
    def files(self) -> Files:
        """The files at points of the timeline, and a restore of files that is not finished."""
        if self._files is None:
            from mulligan.session.parts.files import Files

            self._files = Files(self._engine, self._writer, self._history, self._file_side)
        return self._files

    @property
    def effects(self) -> Effects:
        """The acts on the outside world: what happened, what is in doubt, and their rules."""
        return self._acts.effects

    @property
    def approvals(self) -> Approvals:
        """The effects that wait for approval, and the answers."""
        return self._acts.approvals

    @property
    def tools(self) -> Tools:
        """The calls of tools: recorded before they start and after they returned."""
        return self._acts.tools

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
    def head(self) -> Point:
        """The session and sequence number of the newest event."""
        return self._history.head()

    @property
    def updated(self) -> datetime:
        """When the newest event was written."""
        with self._engine.read() as view:
            return view.head(self._record.number).time

    def close(self) -> None:
        """Save the file index for the next process, and release the lease.

        Idempotent; the store stays open. Without it, the next process reads all files again.
        """
        try:
            # The heartbeat first: its second thread renews the lease, and must not do so after the
            # release.
            if self._agent is not None and self._agent.heart is not None:
                self._agent.heart.stop()
            if self._workspace is not None:
                self._workspace.close()
        finally:
            # Last: while the index is written, no other process may write for this agent.
            if self._writer.lease is not None:
                self.internal.release()

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Group all state changes inside into one transaction: all of them happen, or none.

        ``with session.batch() as batch`` gives a :class:`Batch`, which can take a checkpoint in the
        same transaction. A batch inside of another one becomes part of it; if it raises, only its
        own changes are dropped.

        It belongs to the thread and the asyncio task that opened it. Until it ends, its changes
        are not visible elsewhere, and other threads that write through this handle wait. Other
        tasks of the thread, and work started inside (``asyncio.gather``, ``asyncio.to_thread``),
        may read; their writes raise ``BatchOpen``. Give each task its own handle,
        ``store.session(name)``, if they have to write at the same time.
        """
        from mulligan.session.parts.batch import Batch

        with self._writer.batch(self._checkpoint_taker.commit) as opened:
            yield Batch(opened)

    def operation(self, name: str, rollback: Rollback | None = None) -> Operation:
        """Take a checkpoint before something risky; roll back to it if that raises.

        A context manager and a decorator. ``rollback`` says what is rolled back: ``state``,
        ``workspace``, ``both`` or ``none``. The default is both, but only the state while other
        agents are at work here, because they share the files. What others wrote to the state in
        the meantime always stays. A recovery checkpoint keeps what the failure left before the
        rollback; afterwards the exception propagates.
        """
        from mulligan.session.parts.operations import Operation

        return Operation(self, name, rollback)

    def step(self, name: str, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
        """Run a function once: later calls of the step return its recorded result.

        A step is known by its name and by how often it was called before in the same task, or else
        by the same agent. The function may run again after a crash before its result was
        recorded; :meth:`durable` has options for that, and for retries. For a coroutine function,
        await what this returns.
        """
        return cast(R, self._acts.steps.run(name, function, args, kwargs))

    def durable(
        self,
        function: Callable[P, R] | None = None,
        /,
        *,
        name: str | None = None,
        retries: int = 0,
        delay: float = 1.0,
        backoff: float = 2.0,
        errors: tuple[type[Exception], ...] = (Exception,),
        changed: Literal["stop", "reuse", "rerun"] = "stop",
        at_most_once: bool = False,
        effect: str | None = None,
        **effect_options: Any,
    ) -> Any:
        """Make every call of a function a step, as :meth:`step` does; a decorator, with options.

        One of ``errors`` is retried up to ``retries`` times, after ``delay`` seconds, and
        ``backoff`` times as many after each further failure. ``changed`` says what to do when the
        arguments are not those that were recorded: raise ``StepChanged``, return the recorded
        result, or run again. With ``at_most_once``, the step is recorded before it runs, and raises
        ``EffectInDoubt`` after a crash in between. ``effect`` names the effect that the step is,
        with the options of :meth:`effect`; its intent is the arguments, unless ``intent=`` is
        given, which may be a function of them, as may ``key=``.
        """
        from mulligan.session.parts.steps import StepOptions

        options = StepOptions(
            retries=retries,
            delay=delay,
            backoff=backoff,
            errors=errors,
            changed=changed,
            at_most_once=at_most_once,
            effect=effect,
            effect_options=effect_options,
        )
        if function is None:
            return lambda wrapped: self._acts.steps.decorated(wrapped, name, options)
        return self._acts.steps.decorated(function, name, options)

    def effect(
        self,
        name: str,
        intent: Any = None,
        *,
        key: str | None = None,
        kind: EffectKind | None = None,
        reversible: bool | None = None,
        undo: Callable[[Effect], Any] | Sequence[str] | None = None,
        check: Callable[[Any], Any] | None = None,
        stakes: Stakes = "normal",
        repeat: Repeat | None = None,
        wait: float = 0.0,
    ) -> ActiveEffect:
        """Act on the outside world in a ``with`` block, at most once.

        The intent is durable before the block, the outcome after it. If it was done before,
        ``effect.settled`` is true and ``effect.result`` is its result: then do not act. It is
        found by ``key``, or by its intent and occurrence. Raises ``EffectInDoubt`` after a crash
        in the middle, unless ``check(intent)`` can tell: it returns False if nothing happened, None
        if it does not know, or else the result. Raises ``ApprovalPending`` or ``EffectDenied`` by
        the rules for effects; ``wait`` is how many seconds to wait for an answer first.

        ``kind`` is ``irreversible`` by default, ``reversible`` with ``undo``: a function, or a
        command that gets the effect as JSON. An ``idempotent`` effect may be repeated, a ``local``
        one is undone by a restore. ``repeat`` says what to do if it was done beyond the point that
        the session went back to: ``reuse`` its result, ``ask`` (``EffectRepeated``), or ``allow``.
        """
        return self._acts.effects.make(
            name,
            intent,
            key=key,
            kind=kind,
            reversible=reversible,
            undo=undo,
            check=check,
            stakes=stakes,
            repeat=repeat,
            wait=wait,
        )

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
        recovery checkpoint is taken and the process restarted. So it is when the agent drifts,
        with a clean context (see ``Agent.handover``); one that goes on drifting is isolated: the
        loop ends, and raises ``AgentIsolated`` until a person releases it. Use ``with cycle:``
        around the body, so that an exception leaves a recovery checkpoint before it propagates. An
        effect in it that waits for approval, or is in doubt, makes the loop wait for the answer, at
        a safe point; then the next cycle comes.
        """
        from mulligan.session.runtime.loop import Loop

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
        *,
        key: str | None = None,
        data: Mapping[str, Any] | None = None,
        if_changed: bool = False,
    ) -> Checkpoint:
        """Take a checkpoint of the newest state; it is durable when this returns.

        ``kind`` is ``routine``, ``pre_operation``, ``recovery``, ``manual`` or one of your own. A
        ``label`` that is in use moves here; the checkpoint that had it keeps it in its record.
        ``key`` is an id from elsewhere by which ``checkpoints.find`` returns it: raises
        ``KeyTaken`` if another one on the timeline has it.
        ``data`` is a small dictionary of your own, at most 64 KiB, which the checkpoint keeps.
        With ``if_changed``, nothing is written if the latest checkpoint holds the same state and
        files: it is returned, and its ``seq`` is not new. What was given for the new one is lost.

        It waits while another process restores files in the workspace, and first finishes an
        interrupted restore. If that fails, the checkpoint holds no files, and its note says so. So
        does one of a store that has reached its quota, or whose disk is nearly full.
        """
        from mulligan.session.write.checkpoint_request import checked_request

        request = checked_request(kind, note, label, key, data)
        taken, _ = self._checkpoint_taker.take(request, if_changed=if_changed)
        return taken

    @cached_property
    def _checkpoint_taker(self) -> CheckpointTaker:
        from mulligan.session.checkpoint_taker import CheckpointTaker  # as above

        return CheckpointTaker(self._engine, self._writer, self._file_side, self._history)

    def point(self, point: PointLike) -> Point:
        """Return the session and sequence number of a point; see ``mulligan.timeline.points``."""
        return self._history.point(point)

    def find(self, key: str) -> Checkpoint | None:
        """Return the checkpoint that was given a key: short for ``checkpoints.find``."""
        return self.checkpoints.find(key)

    def walk(
        self, newest_first: bool = True, limit: int | None = None, **selection: Any
    ) -> Iterator[tuple[Checkpoint, StateView]]:
        """Yield checkpoints, each with the state at it: short for ``checkpoints.walk``."""
        return self.checkpoints.walk(newest_first, limit, **selection)

    def events(
        self, since: PointLike | None = None, until: PointLike | None = None, follow: bool = False
    ) -> Iterator[Event]:
        """Yield the events after ``since`` up to and including ``until``.

        Events that were folded away are left out; either point may be one of them.

        With ``follow``, it waits for new events from any process, and does not end on its own.
        It raises ``StoreGone`` once the store was removed or replaced.
        """
        return self._history.events(since, until, follow=follow)

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
        with self._engine.pin():
            other = None if after is None else self.point(after)
            return self._file_side.comparer.diff(self.point(before), other, only)

    def restore(
        self,
        point: PointLike,
        only: Sequence[PathLike] | None = None,
        *,
        touch: bool = False,
        accept_left_behind: bool = False,
    ) -> Restored:
        """Restore the state and files of a point, or the named parts of them.

        A safety checkpoint keeps the present first, and history is never rewritten: the restore is
        a new event, which :meth:`undo` reverses. With ``touch``, restored files get the current
        time instead of their recorded one, for builds that compare times.

        Effects after the point that have an undo are undone first, the last one first. Others stay
        in the world: ``LeftBehind`` is raised, and nothing changed, unless that is accepted. The
        component ``outside`` of the state then tells of them. Restoring named parts leaves effects
        alone.
        """
        parts = arguments.parts(only)
        # Pinned from the look-up on: upkeep must not remove what is about to be restored.
        with self._engine.pin():
            target = self._file_side.targets.for_restore(self.point(point), parts)
            target = self._acts.prepare(target, accept=accept_left_behind)
            return self._file_side.restorer.restore(msgspec.structs.replace(target, touch=touch))

    def undo(self, *, touch: bool = False, accept_left_behind: bool = False) -> Restored:
        """Undo the last restore; repeat to go further back. The options are as in `restore`."""
        return self._walk("undo", touch=touch, accept=accept_left_behind)

    def redo(self, *, touch: bool = False, accept_left_behind: bool = False) -> Restored:
        """Reverse the last undo; repeat to go further. The options are as in `restore`."""
        return self._walk("redo", touch=touch, accept=accept_left_behind)

    def _walk(self, mode: UndoMode, *, touch: bool, accept: bool) -> Restored:
        prepare = partial(self._acts.prepare, accept=accept)
        with self._engine.pin():
            return self._file_side.restorer.undo_or_redo(mode, touch=touch, prepare=prepare)

    def fork(
        self,
        point: PointLike,
        name: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        *,
        pointer: bool = False,
        key: str | None = None,
    ) -> Session:
        """Make a new session that continues from a point and shares all storage with this one.

        With ``workspace``, the files of the point are written into that new or empty directory,
        which belongs to the new session alone. Session and directory are created together or not
        at all, and are durable when this returns. With ``pointer``, commands in the directory find
        the store and the session. The fork copies the current marks of its checkpoints up to the
        point; later marks stay in the session that they are made in. It knows the
        effects of this session, also those after the point. ``key`` is as in ``Store.session``.
        """
        from mulligan.session.write.fork import make_fork

        if name is not None:
            check_name(name, "session name")
        if key is not None:
            check_key(key)
        to = None
        if workspace is not None:
            to = OsPath(arguments.directory(workspace, "The workspace"))
        with self._engine.pin():
            place = self.point(point)  # once, so that files and state are from the same moment
            if to is None:
                made = make_fork(self._engine, place, name, self.actor, by=self._writer, key=key)
                record, files = made, None
            else:
                from mulligan.session.write.fork_with_files import Forker  # imports workspace/

                forker = Forker(self._engine, self._writer, self._file_side.stored)
                record, files = forker.fork_into(place, name, to, pointer=pointer, key=key)
        return Session(self._engine, record, self.actor, self._environment_reader, files)
