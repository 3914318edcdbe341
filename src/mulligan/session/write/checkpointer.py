"""Taking checkpoints: the workspace first, then one event that names everything.

What does not depend on the document (files, environment, the list of what is left out) is captured
and made durable before the transaction; inside it, the decision only adds the event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan import codec
from mulligan.document.document import settle, settle_root
from mulligan.engine import Engine, PendingObjects
from mulligan.journal.copies import (
    MAX_UNCOPIED,
    damaged_copies,
    events_to_copy,
    put_copy,
)
from mulligan.journal.copies import Copied as EventCopied
from mulligan.model import (
    WHOLE_WORKSPACE,
    Checkpoint,
    Coverage,
    Digest,
    Environment,
    LeftOut,
    ObjectKind,
)
from mulligan.objects.protocol import Bundle
from mulligan.session.environment import EnvironmentReader
from mulligan.session.write.checkpoint_request import CheckpointRequest
from mulligan.session.write.limited_bundle import LimitedBundle, NoRoom
from mulligan.session.write.writer import Work
from mulligan.storage_limit import QUOTA, Allowance
from mulligan.timeline.checkpoints import checkpoint_change, environment_value, left_out_value

if TYPE_CHECKING:  # a session without a workspace needs nothing of it, and it is slow to import
    from mulligan.workspace.capture.capture import Captured
    from mulligan.workspace.workspace import Workspace


_NO_FILES = nullcontext(None)


class CheckpointParts(msgspec.Struct, frozen=True):
    """What a checkpoint holds besides the document; its objects are durable.

    ``environment`` and ``left_out`` are the references to them in the event, ``size`` is how many
    bytes of new objects were written, ``started`` is when the checkpoint was requested. ``refused``
    is why there are no files although there is a workspace: the store may not grow. ``copy`` is a
    copy of the events that have none yet.
    """

    captured: Captured | None
    environment: Digest
    left_out: Any
    size: int
    started: float
    refused: Coverage | None = None
    copy: EventCopied | None = None


class _Shared(msgspec.Struct, frozen=True):
    """What checkpoints share while it does not change, with the references to it.

    Valid until upkeep next starts a grace period, before which it removes nothing: ``epoch`` is
    that of the pin under which they were found.
    """

    environment: tuple[Environment, Digest]
    left_out: tuple[list[LeftOut], Any] | None
    epoch: object


class Checkpointer:
    """Adds checkpoints to transactions."""

    def __init__(
        self,
        engine: Engine,
        number: int,
        environment: EnvironmentReader,
        workspace: Workspace | None,
        known_seq: Callable[[], int],
    ) -> None:
        self._known_seq = known_seq
        self._engine = engine
        self._number = number
        self._clock = engine.clock
        self._environment_reader = environment
        self._workspace = workspace
        self._stored: _Shared | None = None
        self._too_little = 0
        self._next_to_copy = 0

    @contextmanager
    def capture(
        self, bundle: PendingObjects, started: float, *, files: bool = True, limited: bool = False
    ) -> Iterator[CheckpointParts]:
        """Capture files and environment, for a block that commits a checkpoint of them.

        Files are left out without ``files``, without a workspace, and, if ``limited``, when the
        store may not grow as much as they need. The capture counts only if the block ends normally;
        see ``Workspace.capture``.
        """
        workspace, allowance = self._to_capture(files=files, limited=limited)
        with self._engine.pin() as epoch, self._captured(workspace, bundle, allowance) as captured:
            parts, shared = self._described(bundle, started, captured, epoch)
            yield parts
        # Only now: if the commit had failed, later checkpoints would refer to objects that the
        # store does not have.
        self._stored = shared

    @contextmanager
    def capture_changed(
        self, bundle: PendingObjects, started: float, latest: Checkpoint | None, *, files: bool
    ) -> Iterator[CheckpointParts | Checkpoint]:
        """Capture as ``capture`` does, limited; yield ``latest`` if it holds the same files."""
        workspace, allowance = self._to_capture(files=files, limited=True)
        with self._engine.pin() as epoch, self._captured(workspace, bundle, allowance) as captured:
            if latest is not None and _holds(latest, captured) and not bundle.flush().entries:
                # Nothing to commit: the store has the tree, and so everything that the workspace's
                # index refers to. New objects would be lost, such as damaged content that was
                # stored again: they need the commit of a checkpoint.
                yield latest
                return
            if latest is not None and self._has_same_files(latest, captured, bundle):
                # The index refers to the tree as it was captured, so that must be stored. It is
                # garbage as soon as no later checkpoint is a patch to it.
                with self._engine.write(bundle, session=self._number):
                    pass
                yield latest
                return
            parts, shared = self._described(bundle, started, captured, epoch)
            yield parts
        self._stored = shared

    def _has_same_files(
        self, latest: Checkpoint, found: Captured | Coverage | None, bundle: PendingObjects
    ) -> bool:
        """Whether a checkpoint holds the files that were found, as a patch to another base.

        Without an index, a capture stores a whole tree, although the latest one is a patch.
        """
        if found is None or isinstance(found, Coverage):
            return False
        if self._workspace is None or latest.workspace is None:
            return False
        if latest.coverage != found.coverage or latest.workspace == found.tree:
            return False
        # One that continues from an index has another tree if anything differs.
        if found.tree != found.index.edits.base:
            return False
        return not self._workspace.tree_changes(latest.workspace, found.tree, bundle=bundle)

    def _to_capture(
        self, *, files: bool, limited: bool
    ) -> tuple[Workspace | None, Allowance | None]:
        """Return whose files to capture, and how much the store may grow for them.

        Before the pin: space is released only when no operation uses it any more, this one
        included.
        """
        workspace = self._workspace if files else None
        return workspace, self._allowance() if limited and workspace is not None else None

    def _captured(
        self, workspace: Workspace | None, bundle: PendingObjects, allowance: Allowance | None
    ) -> AbstractContextManager[Captured | Coverage | None]:
        """Capture files, if there are any; the coverage alone if the store has no room for them."""
        return _NO_FILES if workspace is None else self._with_files(workspace, bundle, allowance)

    @contextmanager
    def _with_files(
        self, workspace: Workspace, bundle: PendingObjects, allowance: Allowance | None
    ) -> Iterator[Captured | Coverage]:
        with ExitStack() as stack:
            captured: Captured | Coverage
            try:
                captured = self._files(workspace, bundle, allowance, stack)
            except NoRoom as error:
                # The objects of an aborted capture are of no use.
                bundle.discard()
                captured = _refused(workspace, error.allowance)
            yield captured

    def _described(
        self,
        bundle: PendingObjects,
        started: float,
        found: Captured | Coverage | None,
        epoch: object,
    ) -> tuple[CheckpointParts, _Shared]:
        """Put what else a checkpoint holds, and make all of it durable."""
        refused = found if isinstance(found, Coverage) else None
        captured = None if isinstance(found, Coverage) else found
        if self._stored is not None and self._stored.epoch is not epoch:
            self._stored = None  # what it refers to may have been removed
        environment, left_out = self._environment(bundle), self._left_out(bundle, captured)
        # A copy costs no sync of its own if there is one anyway.
        copy = self._copy(bundle) if bundle or self._may_need_copy() else None
        # The fsync comes before the decision, not inside it: a decision may run twice, the second
        # time while it holds the write lock.
        size = bundle.flush().size
        named = left_out[1] if captured and left_out else None
        parts = CheckpointParts(captured, environment[1], named, size, started, refused, copy)
        return parts, _Shared(environment, left_out, epoch)

    def _may_need_copy(self) -> bool:
        """Whether many events have no copy, as far as is known here without a transaction."""
        return self._known_seq() + 1 - self._next_to_copy >= MAX_UNCOPIED

    def _copy(self, bundle: PendingObjects) -> EventCopied | None:
        """Put a copy of the events that have none yet, and copies again that are damaged."""
        with self._engine.read() as view:
            again = list(damaged_copies(view))
            events = events_to_copy(view, self._number)
        self._next_to_copy = self._known_seq() + 1 if events is None else events.first
        for damaged in again:
            put_copy(damaged, bundle.put)
        if events is None or not (bundle or self._may_need_copy()):
            return None
        return put_copy(events, bundle.put)

    def add(self, work: Work, request: CheckpointRequest, parts: CheckpointParts) -> int:
        """Add a checkpoint of the document so far and of what was captured; return its seq."""
        captured = parts.captured
        # Before the event, because the event names the keyframe.
        keyframe = work.keyframe_if_due(work.seq + 1)
        change = checkpoint_change(
            kind=request.kind,
            label=request.label,
            note=request.note,
            parent=work.base.checkpoint and work.base.checkpoint[1],
            keyframe=keyframe,
            environment=parts.environment,
            ms=round((self._clock.monotonic() - parts.started) * 1000, 3),
            size=parts.size,
            safety=request.safety,
            tree=captured.tree if captured else None,
            coverage=captured.coverage if captured else parts.refused,
            left_out=parts.left_out,
            key=request.key,
            data=request.data,
        )
        work.copy = parts.copy
        seq = work.add(change)
        work.labels[seq] = request.label
        if request.key is not None:
            work.keys[seq] = request.key
        return seq

    def _allowance(self) -> Allowance | None:
        """Return how much the store may grow, after an attempt to make room if it is too little."""
        found = self._engine.storage.allowance()
        if found is None or found.limit != QUOTA or found.bytes > self._too_little:
            return found
        if self._engine.upkeep is not None:
            self._engine.upkeep.make_room()
        return self._engine.storage.allowance()

    def _files(
        self,
        workspace: Workspace,
        bundle: PendingObjects,
        allowance: Allowance | None,
        stack: ExitStack,
    ) -> Captured:
        """Capture the files until the end of the stack; raises ``NoRoom``."""
        if allowance is None:
            return stack.enter_context(workspace.capture(bundle))
        # Not tried again with less room than an earlier capture had that did not fit: it would read
        # all files again, and leave unused objects behind.
        if allowance.bytes <= self._too_little:
            raise NoRoom(allowance)
        limited = LimitedBundle(bundle, self._engine.storage, allowance)
        try:
            captured = stack.enter_context(workspace.capture(limited))
        except NoRoom:
            self._too_little = allowance.bytes
            raise
        self._too_little = 0
        return captured

    def _environment(self, bundle: Bundle) -> tuple[Environment, Digest]:
        """Return the environment and its object; it is stored again only if it changed."""
        now = self._environment_reader.capture()
        if self._stored is not None and self._stored.environment[0] == now:
            return self._stored.environment
        return now, settle_root(environment_value(now), partial(bundle.put, ObjectKind.VALUE))

    def _left_out(
        self, bundle: Bundle, captured: Captured | None
    ) -> tuple[list[LeftOut], Any] | None:
        """Return the list of what is left out, and its value with references to its parts.

        Checkpoints share these objects until the list changes. If nothing changed, a capture has
        the same list object as the previous one, so the cost of a step does not grow with the list.
        """
        stored = self._stored.left_out if self._stored is not None else None
        if captured is None or (stored is not None and stored[0] is captured.coverage.left_out):
            return stored
        now = captured.coverage.left_out
        put = partial(bundle.put, ObjectKind.VALUE)
        return now, codec.decode(settle(left_out_value(now), put))


def _holds(checkpoint: Checkpoint, found: Captured | Coverage | None) -> bool:
    """Whether a checkpoint holds the files that were found, and leaves out the same."""
    if found is None or isinstance(found, Coverage):
        return checkpoint.workspace is None and checkpoint.coverage == found
    return (checkpoint.workspace, checkpoint.coverage) == (found.tree, found.coverage)


def _refused(workspace: Workspace, allowance: Allowance) -> Coverage:
    """Return the coverage of a checkpoint that holds no files because the store may not grow."""
    left_out = [LeftOut(WHOLE_WORKSPACE, allowance.reason)]
    return Coverage(0, 0, 0, left_out, root=str(workspace.root))
