"""Restoring: a safety checkpoint of the present, then files and state of the past.

Without files it is one transaction. With files it is journalled: ``restore.begun``, the files, then
``restore.applied`` with the state. A restore whose process died in between is finished at
the next open, after another safety checkpoint; one that cannot be finished can be abandoned.

The restore replaces the state as it was when the restore started. What others write to the state
while files are written, or before an interrupted restore is finished, stays (see
``mulligan.timeline.concurrent_writes``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path as OsPath
from typing import Any, cast

import msgspec

from mulligan.document.document import Document
from mulligan.engine import Engine
from mulligan.errors import (
    DamageError,
    DiskFull,
    NothingToUndo,
    RestoreBusy,
    RestorePending,
    StoreUnwritable,
    WorkspaceNeeded,
)
from mulligan.failpoints import Failpoint
from mulligan.model import (
    DIFFERS,
    Checkpoint,
    Digest,
    HeldFiles,
    PendingRestore,
    Point,
    Problem,
    Restored,
    RestoreMode,
    RestoreOrigin,
    SessionRecord,
)
from mulligan.session.components import merge_unit
from mulligan.session.names import a
from mulligan.session.write import ledger
from mulligan.session.write.checkpointer import Checkpointer, CheckpointParts
from mulligan.session.write.damaged import refuse_lost_files
from mulligan.session.write.pending_restore import (
    abandoned_change,
    is_pending_in,
    new_pending_restore,
    pending_restore_change,
    read_pending_restore,
    touched_paths,
)
from mulligan.session.write.restore_target import (
    RESTORE,
    Target,
    is_again,
    left_out,
    safety_request,
    takes_back,
)
from mulligan.session.write.writer import Work, Writer
from mulligan.timeline.checkpoints import coverage_value, event_at, read_checkpoint
from mulligan.timeline.concurrent_writes import changed_after, keep_concurrent_writes
from mulligan.timeline.files import read_files
from mulligan.timeline.moments import fold_at
from mulligan.timeline.sessions import known_session
from mulligan.timeline.undo import last_undoable, restore_change
from mulligan.workspace.capture.capture import Captured
from mulligan.workspace.capture.snapshot import databases_in_use
from mulligan.workspace.entries import TreePath, shown
from mulligan.workspace.locks import Marks, lock_directory
from mulligan.workspace.restore.fileops import Failure
from mulligan.workspace.restore.plan import TreeChange, tree_changes
from mulligan.workspace.restore.protect import in_the_way, split_protected
from mulligan.workspace.restore.purged import left_alone, purged_paths
from mulligan.workspace.workspace import Workspace


class _StackMoved(Exception):
    """The restore on top of the stack is no longer the one that the undo was to reverse."""


class Restorer:
    """Restores, undoes and redoes on one session."""

    def __init__(
        self,
        engine: Engine,
        record: SessionRecord,
        writer: Writer,
        checkpointer: Checkpointer,
        workspace: Workspace | None,
    ) -> None:
        self._engine = engine
        self._record = record
        self._writer = writer
        self._checkpointer = checkpointer
        self._workspace = workspace

    def restore(self, target: Target) -> Restored:
        """Restore a target, after finishing a pending restore.

        One that cannot be finished is abandoned, unless the target is the same.
        """
        # A pending restore is ended first: its files are half written, and the safety checkpoint of
        # this one must not hold such a mixture.
        self._end_pending(RESTORE, target)
        return self._go_to(target, RESTORE)

    def _end_pending(self, mode: str, target: Target | None = None) -> None:
        try:
            self.finish()
        except (DiskFull, StoreUnwritable, DamageError, OSError):
            pending = self.pending()
            if pending is None or is_again(pending, mode, target):
                raise
            self.abandon()

    def _go_to(self, target: Target, mode: str) -> Restored:
        if self._workspace is None or target.tree is None:
            return self._restore_state(target, mode)
        # Before anything is written: a restore that lacks a file could not be finished.
        refuse_lost_files(self._engine, self._writer.document(), target.tree, target.paths)
        # First this handle, then the directory, here and in `finish`, `abandon` and
        # `Session.checkpoint`: two threads that took them in different orders would deadlock.
        with self._writer.alone(), lock_directory(self._engine, self._workspace.root) as marks:
            return self._restore_files(self._workspace, marks, target, mode)

    def check(self, target: Target, *, strict: bool = True) -> None:
        """Raise ``PathNotFound`` for a missing part of the state, as a restore would."""
        now, then = self._writer.document(), target.document
        restore_change(now, then, target.point, target.only, "restore", strict=strict)

    def undo_or_redo(
        self, mode: str, *, touch: bool = False, prepare: Callable[[Target], Target] | None = None
    ) -> Restored:
        """Undo or redo: go back to just before the restore on top of the stack.

        An interrupted restore that would be reversed is not finished first. ``prepare`` is given
        the target before anything changes.
        """
        self._writer.check_alone(f"An {mode}" if mode == "undo" else f"A {mode}")
        pending = None if self._workspace is None else self.pending_in(self._workspace)
        if pending is not None and takes_back(mode, pending):
            self.abandon()
        self._end_pending(mode)
        while True:
            target = self._undo_target(self._writer.document(), mode)
            target = msgspec.structs.replace(target, touch=touch)
            if prepare is not None:
                target = prepare(target)
            try:
                return self._go_to(target, mode)
            except _StackMoved:
                # Another process restored something after the choice. Nothing was written and no
                # file touched, so choose again: undo reverses the newest restore.
                continue

    def undo_target(self, mode: str) -> Target:
        """Return the target of an undo or a redo."""
        pending = None if self._workspace is None else self.pending_in(self._workspace)
        if pending is None:
            return self._undo_target(self._writer.document(), mode)
        if not takes_back(mode, pending):
            raise RestorePending(
                f"A {pending.mode} of files in {pending.directory} is not finished."
            )
        with self._engine.read() as view:
            here = Point(self._record.name, view.head(self._record.number).seq)
        change = abandoned_change(pending, self._changes_of(pending.origin.tree, pending))
        return self._target(here, [], change[1]["files"])

    def _undo_target(self, document: Document, mode: str) -> Target:
        seq = last_undoable(document, mode)
        with self._engine.read() as view:
            if fold_at(view, self._record.number, seq) is not None:
                raise NothingToUndo(
                    f"The restore #{seq}, which {mode} would take back, was folded away: it is "
                    "past the undo window.",
                    hint="`mulligan log` lists the checkpoints that can be restored.",
                )
            event = event_at(view, self._record.number, seq)
        payload = self._engine.plain(event.payload)
        if "files" in payload and self._workspace is None:
            raise WorkspaceNeeded(f"Files are part of the restore that {mode} takes back.")
        before = Point(self._record.name, seq - 1)
        target = self._target(before, payload["only"], payload.get("files"))
        return msgspec.structs.replace(target, takes_back=seq)

    def pending(self) -> PendingRestore | None:
        """Return the restore of files that has started and not ended, in any directory."""
        return read_pending_restore(self._engine, self._writer.document())

    def finish(self) -> Restored | None:
        """Complete the restore of files that is pending here; None if there is none.

        An undo then goes back to what was there when the restore started.
        """
        workspace = self._workspace
        if workspace is None or self.pending_in(workspace) is None:
            return None
        with self._writer.alone(), lock_directory(self._engine, workspace.root) as marks:
            # Read again under the lock: another process may have finished it meanwhile.
            pending = self.pending_in(workspace)
            if pending is None:
                return None
            held = pending.held if pending.restored is None else pending.restored
            files = {"before": pending.tree, "only": pending.paths, "safety": held}
            target = self._target(pending.point, pending.only, files)
            target = msgspec.structs.replace(target, touch=pending.touch)
            # Before the capture of the safety checkpoint, which would otherwise hold the leftover
            # files.
            self._sweep(pending, os.fsencode(workspace.root))
            return self._restore_files(workspace, marks, target, pending.mode, pending.origin)

    def abandon(self) -> PendingRestore | None:
        """End the pending restore as it is; None if there is none.

        Files and state stay as they are now. An undo then goes back to the files that were there
        when the restore started.
        """
        pending = self.pending()
        if pending is None:
            return None
        root = OsPath(pending.directory)
        with self._writer.alone(), lock_directory(self._engine, root) as marks:
            if self.pending() != pending:  # read again under the lock, as in `finish`
                return None
            if root.is_dir():
                self._sweep(pending, os.fsencode(root))
            change = abandoned_change(pending, self._changes_of(pending.origin.tree, pending))
            self._writer.commit(lambda work: work.add(change))
            # After the commit: a mark that stays costs one look-up, but without a mark other
            # sessions could capture files of a restore that is still pending.
            marks.remove(self._record.number)
        return pending

    def pending_in(self, workspace: Workspace) -> PendingRestore | None:
        """Return the restore of files that is pending in a directory."""
        pending = self.pending()
        return pending if pending is not None and is_pending_in(pending, workspace.root) else None

    def _refuse_second(
        self, workspace: Workspace, document: Document, origin: RestoreOrigin | None
    ) -> None:
        """Refuse a restore that would replace another one as the pending restore."""
        pending = read_pending_restore(self._engine, document)
        if pending is None or pending.origin == origin:
            return
        if is_pending_in(pending, workspace.root):
            raise RestoreBusy(f"Another restore started in {pending.directory} just now.")
        raise RestorePending(
            f"{a(pending.mode).capitalize()} of files in {pending.directory} is not finished."
        )

    def _sweep(self, pending: PendingRestore, root: bytes) -> None:
        """Remove the temporary files that a killed process left behind."""
        from mulligan.workspace.restore.apply import remove_temporary_files  # only needed here

        token = self._token(pending.origin)
        for before in {pending.origin.tree, pending.present}:
            remove_temporary_files(
                root, self._changes_of(before, pending), token, self._engine.objects
            )

    def _changes_of(self, before: Digest, pending: PendingRestore) -> list[TreeChange]:
        """Return what a restore had to do; nothing if the store no longer knows."""
        document = Document({}, self._engine.load)
        try:
            return tree_changes(document, before, pending.tree, pending.paths)
        except DamageError:
            return []

    def _token(self, origin: RestoreOrigin) -> str:
        """Return what identifies a restore: the id of its safety checkpoint."""
        return _token(self._checkpoint_at(origin.safety))

    def _checkpoint_at(self, seq: int) -> Checkpoint:
        with self._engine.read() as view:
            event = event_at(view, self._record.number, seq)
        return read_checkpoint(self._engine, event)

    def _target(self, point: Point, only: Any, files: Any) -> Target:
        """Return the target that an event describes."""
        parts = None if only is None else [tuple(path) for path in only]
        document = self._document_at(point)
        if files is None or self._workspace is None:
            return Target(point, document, parts)
        paths = None if files["only"] is None else [tuple(path) for path in files["only"]]
        held = self._held(point, files.get("safety"))
        return Target(point, document, parts, Digest(files["before"]), paths, held)

    def _held(self, point: Point, seq: int | None) -> HeldFiles | None:
        """Return the files that an event on the timeline of a point holds."""
        if seq is None:
            return None
        with self._engine.read() as view:
            session = known_session(view, point.session)
            return read_files(self._engine, view, session.number, seq)

    def _document_at(self, point: Point) -> Document:
        with self._engine.read() as view:
            session = known_session(view, point.session)
            return self._writer.document_at(view, session.number, point.seq)

    def _restore_state(self, target: Target, mode: str) -> Restored:
        """Take a safety checkpoint and restore the state, in one transaction."""
        started, bundle = self._engine.clock.monotonic(), self._engine.bundle()

        def decide(work: Work) -> tuple[int, int]:
            _check_stack(work.document, target, mode)
            _check_effects(work.document, target)
            safety = self._checkpointer.add(work, safety_request(target, mode), parts)
            now, then, strict = work.document, target.document, mode == RESTORE
            also, facts = _effects(now, target)
            change = restore_change(
                now,
                then,
                target.point,
                target.only,
                mode,
                strict=strict,
                also=also,
                facts=facts,
            )
            return safety, work.add(change)

        with self._checkpointer.capture(bundle, started, files=False) as parts:
            safety, seq = self._writer.commit(decide, bundle)
        return self._restored(target, mode, self._checkpoint_at(safety), seq)

    def _restore_files(
        self,
        workspace: Workspace,
        marks: Marks,
        target: Target,
        mode: str,
        origin: RestoreOrigin | None = None,
    ) -> Restored:
        """Take the safety checkpoint, restore the files, then the state, and report the result.

        ``origin`` is what was there before, if another process started the restore.
        """
        # From here on nothing can be lost: everything that is replaced below is in this checkpoint.
        safety, planned = self._begin(workspace, target, mode, origin)
        present = Digest(safety.workspace or b"")
        token = _token(safety) if origin is None else self._token(origin)
        origin = origin or RestoreOrigin(present, safety.seq)
        alone = databases_in_use(safety.coverage.left_out) if safety.coverage else {}
        purged = purged_paths(self._engine, planned)
        uncovered = left_out(safety) | target.left_out | alone.keys() | purged.keys()
        found = workspace.divide(planned, uncovered)
        changes, uncovered = found.todo, found.uncovered
        caches = found.caches
        if origin.tree != present:  # what it changed before the interruption no longer differs
            earlier = workspace.tree_changes(origin.tree, target.files, target.paths)
            caches = msgspec.structs.replace(caches, changed=[*changes, *earlier])
        touch = caches.changed if target.touch else ()
        # After restore.begun is durable and before the first file is touched: captures of other
        # sessions read the mark, then ask the journal.
        marks.add(self._record.number)
        self._engine.failpoint(Failpoint.RESTORE_MARKED)
        failures = workspace.apply(changes, token, target.files, target.paths, caches, touch)
        done = (
            changes if origin.tree == present else workspace.tree_changes(origin.tree, target.files)
        )
        # The directory is captured again: the event records what is there now, including edits made
        # meanwhile, not what was planned.
        after, seq = self._end(workspace, target, mode, origin, done)
        marks.remove(self._record.number)
        # The resulting tree can be read from the store only now.
        uncovered |= {left.path for left in after.coverage.left_out}
        wrong, _ = split_protected(
            workspace.tree_changes(after.tree, target.files, target.paths), uncovered
        )
        problems = _problems(
            failures, [change.path for change in wrong if change.action != "attributes"]
        )
        problems += _left_alone(found.left, safety)
        restored = self._restored(target, mode, safety, seq)
        return msgspec.structs.replace(
            restored, files=len(changes), problems=problems, purged=left_alone(purged)
        )

    def _end(
        self,
        workspace: Workspace,
        target: Target,
        mode: str,
        origin: RestoreOrigin,
        done: list[TreeChange],
    ) -> tuple[Captured, int]:
        """Restore the state and end the restore, in one transaction; return the files and its seq.

        The state comes after the files: until this commits, the restore is pending, and after a
        crash all of it is repeated.
        """
        # A bundle of its own: that of the safety checkpoint was committed before the first file
        # changed.
        bundle = self._engine.bundle()
        with workspace.capture(bundle) as after:
            files = {
                "before": origin.tree,
                "after": after.tree,
                "only": touched_paths(target.paths, done),
                "safety": origin.safety,
                "coverage": coverage_value(after.coverage),
            }

            def decide(work: Work) -> int:
                then = self._with_concurrent_writes(work, target.document, origin.seq)
                now, place = work.document, target.point
                also, facts = _effects(now, target)
                return work.add(
                    restore_change(
                        now, then, place, target.only, mode, files, also=also, facts=facts
                    )
                )

            return after, self._writer.commit(decide, bundle)

    def _begin(
        self, workspace: Workspace, target: Target, mode: str, origin: RestoreOrigin | None
    ) -> tuple[Checkpoint, list[TreeChange]]:
        """Take the safety checkpoint and write ``restore.begun``, in one transaction.

        Both are durable before the first file is touched. So after any crash the present files are
        in the store, and the next process knows what to finish.
        """
        started, bundle = self._engine.clock.monotonic(), self._engine.bundle()
        self._refuse_second(workspace, self._writer.document(), origin)
        with self._checkpointer.capture(bundle, started) as parts:
            present = _captured_tree(parts)
            # The capture found them. The directory's lock proves that their restores have ended.
            workspace.remove_old_temporary_files()
            # Errors are raised before files are touched; for a pending restore, this was checked
            # when it started.
            self.check(target, strict=mode == RESTORE and origin is None)
            changes = workspace.tree_changes(present, target.files, target.paths, bundle)

            def decide(work: Work) -> int:
                # Checked again on the newest document: the directory's lock keeps out restores in
                # this directory, not those of the same session elsewhere.
                _check_stack(work.document, target, mode)
                self._refuse_second(workspace, work.document, origin)
                if origin is None:
                    _check_effects(work.document, target)
                request = safety_request(target, mode, is_halfway=origin is not None)
                safety = self._checkpointer.add(work, request, parts)
                before = origin or RestoreOrigin(present, safety)
                pending = new_pending_restore(target, mode, before, workspace, present)
                work.add(pending_restore_change(pending))
                return safety

            safety = self._writer.commit(decide, bundle)
        return self._checkpoint_at(safety), changes

    def _with_concurrent_writes(self, work: Work, target: Document, seq: int) -> Document:
        """Return the target's document with what others wrote after the restore started."""
        # Checked in both runs of the decision: the head may move between them.
        if work.base.seq == seq:
            return target  # the common case: no event came in between
        with self._engine.read() as view:
            number, until = self._record.number, work.base.seq
            paths = changed_after(view, number, seq, until, work.document, merge_unit)
        return keep_concurrent_writes(target, work.document, paths)

    def _restored(self, target: Target, mode: str, safety: Checkpoint, seq: int) -> Restored:
        only = None if target.only is None else tuple(target.only)
        return Restored(
            cast(RestoreMode, mode), target.point, only, safety, seq, workspace=target.workspace
        )


