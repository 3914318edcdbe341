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
from typing import Any

import msgspec

from mulligan.engine import Engine
from mulligan.errors import RestoreBusy
from mulligan.model import Checkpoint, Digest, Path, Point, Problem, Restored, SessionRecord
from mulligan.session.checkpointer import Checkpointer, Request
from mulligan.session.writer import Work, Writer
from mulligan.state.document import MISSING, Document
from mulligan.state.events import PENDING, RESTORE_BEGUN
from mulligan.state.history import document_at
from mulligan.timeline.checkpoints import event_at, read_checkpoint
from mulligan.timeline.restore import last_walk, restore_change
from mulligan.workspace.apply import Failure
from mulligan.workspace.entries import shown
from mulligan.workspace.plan import TreePath
from mulligan.workspace.workspace import Workspace


class Target(msgspec.Struct, frozen=True):
    """Where a restore goes: the point, its document, its tree, and which parts of both.

    ``only`` and ``paths`` are None for everything; ``tree`` is None when files are no part of it.
    """

    point: Point
    document: Document
    only: list[Path] | None
    tree: Digest | None = None
    paths: list[TreePath] | None = None


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
        """Bring back what is chosen."""
        if self._workspace is None or choose(self._writer.document()).tree is None:
            return self._restore_state(choose, mode)
        with self._lock():
            return self._restore_files(self._workspace, choose, mode)

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
        """Complete a restore of files whose process died; None when there is none."""
        if self._workspace is None:
            return None
        pending = self._writer.document().find(PENDING)
        if pending is MISSING:
            return None
        payload = self._engine.plain(pending)
        point = Point(payload["session"], payload["seq"])
        files = {"before": payload["tree"], "only": payload["paths"]}
        with self._lock():
            target = self._target(point, payload["only"], files)
            return self._restore_files(self._workspace, lambda _: target, payload["mode"])

    def _target(self, point: Point, only: Any, files: Any) -> Target:
        """Return a target from what an event says of it."""
        parts = None if only is None else [tuple(path) for path in only]
        document = self._document_at(point)
        if files is None or self._workspace is None:
            return Target(point, document, parts)
        paths = None if files["only"] is None else [tuple(path) for path in files["only"]]
        return Target(point, document, parts, Digest(files["before"]), paths)

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
            work.add(restore_change(work.document, target.document, target.point, only, mode))
            chosen[:] = [target]

        events = self._writer.commit(plan)
        safety = read_checkpoint(self._engine, events[0])
        return self._restored(chosen[0], mode, safety, events[-1].seq)

    def _restore_files(self, workspace: Workspace, choose: Choose, mode: str) -> Restored:
        """Keep the present, bring the files back, then the state, and look at what came of it."""
        safety, target = self._begin(choose, mode)
        before = safety.workspace
        steps = workspace.steps(before, _tree(target), target.paths)
        failures = workspace.apply(steps, _tree(target))
        bundle = self._engine.bundle()
        after = workspace.capture(bundle)
        wrong = workspace.steps(after.tree, _tree(target), target.paths)
        files = {"before": before, "after": after.tree, "only": _plain_paths(target.paths)}

        def plan(work: Work) -> None:
            place, only = target.point, target.only
            work.add(restore_change(work.document, target.document, place, only, mode, files))

        events = self._writer.commit(plan, bundle)
        problems = _problems(failures, [step.path for step in wrong if step.action != "attributes"])
        done = self._restored(target, mode, safety, events[-1].seq)
        return msgspec.structs.replace(done, files=len(steps), problems=problems)

    def _begin(self, choose: Choose, mode: str) -> tuple[Checkpoint, Target]:
        """Take the safety checkpoint and note that a restore is under way."""
        chosen: list[Target] = []
        started = self._engine.clock.monotonic()
        bundle = self._engine.bundle()
        captured = self._checkpointer.capture(bundle)

        def plan(work: Work) -> None:
            target = choose(work.document)
            self._checkpointer.add(work, _safety(target, mode), captured, started)
            work.add((RESTORE_BEGUN, _begun(target, mode)))
            chosen[:] = [target]

        events = self._writer.commit(plan, bundle)
        return read_checkpoint(self._engine, events[0]), chosen[0]

    def _restored(self, target: Target, mode: str, safety: Checkpoint, seq: int) -> Restored:
        only = None if target.only is None else tuple(target.only)
        return Restored(mode, target.point, only, safety, seq)

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
            yield
        finally:
            os.close(handle)


def _tree(target: Target) -> Digest:
    assert target.tree is not None  # noqa: S101 -- chosen with files, or we would not be here
    return target.tree


def _safety(target: Target, mode: str) -> Request:
    note = f"before {mode} to #{target.point.seq} of {target.point.session}"
    return Request("pre_operation", note, safety=True)


def _begun(target: Target, mode: str) -> dict[str, Any]:
    return {
        "mode": mode,
        "session": target.point.session,
        "seq": target.point.seq,
        "only": None if target.only is None else [list(path) for path in target.only],
        "tree": target.tree,
        "paths": _plain_paths(target.paths),
    }


def _plain_paths(paths: Sequence[TreePath] | None) -> list[list[str]] | None:
    return None if paths is None else [list(path) for path in paths]


def _problems(failures: list[Failure], wrong: list[TreePath]) -> tuple[Problem, ...]:
    named = dict(failures)
    for path in wrong:
        named.setdefault(path, "it is not what the checkpoint says")
    return tuple(Problem("file", shown(path), reason) for path, reason in sorted(named.items()))
