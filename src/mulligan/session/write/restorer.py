"""Restoring: a safety checkpoint of the present, then files and state of the past.

Without files it is one transaction. With files it is journalled: ``restore.begun``, the files, then
``restore.applied`` with the state. A restore whose process died in between is finished at
the next open, after another safety checkpoint; one that cannot be finished can be abandoned.

The state is brought back as of when the restore was begun: what others write to it while files are
written, or before an interrupted restore is finished, stays (see
``mulligan.timeline.concurrent_writes``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

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
    Point,
    Problem,
    Restored,
    SessionRecord,
)
from mulligan.session.names import a
from mulligan.session.write.checkpointer import Checkpointer, CheckpointRequest
from mulligan.session.write.pending_restore import (
    PendingRestore,
    RestoreOrigin,
    pending_restore_change,
    read_pending_restore,
)
from mulligan.session.write.writer import Work, Writer
from mulligan.timeline.checkpoints import coverage_value, event_at, read_checkpoint
from mulligan.timeline.concurrent_writes import changed_after, keep_later
from mulligan.timeline.files import read_files
from mulligan.timeline.undo import last_undoable, restore_change
from mulligan.workspace.capture.snapshot import databases_in_use
from mulligan.workspace.entries import Directory, TreePath, shown
from mulligan.workspace.locks import Marks, lock_directory
from mulligan.workspace.restore.apply import remove_temporary_files
from mulligan.workspace.restore.fileops import Failure
from mulligan.workspace.restore.plan import TreeChange, tree_changes
from mulligan.workspace.restore.protect import in_the_way, split_protected
from mulligan.workspace.workspace import Workspace


class Target(msgspec.Struct, frozen=True):
    """Where a restore goes: the point, its document, its tree, and which parts of both.

    ``only`` and ``paths`` are None for everything; ``tree`` is None when files are no part of it.
    ``held`` is what holds the tree on the point's timeline, and says what it covers. With
    ``touch`` the files that change get the present time.
    """

    point: Point
    document: Document
    only: list[Path] | None
    tree: Digest | None = None
    paths: list[TreePath] | None = None
    held: HeldFiles | None = None
    touch: bool = False

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


Choose = Callable[[Document], Target]
"""Decides where to go, given the newest document."""


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

    def restore(self, choose: Choose, mode: str) -> Restored:
        """Bring back what is chosen, after whatever another restore has left to be done.

        What cannot be finished is abandoned for it, unless it is the same restore once more.
        """
        try:
            self.finish()
        except (DiskFull, StoreUnwritable, DamageError, OSError):
            begun = self.begun()
            if begun is None or self._is_again(begun, choose, mode):
                raise
            self.abandon()
        if self._workspace is None or choose(self._writer.document()).tree is None:
            return self._restore_state(choose, mode)
        with self._writer.alone(), lock_directory(self._engine, self._workspace.root) as marks:
            return self._restore_files(self._workspace, marks, choose, mode)

    def check(self, target: Target, *, strict: bool = True) -> None:
        """Raise ``PathNotFound`` for a part of the state that is nowhere, as a restore would."""
        now, then = self._writer.document(), target.document
        restore_change(now, then, target.point, target.only, "restore", strict=strict)

    def undo_or_redo(self, mode: str, *, touch: bool = False) -> Restored:
        """Undo or redo: go back to just before the restore on top of the stack.

        What was interrupted and would be taken back is not finished for it.
        """
        begun = None if self._workspace is None else self.begun_in(self._workspace)
        if begun is not None and _takes_back(mode, begun):
            self.abandon()

        def choose(document: Document) -> Target:
            return msgspec.structs.replace(self._undo_target(document, mode), touch=touch)

        return self.restore(choose, mode)

    def undo_target(self, mode: str) -> Target:
        """Return where undo or redo would go."""
        begun = None if self._workspace is None else self.begun_in(self._workspace)
        if begun is None:
            return self._undo_target(self._writer.document(), mode)
        if not _takes_back(mode, begun):
            raise RestorePending(f"A {begun.mode} of files in {begun.root} is not finished.")
        with self._engine.read() as view:
            here = Point(self._record.name, view.head(self._record.number).seq)
        change = _abandoned(begun, self._steps(begun.origin.tree, begun))
        return self._target(here, [], change[1]["files"])

    def _undo_target(self, document: Document, mode: str) -> Target:
        seq = last_undoable(document, mode)
        with self._engine.read() as view:
            event = event_at(view, self._record.number, seq)
        payload = self._engine.plain(event.payload)
        if "files" in payload and self._workspace is None:
            raise WorkspaceNeeded(f"Files are part of the restore that {mode} takes back.")
        before = Point(self._record.name, seq - 1)
        return self._target(before, payload["only"], payload.get("files"))

    def begun(self) -> PendingRestore | None:
        """Return the restore of files that was begun and not ended, in whatever directory."""
        return read_pending_restore(self._engine, self._writer.document())

    def finish(self) -> Restored | None:
        """Complete a restore of files that was begun here and not ended; None if there is none.

        To undo it leads back to what was there when it was begun.
        """
        workspace = self._workspace
        if workspace is None or self.begun_in(workspace) is None:
            return None
        with self._writer.alone(), lock_directory(self._engine, workspace.root) as marks:
            begun = self.begun_in(workspace)  # another process may have finished it by now
            if begun is None:
                return None
            held = begun.held if begun.restored is None else begun.restored
            files = {"before": begun.tree, "only": begun.paths, "safety": held}
            target = self._target(begun.point, begun.only, files)
            target = msgspec.structs.replace(target, touch=begun.touch)
            self._sweep(begun, os.fsencode(workspace.root))
            return self._restore_files(workspace, marks, lambda _: target, begun.mode, begun.origin)

    def abandon(self) -> PendingRestore | None:
        """End a restore that was begun and not ended; None if there is none.

        Files and state stay as they are now. To undo it leads back to the files that were there
        when it was begun.
        """
        begun = self.begun()
        if begun is None:
            return None
        with self._writer.alone(), lock_directory(self._engine, begun.root) as marks:
            if self.begun() != begun:
                return None  # another process has ended it by now
            if begun.root.is_dir():
                self._sweep(begun, os.fsencode(begun.root))
            change = _abandoned(begun, self._steps(begun.origin.tree, begun))

            def plan(work: Work) -> None:
                work.add(change)

            self._writer.commit(plan)
            marks.remove(self._record.number)
        return begun

    def _is_again(self, begun: PendingRestore, choose: Choose, mode: str) -> bool:
        """Whether somebody asks for just what was begun."""
        if begun.mode != mode or mode != "restore":
            return begun.mode == mode
        asked, point = choose(self._writer.document()), begun.point
        parts = (asked.point.session, asked.point.seq, asked.only, asked.tree, asked.paths)
        return parts == (point.session, point.seq, begun.only, begun.tree, begun.paths)

    def begun_in(self, workspace: Workspace) -> PendingRestore | None:
        """Return the restore of files that was begun in a directory and not ended."""
        begun = self.begun()
        return begun if begun is not None and begun.is_in(workspace.root) else None

    def _refuse_second(
        self, workspace: Workspace, document: Document, origin: RestoreOrigin | None
    ) -> None:
        """Refuse to begin a restore that would make another one be forgotten."""
        begun = read_pending_restore(self._engine, document)
        if begun is None or begun.origin == origin:
            return
        if begun.is_in(workspace.root):
            raise RestoreBusy(f"Another restore was begun in {begun.root} just now.")
        raise RestorePending(
            f"{a(begun.mode).capitalize()} of files in {begun.root} is not finished."
        )

    def _sweep(self, begun: PendingRestore, root: bytes) -> None:
        """Remove the drafts that a process left behind that was killed."""
        token = self._token(begun.origin)
        for before in {begun.origin.tree, begun.present}:
            remove_temporary_files(root, self._steps(before, begun), token, self._engine.objects)

    def _steps(self, before: Digest, begun: PendingRestore) -> list[TreeChange]:
        """Return what a restore had to do; nothing when the store can not tell any more."""
        document = Document({}, self._engine.load)
        try:
            return tree_changes(document, before, begun.tree, begun.paths)
        except DamageError:
            return []

    def _token(self, origin: RestoreOrigin) -> str:
        """Return what tells a restore from all others: the id of its safety checkpoint."""
        with self._engine.read() as view:
            event = event_at(view, self._record.number, origin.safety)
        return _token(read_checkpoint(self._engine, event))

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
            number = (view.find(point.session) or self._record).number
            return read_files(self._engine, view, number, seq)

    def _document_at(self, point: Point) -> Document:
        with self._engine.read() as view:
            record = view.find(point.session)
            number = self._record.number if record is None else record.number
            return self._writer.document_at(view, number, point.seq)

    def _restore_state(self, choose: Choose, mode: str) -> Restored:
        """Take a safety checkpoint and bring the state back, in one transaction."""
        chosen: list[Target] = []
        started = self._engine.clock.monotonic()

        def plan(work: Work) -> None:
            target = choose(work.document)
            self._checkpointer.add(work, _safety(target, mode), None, started)
            only = target.only
            strict = mode == "restore"
            now, then = work.document, target.document
            work.add(restore_change(now, then, target.point, only, mode, strict=strict))
            chosen[:] = [target]

        bundle = self._engine.bundle()
        events = self._checkpointer.commit(self._writer, plan, bundle)
        safety = read_checkpoint(self._engine, events[0])
        return self._restored(chosen[0], mode, safety, events[-1].seq)

    def _restore_files(
        self,
        workspace: Workspace,
        marks: Marks,
        choose: Choose,
        mode: str,
        origin: RestoreOrigin | None = None,
    ) -> Restored:
        """Keep the present, bring the files back, then the state, and look at what came of it.

        ``origin`` is what was there before, when another process began the restore.
        """
        safety, target, planned = self._begin(workspace, choose, mode, origin)
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
        # Before the first file is touched: captures of other sessions go by it.
        marks.add(self._record.number)
        self._engine.failpoint(Failpoint.RESTORE_MARKED)
        failures = workspace.apply(steps, token, parts_of, caches, touch)
        bundle = self._engine.bundle()
        after = workspace.capture(bundle)
        way = steps if origin.tree == present else workspace.steps(origin.tree, _tree(target))
        files = {
            "before": origin.tree,
            "after": after.tree,
            "only": _touched(target.paths, way),
            "safety": origin.safety,
            "coverage": coverage_value(after.coverage),
        }

        def plan(work: Work) -> None:
            place, only = target.point, target.only
            then = self._kept_later(work, target.document, origin.seq)
            work.add(restore_change(work.document, then, place, only, mode, files))

        events = self._checkpointer.commit(self._writer, plan, bundle, after)
        marks.remove(self._record.number)
        # The tree of what came of it can be read from the store only now.
        uncovered |= {left.path for left in after.coverage.left_out}
        wrong, _ = split_protected(
            workspace.steps(after.tree, _tree(target), target.paths), uncovered
        )
        problems = _problems(failures, [step.path for step in wrong if step.action != "attributes"])
        problems += _left_alone(found.left, safety)
        done = self._restored(target, mode, safety, events[-1].seq)
        return msgspec.structs.replace(done, files=len(steps), problems=problems)

    def _begin(
        self, workspace: Workspace, choose: Choose, mode: str, origin: RestoreOrigin | None
    ) -> tuple[Checkpoint, Target, list[TreeChange]]:
        """Take the safety checkpoint and note that a restore is under way."""
        chosen: list[Target] = []
        started = self._engine.clock.monotonic()
        bundle = self._engine.bundle()
        self._refuse_second(workspace, self._writer.document(), origin)
        captured = workspace.capture(bundle)
        workspace.remove_old_temporary_files()
        try:
            foreseen = choose(self._writer.document())
            # Whatever comes up does so before files are touched; what was begun is checked.
            self.check(foreseen, strict=mode == "restore" and origin is None)
            steps = workspace.steps(captured.tree, _tree(foreseen), foreseen.paths, bundle)
        except BaseException:
            workspace.reset()
            raise

        def plan(work: Work) -> None:
            target = choose(work.document)
            self._refuse_second(workspace, work.document, origin)
            safety = _safety(target, mode, is_halfway=origin is not None)
            self._checkpointer.add(work, safety, captured, started)
            before = origin or RestoreOrigin(captured.tree, work.seq)
            work.add(pending_restore_change(_begun(target, mode, before, workspace, captured.tree)))
            chosen[:] = [target]

        events = self._checkpointer.commit(self._writer, plan, bundle, captured)
        target = chosen[0]
        if (target.tree, target.paths) != (foreseen.tree, foreseen.paths):
            steps = workspace.steps(captured.tree, _tree(target), target.paths)
        return read_checkpoint(self._engine, events[0]), target, steps

    def _kept_later(self, work: Work, target: Document, seq: int) -> Document:
        """Return the target's document with what others wrote after the restore was begun."""
        if work.base.seq == seq:
            return target  # as almost always
        with self._engine.read() as view:
            number, until = self._record.number, work.base.seq
            paths = changed_after(view, number, seq, until, work.document)
        return keep_later(target, work.document, paths)

    def _restored(self, target: Target, mode: str, safety: Checkpoint, seq: int) -> Restored:
        only = None if target.only is None else tuple(target.only)
        return Restored(mode, target.point, only, safety, seq, workspace=target.workspace)