def _check_stack(document: Document, target: Target, mode: str) -> None:
    """Raise ``_StackMoved`` if an undo or redo would reverse another restore than chosen."""
    if target.takes_back is not None and last_undoable(document, mode) != target.takes_back:
        raise _StackMoved


def _check_effects(document: Document, target: Target) -> None:
    """Raise ``LeftBehind`` for effects whose loss from the timeline was not accepted."""
    if target.rewinds and not target.accepts:
        ledger.refuse_left_behind(document, target.document)


def _effects(now: Document, target: Target) -> tuple[list[list[Any]], dict[str, Any]]:
    """Return how the state tells of effects beyond the target, and what the event says of them."""
    if not target.rewinds:
        return [], {}
    also = ledger.outside_changes(now, target.document, target.rolls)
    return also, ledger.restore_facts(now, target.document, target.rolls)


def _token(safety: Checkpoint) -> str:
    return safety.id[:16]


def _captured_tree(parts: CheckpointParts) -> Digest:
    assert parts.captured is not None  # noqa: S101 -- a restore of files has a workspace
    return parts.captured.tree


def _left_alone(protected: list[TreeChange], safety: Checkpoint) -> tuple[Problem, ...]:
    """Return what could not be restored because something that no checkpoint holds is there."""
    found = safety.coverage.left_out if safety.coverage else []
    return in_the_way(protected, {left.path: left.rule for left in found} | databases_in_use(found))


def _problems(failures: list[Failure], wrong: list[TreePath]) -> tuple[Problem, ...]:
    named = dict(failures)
    for path in wrong:
        named.setdefault(path, DIFFERS)
    return tuple(Problem("file", shown(path), reason) for path, reason in sorted(named.items()))
