"""Restoring: a safety checkpoint of the present, then files and state of the past.

Without files it is one transaction. With files it is journalled: ``restore.begun``, the files, then
``restore.applied`` with the state. A restore whose process died in between is finished at
the next open, after another safety checkpoint; one that cannot be finished can be abandoned.

The state is brought back as of when the restore started: what others write to it while files are
written, or before an interrupted restore is finished, stays (see
``mulligan.timeline.concurrent_writes``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path as OsPath
from typing import Any, cast

import msgspec

from mulligan.document.document import Document
from mulligan.document.fold import RESTORED, Change
from mulligan.engine import Engine
from mulligan.errors import (
    DamageError,
    DiskFull,
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
    Path,
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
from mulligan.session.write.checkpointer import Checkpointer, CheckpointParts, CheckpointRequest
from mulligan.session.write.pending_restore import (
    is_pending_in,
    pending_restore_change,
    read_pending_restore,
)
from mulligan.session.write.writer import Work, Writer
from mulligan.timeline.checkpoints import coverage_value, event_at, read_checkpoint
from mulligan.timeline.concurrent_writes import changed_after, keep_concurrent_writes
from mulligan.timeline.files import read_files
from mulligan.timeline.sessions import known_session
from mulligan.timeline.undo import last_undoable, restore_change
from mulligan.workspace.capture.capture import Captured
from mulligan.workspace.capture.snapshot import databases_in_use
from mulligan.workspace.entries import Directory, TreePath, shown
from mulligan.workspace.locks import Marks, lock_directory
from mulligan.workspace.restore.fileops import Failure
from mulligan.workspace.restore.plan import TreeChange, tree_changes
from mulligan.workspace.restore.protect import in_the_way, split_protected
from mulligan.workspace.workspace import Workspace

RESTORE = "restore"
"""The mode of a restore that is neither an undo nor a redo."""


class Target(msgspec.Struct, frozen=True):
    """Where a restore goes: the point, its document, its tree, and which parts of both.

    ``only`` and ``paths`` are None for everything; ``tree`` is None when files are no part of it.
    ``held`` is what holds the tree on the point's timeline, and says what it covers. With
    ``touch`` the files that change get the present time. ``takes_back`` is the seq of the restore
    that an undo or a redo takes back.
    """

    point: Point
    document: Document
    only: list[Path] | None
    tree: Digest | None = None
    paths: list[TreePath] | None = None
    held: HeldFiles | None = None
    touch: bool = False
    takes_back: int | None = None

    @property
    def left_out(self) -> set[str]:
        """What the target's files do not cover."""
        return self.held.left_out if self.held else set()

    @property
    def workspace(self) -> tuple[str, ...] | None:
        """Which files are part of it, as text; None for all of them."""
        if self.tree is None:
            return ()
        return None if self.paths is None else tuple(shown(path) for path in self.paths)


