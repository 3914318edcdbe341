"""The session: one timeline of one agent or a team of agents."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from itertools import count
from pathlib import Path as OsPath
from typing import Any

import msgspec

from mulligan import codec
from mulligan.engine import Engine
from mulligan.errors import UnknownPoint, UnknownSession
from mulligan.journal.protocol import View
from mulligan.model import (
    Checkpoint,
    Digest,
    Event,
    Lease,
    Origin,
    Path,
    Plan,
    Point,
    Problem,
    Restored,
    SessionRecord,
)
from mulligan.session.checkpointer import Checkpointer, Request
from mulligan.session.files import Files
from mulligan.session.names import MAX_NAME, check_name
from mulligan.session.restorer import Restorer, Target
from mulligan.session.state import State
from mulligan.session.surroundings import Surroundings
from mulligan.session.writer import Writer
from mulligan.state.document import MISSING, Document, settle_root
from mulligan.state.events import FORKED, STATE, small_draft
from mulligan.state.history import document_at
from mulligan.state.values import PathLike, freeze, parse_path
from mulligan.timeline.checkpoints import (
    event_at,
    read_checkpoint,
    read_checkpoints,
)
from mulligan.timeline.diff import Diff, diff
from mulligan.timeline.points import PointLike, Points
from mulligan.timeline.record import changed_paths, checkpoint_record
from mulligan.workspace.plan import TreePath
from mulligan.workspace.workspace import Workspace

PAGE = 256
"""How many events are read within one snapshot."""

_POLL = (0.002, 0.05)

WORKSPACE = "workspace"
"""The part of a restore that stands for all files."""


class Session:
    """One run of one agent or a team: its state, its checkpoints, its past.

    Get one from ``store.session(name)``. Every process that opens a session sees what the
    others write, and may write itself; ``agent=`` makes this handle the only writer of that
    agent.
    """

    def __init__(
        self,
        engine: Engine,
        record: SessionRecord,
        actor: str,
        surroundings: Surroundings,
        workspace: Workspace | None = None,
    ) -> None:
        self._engine = engine
        self._record = record
        self._surroundings = surroundings
        self._workspace = workspace
        self._writer = Writer(engine, record, actor)
        self._checkpointer = Checkpointer(engine, surroundings, workspace)
        self._files = Files(engine, record, workspace)
        self._restorer = Restorer(engine, record, self._writer, self._checkpointer, workspace)
        self.state = State(self._writer)

    def __repr__(self) -> str:
        return f"<Session {self.name!r}>"

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
        """Under which name this handle writes."""
        return self._writer.actor

    @property
    def parent(self) -> Point | None:
        """Where this session was forked from, if it was."""
        origin = self._record.origin
        if origin is None:
            return None
        with self._engine.read() as view:
            return Point(view.session(origin.session).name, origin.seq)

    @property
    def head(self) -> Point:
        """The newest event's place."""
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

    def take(self, ttl: float, *, steal: bool = False) -> Lease:
        """Become the one writer of this agent; raises ``LeaseHeld`` while another one lives."""
        return self._writer.take_lease(ttl, steal=steal)

    def renew(self) -> None:
        """Extend the lease; raises ``StaleLease`` when another writer has taken it."""
        self._writer.renew_lease()

    def release(self) -> None:
        """Give the lease up, so that another writer need not wait for it to expire."""
        self._writer.release_lease()

    def batch(self) -> AbstractContextManager[None]:
        """Make one transaction of all state changes inside: all of them happen, or none."""
        return self._writer.batch()

    def checkpoint(
        self, kind: str = "manual", note: str | None = None, label: str | None = None
    ) -> Checkpoint:
        """Take a checkpoint of the newest state; it is durable when this returns.

        ``kind`` is ``routine``, ``pre_operation``, ``recovery``, ``manual`` or one of your own.
        """
        check_name(kind, "checkpoint kind")
        if label is not None:
            check_name(label, "label")
        if note is not None:
            note = freeze(note, ("note",))
        request = Request(kind, note, label)
        started = self._engine.clock.monotonic()
        bundle = self._engine.bundle()
        captured = self._checkpointer.capture(bundle)
        events = self._writer.commit(
            lambda work: self._checkpointer.add(work, request, captured, started), bundle
        )
        return read_checkpoint(self._engine, events[-1])

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints on this timeline, oldest first, those before a fork included."""
        with self._engine.read() as view:
            head = view.head(self._record.number)
            return read_checkpoints(self._engine, view, self._record.number, 1, head.seq)

    def find_checkpoint(self, point: PointLike) -> Checkpoint:
        """Return the checkpoint at or before a point."""
        with self._engine.read() as view:
            place = self._points(view).find(point)
            number = self._number(view, place.session)
            found = view.checkpoint_before(number, place.seq)
            if found is None:
                raise UnknownPoint(
                    f"There is no checkpoint at or before #{place.seq} of {place.session!r}."
                )
            return read_checkpoint(self._engine, event_at(view, number, found[0]))

    def point(self, point: PointLike) -> Point:
        """Return the place that a point names; see ``mulligan.timeline.points``."""
        with self._engine.read() as view:
            return self._points(view).find(point)

    def events(
        self, since: PointLike | None = None, until: PointLike | None = None, follow: bool = False
    ) -> Iterator[Event]:
        """Yield the events after ``since`` up to and including ``until``.

        With ``follow`` it waits for new ones, whoever writes them, and never ends by itself.
        """
        seq = 0 if since is None else self.point(since).seq
        last = None if until is None else self.point(until).seq
        pause = _POLL[0]
        while True:
            page = self._page(seq + 1, last)
            yield from page
            if page:
                seq, pause = page[-1].seq, _POLL[0]
                continue
            if not follow or (last is not None and seq >= last):
                return
            self._engine.clock.sleep(pause)
            pause = min(pause * 2, _POLL[1])

    def state_at(self, point: PointLike, path: PathLike = "", default: Any = None) -> Any:
        """Return the state as it was at a point, or one value of it; nothing is changed."""
        document = self._document_at(self.point(point))
        found = document.find((*STATE, *parse_path(path)))
        return default if found is MISSING else document.plain(found)

    def state_digest(self, point: PointLike) -> str:
        """Return the digest of the state at a point; equal states have equal digests."""
        state = self._document_at(self.point(point)).find(STATE)
        return settle_root(state, codec.value_digest).hex()

    def diff(
        self,
        before: PointLike,
        after: PointLike | None = None,
        only: Sequence[PathLike] | None = None,
    ) -> Diff:
        """Return what differs in state, conversation and files between two points.

        ``after`` defaults to the present. The points may lie in different sessions. ``only``
        names the parts to look at; a part that neither has is a ``PathNotFound``.
        """
        one = self.point(before)
        other = self.head if after is None else self.point(after)
        target = self._target(one, only)
        found = diff(one, other, target.document, self._document_at(other), target.only)
        if target.tree is None:
            return found
        changes = self._files.changes(target.tree, self._tree(other, after), target.paths)
        return msgspec.structs.replace(found, files=tuple(changes))

    def _tree(self, point: Point, given: PointLike | None) -> Digest | None:
        """Return the tree of a point, or that of the workspace now when none was given."""
        if given is None and (now := self._files.present()) is not None:
            return now.tree
        held = self._files.checkpoint_at(point)
        return held.workspace if held else None

    def record(self, point: PointLike) -> dict[str, Any]:
        """Return the checkpoint at or before a point as one document for recovery.

        Its fields are those of ``mulligan show --json``; see ``mulligan.timeline.record``.
        """
        checkpoint = self.find_checkpoint(point)
        with self._engine.read() as view:
            records = view.sessions()
        return checkpoint_record(
            checkpoint,
            self.state_at(checkpoint),
            digest=self.state_digest(checkpoint),
            changed=changed_paths(self.diff(checkpoint.parent or 1, checkpoint)),
            sessions=[made.name for made in records if made.created <= checkpoint.time],
        )

    def restore(self, point: PointLike, only: Sequence[PathLike] | None = None) -> Restored:
        """Bring the state of a point back, or the named parts of it.

        The present is kept in a safety checkpoint first, and history is never rewritten:
        the restore is a new event, which :meth:`undo` takes back.
        """
        place = self.point(point)
        target = self._target(place, only)
        return self._restorer.restore(lambda _: target, "restore")

    def plan(self, point: PointLike, only: Sequence[PathLike] | None = None) -> Plan:
        """Return what a restore of files would do, without doing it."""
        target = self._target(self.point(point), only)
        return self._files.plan(target.point, target.tree, target.paths)

    def read_file(self, point: PointLike, path: str) -> bytes:
        """Return the content of a file as it was at a point."""
        return self._files.read(self._files.tree_at(self.point(point)), path)

    def copy_files(
        self, point: PointLike, to: str | os.PathLike[str], only: Sequence[str] | None = None
    ) -> list[Problem]:
        """Write the files of a point into a new or empty directory; nothing else is touched.

        Returns what could not be written.
        """
        tree = self._files.tree_at(self.point(point))
        paths = None if only is None else [tuple(map(str, parse_path(part))) for part in only]
        return self._files.copy(tree, OsPath(to), paths)

    def undo(self) -> Restored:
        """Take the last restore back; repeat to go further."""
        return self._restorer.walk("undo")

    def redo(self) -> Restored:
        """Take the last undo back; repeat to go further."""
        return self._restorer.walk("redo")

    def recover(self) -> Restored | None:
        """Complete a restore of files that another process began and did not live to finish."""
        return self._restorer.finish()

    def fork(
        self,
        point: PointLike,
        name: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
    ) -> Session:
        """Make a new session that continues from a point and shares all storage with this one.

        With ``workspace`` the files of the point are written into that new or empty directory,
        which belongs to the new session alone.
        """
        if name is not None:
            check_name(name, "session name")
        files = None
        if workspace is not None:
            files = self._files.clone(self._files.tree_at(self.point(point)), OsPath(workspace))
        with self._engine.write() as txn:
            place = self._points(txn).find(point)
            parent = self._number(txn, place.session)
            now = self._engine.clock.now()
            chosen = name or _free_name(txn, place.session)
            record = txn.create(chosen, now, Origin(parent, place.seq))
            payload = {"session": place.session, "seq": place.seq, "name": chosen}
            made = small_draft(FORKED, payload)
            txn.append(record.number, [made], actor=self.actor, epoch=0, time=now)
        return Session(self._engine, record, self.actor, self._surroundings, files)

    def _page(self, first: int, last: int | None) -> list[Event]:
        with self._engine.read() as view:
            head = view.head(self._record.number).seq
            stop = min(head if last is None else last, head, first + PAGE - 1)
            events = list(view.events(self._record.number, first, stop))
        return [msgspec.structs.replace(e, payload=self._engine.plain(e.payload)) for e in events]

    def _points(self, view: View) -> Points:
        return Points(self._engine, view, self._record)

    def _number(self, view: View, name: str) -> int:
        record = view.find(name)
        if record is None:
            raise UnknownSession(f"There is no session {name!r}.")
        return record.number

    def _target(self, place: Point, only: Sequence[PathLike] | None) -> Target:
        """Return where a restore goes, with the files of the point if there are any."""
        document = self._document_at(place)
        held = self._files.checkpoint_at(place) if self._workspace is not None else None
        tree = held.workspace if held else None
        if only is None:
            return Target(place, document, None, tree)
        state, files = self._parts(only, document, tree)
        return Target(place, document, state, tree if files != [] else None, files)

    def _parts(
        self, only: Sequence[PathLike], document: Document, tree: Digest | None
    ) -> tuple[list[Path], list[TreePath] | None]:
        """Sort parts into state paths and files; files are None for the whole workspace.

        ``workspace`` is all files and ``workspace/PATH`` some; otherwise what the state has a
        component for is state, and what the tree has is a file.
        """
        state: list[Path] = []
        files: list[TreePath] = []
        whole = False
        components = {*document.entries(document.resolved(document.find(STATE)))}
        components |= {*self._writer.components()}
        for part in only:
            path = parse_path(part)
            if path == (WORKSPACE,):
                whole = True
            elif path[:1] == (WORKSPACE,):
                files.append(tuple(map(str, path[1:])))
            elif not path or path[0] in components or not self._has_file(tree, path):
                state.append(path)
            else:
                files.append(tuple(map(str, path)))
        return state, None if whole else files

    def _has_file(self, tree: Digest | None, path: Path) -> bool:
        if tree is None or self._workspace is None:
            return False
        return self._workspace.has(tree, tuple(map(str, path)))

    def _document_at(self, point: Point) -> Document:
        with self._engine.read() as view:
            number = self._number(view, point.session)
            return document_at(view, number, point.seq, self._engine.load)


def _free_name(view: View, parent: str) -> str:
    """Return a name for a fork that no session has."""
    stem = parent[: MAX_NAME - 12]
    return next(n for i in count(1) if view.find(n := f"{stem}-fork-{i}") is None)
