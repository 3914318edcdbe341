"""What the supervisor, recovery and the command line need of a session beyond its public API.

``Session.internal`` is the one way to it. Nothing here is promised to programs that use Mulligan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from mulligan import codec
from mulligan.clock import Clock
from mulligan.document.document import MISSING, Document, settle_root
from mulligan.document.fold import CONTROL, STATE, Change
from mulligan.document.values import PathLike, parse_path
from mulligan.engine import Engine
from mulligan.errors import StoreGone
from mulligan.model import HeldFiles, Lease, Plan, Restored, SessionRecord
from mulligan.session import arguments
from mulligan.session.environment import EnvironmentReader
from mulligan.session.history import History
from mulligan.session.parts.state import State
from mulligan.session.runtime.loop import CHECKPOINT_INTERVAL_SECONDS
from mulligan.session.write import leases
from mulligan.session.write.capture_guard import RECOVERY_ERRORS, CaptureGuard
from mulligan.session.write.decisions import adding
from mulligan.session.write.files import Files
from mulligan.session.write.writer import Writer
from mulligan.timeline.points import PointLike
from mulligan.workspace.workspace import Workspace


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
        files: Files,
        captures: CaptureGuard,
    ) -> None:
        self._engine = engine
        self._record = record
        self._environment_reader = environment
        self._workspace = workspace
        self._writer = writer
        self._history = history
        self._files = files
        self._captures = captures
        self.state = State(writer, is_guarded=False)
        """The state with every component writable, those with an API of their own included."""
        self.is_supervised = False
        """Whether a supervisor started this process for its agent; see ``mulligan.attach``."""
        self.checkpoint_interval = CHECKPOINT_INTERVAL_SECONDS
        """Seconds between the routine checkpoints of ``Session.loop`` by default."""

    @property
    def clock(self) -> Clock:
        """The clock of the store."""
        return self._engine.clock

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
        self._writer.write(adding(decide))

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

    def state_digest(self, point: PointLike) -> str:
        """Return the digest of the state at a point; equal states have equal digests."""
        state = self._history.document_at(self._history.point(point)).find(STATE)
        return settle_root(state, codec.value_digest).hex()

    def files_at(self, point: PointLike) -> HeldFiles | None:
        """Return the files of a point and what holds them; None if nothing holds any.

        That is the checkpoint at the point, or the newest one before it that holds files; or a
        restore after that one, whose files are those that it brought back.
        """
        return self._files.held_at(self._history.point(point))

    def plan_copy(self, point: PointLike, only: Sequence[PathLike] | None = None) -> Plan:
        """Return what ``Session.copy_files`` would write, without writing it."""
        parts = arguments.parts(only)
        place = self._history.point(point)
        tree = self._files.tree_at(place)
        changes = self._files.changes(None, tree, self._files.paths_in(tree, parts))
        return Plan(place, tuple(changes), (), ())

    def recover_on_open(self) -> None:
        """Complete an interrupted restore if there is one; the session opens in either case.

        While another process completes it, the files are not safe to use: ``RestoreBusy``.
        """
        if self._workspace is None:
            return
        try:
            with suppress(*RECOVERY_ERRORS):
                self._captures.recover()
        except BaseException:
            self.release()
            raise

    @property
    def recovered(self) -> Restored | None:
        """The interrupted restore that this handle completed last, if it did."""
        return self._captures.recovered