class _StackMoved(Exception):
    """Another restore is on top of the stack than the one that an undo was to take back."""


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
        """Restore a target, after a pending restore was finished.

        One that cannot be finished is abandoned, unless it is the same restore once more.
        """
        self._end_pending(RESTORE, target)
        return self._go_to(target, RESTORE)

    def _end_pending(self, mode: str, target: Target | None = None) -> None:
        try:
            self.finish()
        except (DiskFull, StoreUnwritable, DamageError, OSError):
            pending = self.pending()
            if pending is None or _is_again(pending, mode, target):
                raise
            self.abandon()

    def _go_to(self, target: Target, mode: str) -> Restored:
        if self._workspace is None or target.tree is None:
            return self._restore_state(target, mode)
        # First this handle, then the directory, here and in `finish`, `abandon` and
        # `Session.checkpoint`: two threads that took them in different orders would deadlock.
        with self._writer.alone(), lock_directory(self._engine, self._workspace.root) as marks:
            return self._restore_files(self._workspace, marks, target, mode)

    def check(self, target: Target, *, strict: bool = True) -> None:
        """Raise ``PathNotFound`` for a part of the state that is nowhere, as a restore would."""
        now, then = self._writer.document(), target.document
        restore_change(now, then, target.point, target.only, "restore", strict=strict)

    def undo_or_redo(self, mode: str, *, touch: bool = False) -> Restored:
        """Undo or redo: go back to just before the restore on top of the stack.

        What was interrupted and would be taken back is not finished for it.
        """
        self._writer.check_alone(f"An {mode}" if mode == "undo" else f"A {mode}")
        pending = None if self._workspace is None else self.pending_in(self._workspace)
        if pending is not None and _takes_back(mode, pending):
            self.abandon()
        self._end_pending(mode)
        while True:
            target = self._undo_target(self._writer.document(), mode)
            try:
                return self._go_to(msgspec.structs.replace(target, touch=touch), mode)
            except _StackMoved:
                # Another process restored something after the choice. Nothing was written and no
                # file touched, so choose again: the newest restore is what undo takes back.
                continue

    def undo_target(self, mode: str) -> Target:
        """Return where undo or redo would go."""
        pending = None if self._workspace is None else self.pending_in(self._workspace)
        if pending is None:
            return self._undo_target(self._writer.document(), mode)
        if not _takes_back(mode, pending):
            raise RestorePending(
                f"A {pending.mode} of files in {pending.directory} is not finished."
            )
        with self._engine.read() as view:
            here = Point(self._record.name, view.head(self._record.number).seq)
        change = _abandoned(pending, self._steps(pending.origin.tree, pending))
        return self._target(here, [], change[1]["files"])

    def _undo_target(self, document: Document, mode: str) -> Target:
        seq = last_undoable(document, mode)
        with self._engine.read() as view:
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

        To undo it leads back to what was there when it started.
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
            self._sweep(pending, os.fsencode(workspace.root))
            return self._restore_files(workspace, marks, target, pending.mode, pending.origin)

    def abandon(self) -> PendingRestore | None:
        """End the pending restore where it stands; None if there is none.

        Files and state stay as they are now. To undo it leads back to the files that were there
        when it started.
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
            change = _abandoned(pending, self._steps(pending.origin.tree, pending))
            self._writer.commit(lambda work: work.add(change))
            # After the commit: a mark that stays costs a look, one that goes early lets captures
            # of other sessions take files of a restore that is still pending.
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
            remove_temporary_files(root, self._steps(before, pending), token, self._engine.objects)

    def _steps(self, before: Digest, pending: PendingRestore) -> list[TreeChange]:
        """Return what a restore had to do; nothing when the store can not tell any more."""
        document = Document({}, self._engine.load)
        try:
            return tree_changes(document, before, pending.tree, pending.paths)
        except DamageError:
            return []

    def _token(self, origin: RestoreOrigin) -> str:
        """Return what tells a restore from all others: the id of its safety checkpoint."""
        return _token(self._checkpoint_at(origin.safety))

    def _checkpoint_at(self, seq: int) -> Checkpoint:
        with self._engine.read() as view:
            event = event_at(view, self._record.number, seq)
        return read_checkpoint(self._engine, event)

    def _target(self, point: Point, only: Any, files: Any) -> Target:
        """Return a target from what an event says of it."""
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
        """Take a safety checkpoint and bring the state back, in one transaction."""
        started, bundle = self._engine.clock.monotonic(), self._engine.bundle()

        def decide(work: Work) -> tuple[int, int]:
            _check_stack(work.document, target, mode)
            safety = self._checkpointer.add(work, _safety(target, mode), parts)
            now, then, strict = work.document, target.document, mode == RESTORE
            change = restore_change(now, then, target.point, target.only, mode, strict=strict)
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
        """Keep the present, bring the files back, then the state, and look at what came of it.

        ``origin`` is what was there before, when another process began the restore.
        """
        safety, planned = self._begin(workspace, target, mode, origin)
        present = Digest(safety.workspace or b"")
        token = _token(safety) if origin is None else self._token(origin)
        origin = origin or RestoreOrigin(present, safety.seq)
        alone = databases_in_use(safety.coverage.left_out) if safety.coverage else {}
        found = workspace.divide(planned, left_out(safety) | target.left_out | alone.keys())
        steps, uncovered = found.todo, found.uncovered
        caches = found.caches
        if origin.tree != present:  # what was changed before it was interrupted is no step now
            earlier = workspace.steps(origin.tree, _tree(target), target.paths)
            caches = msgspec.structs.replace(caches, changed=[*steps, *earlier])
        parts_of = None if target.paths is None else target.tree
        touch = caches.changed if target.touch else ()
        # After restore.begun is durable and before the first file is touched: captures of other
        # sessions read the mark, then ask the journal.
        marks.add(self._record.number)
        self._engine.failpoint(Failpoint.RESTORE_MARKED)
        failures = workspace.apply(steps, token, parts_of, caches, touch)
        way = steps if origin.tree == present else workspace.steps(origin.tree, _tree(target))
        after, seq = self._end(workspace, target, mode, origin, way)
        marks.remove(self._record.number)
        # The tree of what came of it can be read from the store only now.
        uncovered |= {left.path for left in after.coverage.left_out}
        wrong, _ = split_protected(
            workspace.steps(after.tree, _tree(target), target.paths), uncovered
        )
        problems = _problems(failures, [step.path for step in wrong if step.action != "attributes"])
        problems += _left_alone(found.left, safety)
        done = self._restored(target, mode, safety, seq)
        return msgspec.structs.replace(done, files=len(steps), problems=problems)

    def _end(
        self,
        workspace: Workspace,
        target: Target,
        mode: str,
        origin: RestoreOrigin,
        way: list[TreeChange],
    ) -> tuple[Captured, int]:
        """Restore the state and end the restore, in one transaction; return the files and its seq.

        The state comes after the files: until this commits, the restore is pending, and after a
        crash everything is done again.
        """
        bundle = self._engine.bundle()
        with workspace.capture(bundle) as after:
            files = {
                "before": origin.tree,
                "after": after.tree,
                "only": _touched(target.paths, way),
                "safety": origin.safety,
                "coverage": coverage_value(after.coverage),
            }

            def decide(work: Work) -> int:
                then = self._with_concurrent_writes(work, target.document, origin.seq)
                now, place = work.document, target.point
                return work.add(restore_change(now, then, place, target.only, mode, files))

            return after, self._writer.commit(decide, bundle)

    def _begin(
        self, workspace: Workspace, target: Target, mode: str, origin: RestoreOrigin | None
    ) -> tuple[Checkpoint, list[TreeChange]]:
        """Take the safety checkpoint and write ``restore.begun``, in one transaction.

        Both are durable before the first file is touched: whatever happens then, the files of the
        present are in the store, and the next process knows what to finish.
        """
        started, bundle = self._engine.clock.monotonic(), self._engine.bundle()
        self._refuse_second(workspace, self._writer.document(), origin)
        with self._checkpointer.capture(bundle, started) as parts:
            present = _captured_tree(parts)
            # The capture has found them. The directory's lock says that their restores have ended.
            workspace.remove_old_temporary_files()
            # Errors are raised before files are touched; a pending restore was checked then.
            self.check(target, strict=mode == RESTORE and origin is None)
            steps = workspace.steps(present, _tree(target), target.paths, bundle)

            def decide(work: Work) -> int:
                # Checked again on the newest document: the directory's lock keeps out restores in
                # this directory, not those of the same session elsewhere.
                _check_stack(work.document, target, mode)
                self._refuse_second(workspace, work.document, origin)
                request = _safety(target, mode, is_halfway=origin is not None)
                safety = self._checkpointer.add(work, request, parts)
                before = origin or RestoreOrigin(present, safety)
                pending = _pending_restore(target, mode, before, workspace, present)
                work.add(pending_restore_change(pending))
                return safety

            safety = self._writer.commit(decide, bundle)
        return self._checkpoint_at(safety), steps

    def _with_concurrent_writes(self, work: Work, target: Document, seq: int) -> Document:
        """Return the target's document with what others wrote after the restore started."""
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
    """Raise ``_StackMoved`` if an undo or redo would take back another restore than chosen."""
    if target.takes_back is not None and last_undoable(document, mode) != target.takes_back:
        raise _StackMoved


