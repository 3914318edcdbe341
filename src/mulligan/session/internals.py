"""What the supervisor, recovery and the command line need of a session beyond its public API.

``Session.internal`` is the one way to it. Nothing here is promised to programs that use Mulligan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mulligan import codec
from mulligan.document.document import MISSING, Document, settle_root
from mulligan.document.fold import CONTROL, STATE, Change
from mulligan.document.values import PathLike, parse_path
from mulligan.errors import (
    MissingObject,
    PointError,
    RestoreBusy,
    StoreGone,
    WorkspaceError,
)
from mulligan.model import (
    Digest,
    FileChange,
    Fold,
    HeldFiles,
    Lease,
    Plan,
    Point,
    Problem,
    Restored,
    SessionRecord,
    UndoMode,
)
from mulligan.session import arguments
from mulligan.session.components import EFFECTS, TOOLS
from mulligan.session.names import WORKSPACE
from mulligan.session.write import leases
from mulligan.session.write.capture_guard import RECOVERY_ERRORS
from mulligan.session.write.decisions import Decision, adding
from mulligan.timeline.marks import read_marks

if TYPE_CHECKING:  # imported where they are used: a command that only looks needs few of them
    from mulligan.clock import Clock
    from mulligan.engine import Engine
    from mulligan.session.comparer import RestorePreview
    from mulligan.session.environment import EnvironmentReader
    from mulligan.session.file_side import FileSide
    from mulligan.session.history import History
    from mulligan.session.parts.state import State
    from mulligan.session.parts.steps import Steps
    from mulligan.session.write.checkpoint_request import CheckpointRequest
    from mulligan.session.write.writer import Writer
    from mulligan.timeline.losses import Loss
    from mulligan.timeline.points import PointLike
    from mulligan.workspace.workspace import Workspace

T = TypeVar("T")

CHECKPOINT_INTERVAL_SECONDS = 30 * 60.0
"""Default seconds between two routine checkpoints of a loop."""

MAX_CONTENTS = 200
"""How many changed files of one checkpoint are looked at for drift."""


def _no_steps() -> Steps:
    raise AssertionError("set by the session")


def _undo_none(point: PointLike, accept: bool) -> None:
    raise AssertionError("set by the session")


class Internals:
    """Leases, control records, raw events and recovery of one session."""

    def __init__(
        self,
        engine: Engine,
        record: SessionRecord,
        environment: EnvironmentReader,
        workspace: Workspace | None,
        writer: Writer,
        history: History,
        files: FileSide,
    ) -> None:
        self._engine = engine
        self._record = record
        self._environment_reader = environment
        self._workspace = workspace
        self._writer = writer
        self._history = history
        self._files = files
        self._state: State | None = None
        self.is_supervised = False
        """Whether a supervisor started this process for its agent; see ``mulligan.attach``."""
        self.steps: Callable[[], Steps] = _no_steps
        """Returns what runs the steps of the handle; set by its session."""
        self.undo_effects: Callable[[PointLike, bool], None] = _undo_none
        """Undoes the effects after a point as a restore does; set by the session."""
        self.checkpoint_interval = CHECKPOINT_INTERVAL_SECONDS
        """Seconds between the routine checkpoints of ``Session.loop`` by default."""

    @property
    def number(self) -> int:
        """The session's number in the journal, which no later session of the same name has."""
        return self._record.number

    def is_present(self) -> bool:
        """Whether the name is still that of this session: another process may have deleted it."""
        with self._engine.read() as view:
            record = view.find(self._record.name)
        return record is not None and record.number == self.number

    @property
    def state(self) -> State:
        """The state with every component writable, those with an API of their own included."""
        if self._state is None:
            from mulligan.session.parts.state import State

            self._state = State(self._writer, self._history.view_at, is_guarded=False)
        return self._state

    @property
    def clock(self) -> Clock:
        """The clock of the store."""
        return self._engine.clock

    @property
    def engine(self) -> Engine:
        """The engine of the store, for upkeep."""
        return self._engine

    @property
    def key(self) -> str | None:
        """The id from elsewhere that the session was made with; see ``Store.session``."""
        return self._record.key

    @property
    def has_files(self) -> bool:
        """Whether this handle was opened with a workspace."""
        return self._workspace is not None

    def lease_time(self) -> datetime:
        """Return the time that lease times are compared with: by the clock of the journal."""
        return self._engine.journal.now()

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that may be stored; none that looks like a secret."""
        return dict(self._environment_reader.capture().variables)

    def check_present(self) -> None:
        """Raise ``StoreGone`` if the store was removed or replaced since it was opened."""
        self._engine.check_present()

    def take(self, ttl: float, *, steal: bool = False, under: Lease | None = None) -> Lease:
        """Become the only writer of this agent; raises ``LeaseHeld`` while another one lives.

        ``under`` is the lease of a supervisor that takes it for its agent; raises ``StaleLease``
        if that one has ended.
        """
        length = arguments.seconds(ttl, "A lease")
        return self._writer.take_lease(length, steal=steal, under=under)

    def hold(self, process: int, ttl: float, *, steal: bool = False) -> Lease:
        """Write for an agent that is another process, under a lease in that process's name.

        For agents that do not use Mulligan themselves, such as one that starts a process for each
        of its hooks. The first of these takes the lease, and names the agent as its holder; the
        others find that holder and write under the same epoch. Several may write at once: the
        journal puts their transactions in order, and each decides on the newest document. Raises
        ``LeaseHeld`` while another live process holds the lease, and ``StaleLease`` if the process
        does not run.

        The lease is as alive as the process that it names. When that one dies, the session counts
        as interrupted, if the agent's record says that it is at work. A hook that is still running
        may write until someone else takes the lease: what it has to say did happen. From then on
        the epoch is another one, and its writes are refused with ``StaleLease``, as are those of
        hooks of a frozen agent that was replaced.

        Closing the handle leaves the lease with its holder; ``release_hold`` ends it.
        """
        return self._writer.hold_lease(process, arguments.seconds(ttl, "A lease"), steal=steal)

    def release_hold(self) -> None:
        """Release a lease that is held for another process: its agent has ended in order."""
        self._writer.release_lease(for_other=True)

    def renew(self, *, wait: bool = True) -> None:
        """Extend the lease; raises ``StaleLease`` when another writer has taken it.

        Without ``wait``, nothing is done while another thread of this handle writes.
        """
        self._writer.renew_lease(wait=wait)

    def release(self) -> None:
        """Give the lease up, so that another writer need not wait until it expires."""
        with suppress(StoreGone):  # the lease was deleted with its store
            self._writer.release_lease()

    def adopt(self, epoch: int, ttl: float) -> Lease:
        """Become the holder of a lease that was taken for this process, by its epoch."""
        return self._writer.adopt_lease(epoch, arguments.seconds(ttl, "A lease"))

    def join(self, epoch: int) -> Lease:
        """Write under the lease that another process of this agent holds, by its epoch.

        For helper processes that an agent starts: their writes are valid as long as its own.
        """
        return self._writer.join_lease(epoch)

    def lease_of(self, actor: str) -> Lease | None:
        """Return the newest lease of an actor, held or not."""
        with self._engine.read() as view:
            return view.lease(self._record.number, actor)

    def is_held(self, actor: str) -> bool:
        """Whether a live process holds the lease of an actor."""
        lease = self.lease_of(actor)
        return lease is not None and leases.is_held(lease, self.lease_time())

    def commit_events(self, decide: Callable[[Document], Iterable[Change]]) -> None:
        """Write the events that a decision on the newest document yields, in one transaction.

        See ``mulligan.document.fold`` for what an event may hold.
        """
        self.commit(adding(decide))

    def commit(self, decision: Decision[T]) -> T:
        """Write what a decision adds, in one transaction, and return what it returned."""
        return self._writer.write(decision)

    def checkpoint_after(self, decision: Decision[object], request: CheckpointRequest) -> int:
        """Write what a decision adds and a checkpoint after it in one transaction; return its seq.

        The decision runs once, unless another process wrote meanwhile; in a batch it runs twice.
        """
        from mulligan.session.checkpoint_taker import CheckpointTaker

        taker = CheckpointTaker(self._engine, self._writer, self._files, self._history)
        return taker.take_after(decision, request)

    def document(self) -> Document:
        """Return the newest document, including the open batch."""
        return self._writer.document()

    def control(self, path: PathLike = "", default: Any = None) -> Any:
        """Return what supervision and recovery have recorded; no restore changes it."""
        document = self._writer.document()
        found = document.find((*CONTROL, *parse_path(path)))
        return default if found is MISSING else document.plain(found)

    def watch(self) -> None:
        """Learn of changes to the workspace as they happen, for checkpoints without a scan.

        For long-lived processes. Where the system cannot watch, checkpoints go on scanning.
        """
        if self._workspace is not None:
            self._workspace.watch()

    def look_for_changes(self) -> bool | None:
        """Return whether files changed since the last look; None if only a scan can tell."""
        return None if self._workspace is None else self._workspace.look_for_changes()

    def store_files(self) -> bool:
        """Store what the workspace has now, without a checkpoint; return whether there is one."""
        return self._files.stored.present() is not None

    def losses(self) -> dict[int, Loss]:
        """Return what checkpoints of this timeline lost to damage, by their seqs."""
        from mulligan.timeline.losses import read_losses

        return read_losses(self._writer.document())

    def lost_parts(self, point: PointLike) -> tuple[str, ...]:
        """Return what the checkpoint at or before a point lost to damage, in words."""
        if self._record.origin is None:
            loss = self.losses().get(self._history.find_checkpoint(point).seq)
            return () if loss is None else tuple(loss.parts)
        # What a fork inherited is recorded where it was taken. It needs modules that load slowly.
        from mulligan.session.write.damaged import loss_at

        found = loss_at(self._engine, self._history.point(point))
        return () if found is None else tuple(found[1].parts)

    def damaged_seqs(self) -> set[int]:
        """Return the seqs of checkpoints that lost something, on this timeline and before it."""
        from mulligan.session.write.damaged import damaged_seqs

        return damaged_seqs(self._engine, self._record.name)

    def refuse_damaged(self, point: PointLike, only: Sequence[PathLike] | None) -> None:
        """Raise ``CheckpointDamaged`` if a restore of a point, or of these parts, lacks any."""
        self._files.targets.refuse_damaged(self._history.point(point), arguments.parts(only))

    def intact_parts(self, point: PointLike) -> tuple[str, ...]:
        """Return the parts of a point that lack nothing, for a restore of only these."""
        with self._engine.pin():
            return self._files.targets.intact_parts(self._history.point(point))

    def intact_files(self, point: PointLike) -> tuple[str, ...]:
        """Return the paths of a point's files that lack nothing."""
        from mulligan.session.write.damaged import intact_paths
        from mulligan.workspace.entries import shown

        with self._engine.pin():
            tree = self._files.stored.tree_at(self._history.point(point))
            return tuple(shown(path) for path in intact_paths(self._engine, tree))

    def state_digest(self, point: PointLike) -> str:
        """Return the digest of the state at a point; equal states have equal digests."""
        state = self._history.document_at(self._history.point(point)).find(STATE)
        return settle_root(state, codec.value_digest).hex()

    def record(self, point: PointLike) -> dict[str, Any]:
        """Return the checkpoint at or before a point as one document for recovery.

        Its fields are those of ``mulligan show --json``; see ``mulligan.timeline.record``.
        """
        from mulligan.timeline.diff import diff
        from mulligan.timeline.record import changed_paths, checkpoint_record

        with self._engine.pin():
            checkpoint = self._history.find_checkpoint(point)
            here, before = self._history.point(checkpoint), self._history.before(checkpoint)
            # The older document first: the later one is then a few events away, not a whole replay.
            old = self._history.document_at(before)
            changed = diff(before, here, old, self._history.document_at(here))
            named = self._history.labels().get(checkpoint.label or "")
            with self._engine.read() as view:
                records = [made for made in view.sessions() if made.deleted is None]
            return checkpoint_record(
                checkpoint,
                self._history.view_at(here).get(),
                digest=self.state_digest(checkpoint),
                changed=changed_paths(changed),
                sessions=[made.name for made in records if made.created <= checkpoint.time],
                mark=read_marks(self._writer.document()).get(checkpoint.id),
                label_at=named.checkpoint if named else None,
                purged=self._purged(checkpoint.workspace),
            )

    def _purged(self, tree: Digest | None) -> dict[str, str]:
        """Return the files of a tree whose content was purged, with the reasons."""
        with self._engine.read() as view:
            if tree is None or not view.last_purge():
                return {}
        from mulligan.workspace.restore.purged import purged_files  # slow to import

        try:
            return purged_files(self._engine, tree)
        except MissingObject:
            return {}  # the checkpoint was pruned, and its tree is gone

    def preview(self, mode: UndoMode) -> RestorePreview:
        """Return what ``Session.undo`` or ``Session.redo`` would do, depending on the mode."""
        with self._engine.pin():
            return self._files.comparer.preview(mode)

    def files_at(self, point: PointLike) -> HeldFiles | None:
        """Return the files of a point and what holds them; None if nothing holds any.

        That is the checkpoint at the point, or the newest one before it that holds files; or a
        restore after that one, whose files are those that it brought back.
        """
        return self._files.stored.held_at(self._history.point(point))

    def file_changes(self, before: PointLike, after: PointLike) -> list[FileChange] | None:
        """Return what differs in the files of two points; None if one of them has none.

        Unlike ``Session.diff``, it needs no workspace, and compares nothing else.
        """
        with self._engine.pin():
            old, new = self.files_at(before), self.files_at(after)
            if old is None or new is None:
                return None
            return self._files.stored.changes(old.tree, new.tree)

    def changed_contents(self, before: bytes | None, after: bytes) -> list[tuple[str, str]]:
        """Return path and content of the files that differ between two trees.

        At most ``MAX_CONTENTS`` of them; the tree itself if retention has removed one of them.
        """
        if before is None:
            return []
        try:
            with self._engine.pin():
                found = self._files.stored.changed_contents(Digest(before), Digest(after))
                return list(islice(found, MAX_CONTENTS))
        except MissingObject:
            return [(WORKSPACE, after.hex())]

    def newest_files(self) -> HeldFiles | None:
        """Return the newest files of the session that retention has not removed."""
        return self._files.stored.newest()

    def make_files_durable(self) -> list[Problem]:
        """Sync the files as last captured, for a restore that finds nothing to change."""
        return self._files.stored.make_durable()

    def place(self, point: PointLike) -> Point:
        """Return the session and seq of a point, also of one that was folded away."""
        return self._history.place(point)

    def folds(self, first: int, last: int) -> list[Fold]:
        """Return the folds that took events of ``first..last`` on this timeline, oldest first."""
        return self._history.folds(first, last)

    def folds_since(self, point: PointLike) -> list[Fold]:
        """Return the folds that took events after a point, which may be one of them."""
        with self._engine.read() as view:
            last = view.head(self._record.number).seq
        return self._history.folds(self._history.place(point).seq + 1, last)

    def plan_copy(self, point: PointLike, only: Sequence[PathLike] | None = None) -> Plan:
        """Return what ``Session.files.copy`` would write, without writing it."""
        parts = arguments.parts(only)
        stored = self._files.stored
        with self._engine.pin():
            place = self._history.point(point)
            tree = stored.tree_at(place)
            changes = stored.changes(None, tree, stored.paths_in(tree, parts))
        return Plan(place, tuple(changes), (), ())

    @property
    def has_acts(self) -> bool:
        """Whether the session has effects or tool calls; a look spares the imports of both."""
        document = self._writer.document()
        paths = ((*CONTROL, EFFECTS), (*STATE, EFFECTS), (*STATE, TOOLS))
        return any(document.find(path) is not MISSING for path in paths)

    def changed_files(self, seq: int) -> list[str] | None:
        """Return the paths that changed since an event; None if no files are recorded there."""
        if self._workspace is None:
            return None
        point = self._history.place(seq)
        try:
            if self._files.stored.held_at(point) is None:
                return None
            found = self._files.comparer.diff(point, None, [WORKSPACE])
        except (PointError, WorkspaceError, OSError):
            # Pruned, or no directory any more: what changed can not be told.
            return None
        return [change.path for change in found.files]

    def roll_back(
        self, point: PointLike, only: Sequence[PathLike], agent: str | None = None
    ) -> Restored:
        """Restore parts of an agent that goes back alone, by default of this one.

        Its effects after the point are left behind, and the state's ``outside`` tells of them: what
        failed must not be kept because something else happened outside.
        """
        with self._engine.pin():
            target = self._files.targets.for_restore(self._history.point(point), [*only])
            rolls = agent or self._writer.actor
            return self._files.restorer.restore(
                msgspec.structs.replace(target, rolls=rolls, accepts=True)
            )

    def recover_on_open(self) -> None:
        """Complete an interrupted restore if there is one; the session opens in either case.

        While another process completes it, the files are not safe to use: ``RestoreBusy``.
        """
        if self._workspace is None:
            return
        try:
            # A full disk or a damaged file must not lock the user out of the session: the restore
            # stays pending, and `files.recovery_error` says why.
            with suppress(*RECOVERY_ERRORS):
                self._files.captures.recover()
        except BaseException:
            # The caller gets no handle to close, so the lease would stay held until it expires.
            self.release()
            raise

    def refuse_beside_restore(self) -> None:
        """Raise ``RestoreBusy`` if another process restores files of the workspace right now.

        One may begin right after, so a restore can still be refused.
        """
        from mulligan.workspace.locks import is_restoring  # imports workspace/

        if self._workspace is not None and is_restoring(self._engine, self._workspace.root):
            raise RestoreBusy(f"Another process is restoring files in {self._workspace.root}.")

    @property
    def recovered(self) -> Restored | None:
        """The interrupted restore that this handle completed last, if it did."""
        return self._files.captures.recovered
