"""Restoring: a safety checkpoint of the present, then files and state of the past.

Without files it is one transaction. With files it is journalled: ``restore.begun``, the files, then
``restore.applied`` with the state. A restore whose process died in between is finished at
the next open, after another safety checkpoint.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path as OsPath
from typing import Any

import msgspec

from mulligan.engine import Engine
from mulligan.errors import RestoreBusy
from mulligan.model import Checkpoint, Digest, Path, Point, Problem, Restored, SessionRecord
from mulligan.objects.protocol import Bundle
from mulligan.session.checkpointer import Checkpointer, Request
from mulligan.session.writer import Work, Writer
from mulligan.state.document import MISSING, Document
from mulligan.state.events import PENDING, RESTORE_BEGUN
from mulligan.state.history import document_at
from mulligan.timeline.checkpoints import event_at, read_checkpoint
from mulligan.timeline.restore import last_walk, restore_change
from mulligan.workspace.apply import Failure
from mulligan.workspace.entries import Directory, from_name, shown, to_name
from mulligan.workspace.plan import Step, TreePath
from mulligan.workspace.spare import left_out_above, spare
from mulligan.workspace.workspace import Workspace


class Target(msgspec.Struct, frozen=True):
    """Where a restore goes: the point, its document, its tree, and which parts of both.

    ``only`` and ``paths`` are None for everything; ``tree`` is None when files are no part of it.
    ``held`` is the seq of the checkpoint, on the point's timeline, that holds the tree.
    """

    point: Point
    document: Document
    only: list[Path] | None
    tree: Digest | None = None
    paths: list[TreePath] | None = None
    held: int | None = None


Choose = Callable[[Document], Target]
"""Decides where to go, given the newest document."""


class Origin(msgspec.Struct, frozen=True):
    """What was there before a restore: the tree, and the seq of the checkpoint that holds it."""

    tree: Digest
    safety: int


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
        """Bring back what is chosen, after whatever another restore has left to be done."""
        self.finish()
        if self._workspace is None or choose(self._writer.document()).tree is None:
            return self._restore_state(choose, mode)
        with self._writer.exclusive(), self._lock():
            return self._restore_files(self._workspace, choose, mode)

    def check(self, target: Target, *, strict: bool = True) -> None:
        """Raise ``PathNotFound`` for a part of the state that is nowhere, as a restore would."""
        now, then = self._writer.document(), target.document
        restore_change(now, then, target.point, target.only, "restore", strict=strict)

    def walk(self, mode: str) -> Restored:
        """Undo or redo: go back to just before the restore on top of the stack."""

        def choose(document: Document) -> Target:
            seq = last_walk(document, mode)
            with self._engine.read() as view:
                event = event_at(view, self._record.number, seq)
            payload = self._engine.plain(event.payload)
            before = Point(self._record.name, seq - 1)
            return self._target(before, payload["only"], payload.get("files"))

        return self.restore(choose, mode)

    def finish(self) -> Restored | None:
        """Complete a restore of files that was begun here and not ended; None if there is none.

        To undo it leads back to what was there when it was begun.
        """
        workspace = self._workspace
        if workspace is None or self._pending(workspace) is None:
            return None
        with self._writer.exclusive(), self._lock():
            begun = self._pending(workspace)  # another process may have finished it by now
            if begun is None:
                return None
            point = Point(begun["session"], begun["seq"])
            files = {"before": begun["tree"], "only": begun["paths"], "safety": begun["held"]}
            target = self._target(point, begun["only"], files)
            origin = Origin(Digest(begun["before"]), begun["safety"])
            workspace.sweep(workspace.steps(origin.tree, _tree(target), target.paths))
            return self._restore_files(workspace, lambda _: target, begun["mode"], origin)

    def _pending(self, workspace: Workspace) -> dict[str, Any] | None:
        """Return the restore that was begun in this directory, wherever it was moved since."""
        pending = self._writer.document().find(PENDING)
        if pending is MISSING:
            return None
        begun: dict[str, Any] = self._engine.plain(pending)
        root = OsPath(os.fsdecode(from_name(begun["root"])))
        return begun if root == workspace.root or not root.exists() else None

    def _target(self, point: Point, only: Any, files: Any) -> Target:
        """Return a target from what an event says of it."""
        parts = None if only is None else [tuple(path) for path in only]
        document = self._document_at(point)
        if files is None or self._workspace is None:
            return Target(point, document, parts)
        paths = None if files["only"] is None else [tuple(path) for path in files["only"]]
        tree, held = Digest(files["before"]), files.get("safety")
        return Target(point, document, parts, tree, paths, held)

    def _document_at(self, point: Point) -> Document:
        with self._engine.read() as view:
            record = view.find(point.session)
            number = self._record.number if record is None else record.number
            return document_at(view, number, point.seq, self._engine.load)

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
        self, workspace: Workspace, choose: Choose, mode: str, origin: Origin | None = None
    ) -> Restored:
        """Keep the present, bring the files back, then the state, and look at what came of it.

        ``origin`` is what was there before, when another process began the restore.
        """
        safety, target, planned = self._begin(workspace, choose, mode, origin)
        present = Digest(safety.workspace or b"")
        origin = origin or Origin(present, safety.seq)
        uncovered = left_out(safety) | self._left_out(target)
        steps, spared = spare(planned, uncovered)
        failures = workspace.apply(steps, _tree(target))
        bundle = self._engine.bundle()
        after = workspace.capture(bundle)
        way = steps if origin.tree == present else workspace.steps(origin.tree, _tree(target))
        files = {
            "before": origin.tree,
            "after": after.tree,
            "only": _touched(target.paths, way),
            "safety": origin.safety,
        }

        def plan(work: Work) -> None:
            place, only = target.point, target.only
            work.add(restore_change(work.document, target.document, place, only, mode, files))

        events = self._checkpointer.commit(self._writer, plan, bundle)
        # The tree of what came of it can be read from the store only now.
        uncovered |= {left.path for left in after.coverage.left_out}
        wrong, _ = spare(workspace.steps(after.tree, _tree(target), target.paths), uncovered)
        problems = _problems(failures, [step.path for step in wrong if step.action != "attributes"])
        problems += _left_alone(spared, safety)
        done = self._restored(target, mode, safety, events[-1].seq)
        return msgspec.structs.replace(done, files=len(steps), problems=problems)

    def _begin(
        self, workspace: Workspace, choose: Choose, mode: str, origin: Origin | None
    ) -> tuple[Checkpoint, Target, list[Step]]:
        """Take the safety checkpoint and note that a restore is under way."""
        chosen: list[Target] = []
        started = self._engine.clock.monotonic()
        bundle = self._engine.bundle()
        captured = workspace.capture(bundle)
        try:
            foreseen = choose(self._writer.document())
            steps = self._planned(workspace, foreseen, captured.tree, bundle, mode)
        except BaseException:
            workspace.reset()
            raise

        def plan(work: Work) -> None:
            target = choose(work.document)
            self._checkpointer.add(work, _safety(target, mode), captured, started)
            before = origin or Origin(captured.tree, work.seq)
            work.add((RESTORE_BEGUN, _begun(target, mode, before, workspace.root)))
            chosen[:] = [target]

        events = self._checkpointer.commit(self._writer, plan, bundle)
        target = chosen[0]
        if (target.tree, target.paths) != (foreseen.tree, foreseen.paths):
            steps = workspace.steps(captured.tree, _tree(target), target.paths)
        return read_checkpoint(self._engine, events[0]), target, steps

    def _planned(
        self, workspace: Workspace, target: Target, present: Digest, bundle: Bundle, mode: str
    ) -> list[Step]:
        """Return the steps; raise what would else come up when files are touched already."""
        self.check(target, strict=mode == "restore")
        return workspace.steps(present, _tree(target), target.paths, bundle)

    def _left_out(self, target: Target) -> set[str]:
        """Return what the checkpoint of a target's files does not cover."""
        if target.held is None:
            return set()
        with self._engine.read() as view:
            number = (view.find(target.point.session) or self._record).number
            return left_out(read_checkpoint(self._engine, event_at(view, number, target.held)))

    def _restored(self, target: Target, mode: str, safety: Checkpoint, seq: int) -> Restored:
        only = None if target.only is None else tuple(target.only)
        files = () if target.tree is None else _shown_paths(target.paths)
        return Restored(mode, target.point, only, safety, seq, workspace=files)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Be the only one who restores files of this session; a dead process holds no lock."""
        if self._engine.directory is None:
            yield
            return
        file = self._engine.directory / "tmp" / f"restore-{self._record.number}"
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RestoreBusy(
                    f"Another process is restoring files of session {self._record.name!r}."
                ) from error
            try:
                yield
            finally:
                # A process forked off meanwhile shares the lock; closing alone would leave it.
                fcntl.flock(handle, fcntl.LOCK_UN)
        finally:
            os.close(handle)


def _tree(target: Target) -> Digest:
    assert target.tree is not None  # noqa: S101 -- chosen with files, or we would not be here
    return target.tree


def _safety(target: Target, mode: str) -> Request:
    note = f"before {mode} to #{target.point.seq} of {target.point.session}"
    return Request("pre_operation", note, safety=True)


def left_out(checkpoint: Checkpoint) -> set[str]:
    """Return the paths that a checkpoint does not cover."""
    return {left.path for left in checkpoint.coverage.left_out} if checkpoint.coverage else set()


def _left_alone(spared: list[Step], safety: Checkpoint) -> tuple[Problem, ...]:
    """Return what could not be brought back because something that no checkpoint holds is there."""
    rules = {left.path: left.rule for left in safety.coverage.left_out} if safety.coverage else {}
    wanted = [step.path for step in spared if step.after is not None]
    places = {place for path in wanted if (place := left_out_above(path, rules)) is not None}
    return tuple(
        Problem("file", place, f"it is left alone, no checkpoint holds it: {rules[place]}")
        for place in sorted(places)
    )


def _begun(target: Target, mode: str, before: Origin, root: OsPath) -> dict[str, Any]:
    return {
        "mode": mode,
        "session": target.point.session,
        "seq": target.point.seq,
        "only": None if target.only is None else [list(path) for path in target.only],
        "tree": target.tree,
        "paths": _plain_paths(target.paths),
        "held": target.held,
        "before": before.tree,
        "safety": before.safety,
        "root": to_name(os.fsencode(root)),
    }


def _plain_paths(paths: Sequence[TreePath] | None) -> list[list[str]] | None:
    return None if paths is None else [list(path) for path in paths]


def _touched(paths: Sequence[TreePath] | None, steps: Sequence[Step]) -> list[list[str]] | None:
    """Return what to look at to take a restore back: directories made on the way go, too."""
    if paths is None:
        return None
    made = {s.path for s in steps if s.before is None and isinstance(s.after, Directory)}
    lengths = [range(1, len(path) + 1) for path in paths]
    return [
        list(next((path[:n] for n in numbers if path[:n] in made), path))
        for path, numbers in zip(paths, lengths, strict=True)
    ]


def _shown_paths(paths: Sequence[TreePath] | None) -> tuple[str, ...] | None:
    return None if paths is None else tuple(shown(path) for path in paths)


def _problems(failures: list[Failure], wrong: list[TreePath]) -> tuple[Problem, ...]:
    named = dict(failures)
    for path in wrong:
        named.setdefault(path, "it is not what the checkpoint says")
    return tuple(Problem("file", shown(path), reason) for path, reason in sorted(named.items()))