def _is_again(pending: PendingRestore, mode: str, target: Target | None) -> bool:
    """Whether the caller asks for exactly the restore that is pending."""
    if pending.mode != mode or target is None:
        return pending.mode == mode
    point, asked = pending.point, target.point
    parts = (asked.session, asked.seq, target.only, target.tree, target.paths)
    return parts == (point.session, point.seq, pending.only, pending.tree, pending.paths)


def _takes_back(mode: str, pending: PendingRestore) -> bool:
    """Whether undo, or redo, takes back what was done of a restore that is not finished."""
    return (mode == "redo") == (pending.mode == "undo")


def _token(safety: Checkpoint) -> str:
    return safety.id[:16]


def _tree(target: Target) -> Digest:
    assert target.tree is not None  # noqa: S101 -- chosen with files, or we would not be here
    return target.tree


def _captured_tree(parts: CheckpointParts) -> Digest:
    assert parts.captured is not None  # noqa: S101 -- a restore of files has a workspace
    return parts.captured.tree


def _safety(target: Target, mode: str, *, is_halfway: bool = False) -> CheckpointRequest:
    when = "halfway through" if is_halfway else "before"
    note = f"{when} {mode} to #{target.point.seq} of {target.point.session}"
    return CheckpointRequest("pre_operation", note, safety=True)