def _takes_back(mode: str, begun: PendingRestore) -> bool:
    """Whether undo, or redo, takes back what was done of a restore that is not finished."""
    return (mode == "redo") == (begun.mode == "undo")


def _token(safety: Checkpoint) -> str:
    return safety.id[:16]


def _tree(target: Target) -> Digest:
    assert target.tree is not None  # noqa: S101 -- chosen with files, or we would not be here
    return target.tree


def _safety(target: Target, mode: str, *, is_halfway: bool = False) -> CheckpointRequest:
    when = "halfway through" if is_halfway else "before"
    note = f"{when} {mode} to #{target.point.seq} of {target.point.session}"
    return CheckpointRequest("pre_operation", note, safety=True)


def left_out(checkpoint: Checkpoint) -> set[str]:
    """Return the paths that a checkpoint does not cover."""
    return {left.path for left in checkpoint.coverage.left_out} if checkpoint.coverage else set()


def _left_alone(spared: list[TreeChange], safety: Checkpoint) -> tuple[Problem, ...]:
    """Return what could not be brought back because something that no checkpoint holds is there."""
    found = safety.coverage.left_out if safety.coverage else []
    return in_the_way(spared, {left.path: left.rule for left in found} | databases_in_use(found))


def _begun(
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
        root=workspace.root,
        present=present,
        touch=target.touch,
    )


def _abandoned(begun: PendingRestore, way: list[TreeChange]) -> Change:
    """Return the event that ends a restore where it stands: it changes no state."""
    files = {
        "before": begun.origin.tree,
        "only": _touched(begun.paths, way),
        "safety": begun.origin.safety,
    }
    return RESTORED, {
        "mode": begun.mode,
        "session": begun.point.session,
        "seq": begun.point.seq,
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