def left_out(checkpoint: Checkpoint) -> set[str]:
    """Return the paths that a checkpoint does not cover."""
    return {left.path for left in checkpoint.coverage.left_out} if checkpoint.coverage else set()


def _left_alone(protected: list[TreeChange], safety: Checkpoint) -> tuple[Problem, ...]:
    """Return what could not be brought back because something that no checkpoint holds is there."""
    found = safety.coverage.left_out if safety.coverage else []
    return in_the_way(protected, {left.path: left.rule for left in found} | databases_in_use(found))


def _pending_restore(
    target: Target, mode: str, before: RestoreOrigin, workspace: Workspace, present: Digest
) -> PendingRestore:
    held, is_checkpoint = target.held, target.held is not None and target.held.checkpoint
    return PendingRestore(
        mode=mode,
        point=Point(target.point.session, target.point.seq),
        only=target.only,
        tree=_tree(target),
        paths=target.paths,
        held=held.seq if held and is_checkpoint else None,
        restored=held.seq if held and not is_checkpoint else None,
        origin=before,
        directory=str(workspace.root),
        present=present,
        touch=target.touch,
    )


def _abandoned(pending: PendingRestore, way: list[TreeChange]) -> Change:
    """Return the event that ends a restore where it stands: it changes no state."""
    files = {
        "before": pending.origin.tree,
        "only": _touched(pending.paths, way),
        "safety": pending.origin.safety,
    }
    return RESTORED, {
        "mode": pending.mode,
        "session": pending.point.session,
        "seq": pending.point.seq,
        "only": [],
        "changes": [],
        "files": files,
        "abandoned": True,
    }


def _touched(
    paths: Sequence[TreePath] | None, steps: Sequence[TreeChange]
) -> list[list[str]] | None:
    """Return what to look at to take a restore back: directories made on the way go, too."""
    if paths is None:
        return None
    made = {s.path for s in steps if s.before is None and isinstance(s.after, Directory)}
    lengths = [range(1, len(path) + 1) for path in paths]
    return [
        list(next((path[:n] for n in numbers if path[:n] in made), path))
        for path, numbers in zip(paths, lengths, strict=True)
    ]


def _problems(failures: list[Failure], wrong: list[TreePath]) -> tuple[Problem, ...]:
    named = dict(failures)
    for path in wrong:
        named.setdefault(path, DIFFERS)
    return tuple(Problem("file", shown(path), reason) for path, reason in sorted(named.items()))
