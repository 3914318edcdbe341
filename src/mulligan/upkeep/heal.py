"""The second half of a repair: heal what can be made again, and name what cannot.

The index leads to intact objects alone by now. What events, keyframes and trees refer to beyond
that is lost, unless it can be made again: keyframes by replay, files from a workspace that still
has them. Then every checkpoint that lacks something is marked, with the paths that it lacks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from mulligan import codec
from mulligan.document.document import settle_root
from mulligan.document.fold import RESTORE_BEGUN, RESTORED, new_event
from mulligan.document.history import advance, document_at, from_keyframe
from mulligan.document.nodes import references
from mulligan.engine import Engine, PendingObjects
from mulligan.errors import DamageError, MulliganError, StateError
from mulligan.failpoints import Failpoint
from mulligan.journal.chain import LOST as LOST_EVENT
from mulligan.journal.protocol import View
from mulligan.model import ID_SIZE, Digest, Event, ObjectKind, SessionRecord
from mulligan.session.environment import EnvironmentReader
from mulligan.timeline.checkpoints import environment_value, event_at
from mulligan.timeline.losses import (
    MAX_PATHS,
    WHOLE,
    Loss,
    losses_change,
    read_losses,
    read_lost_objects,
)
from mulligan.timeline.lost_objects import LostFile, LostInState, LostInTrees
from mulligan.timeline.references import event_references
from mulligan.workspace.beneath import Beneath
from mulligan.workspace.capture.file_copy import FileCopies
from mulligan.workspace.capture.file_reader import TooLarge, Unreadable, read_leaf
from mulligan.workspace.entries import from_name, shown

Progress = Callable[[str], None]

Recapture = Callable[[str], bool]
"""Captures a directory again, to have its objects; returns whether it could."""

ACTOR = "upkeep"


class DamagedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that lost something."""

    session: str
    seq: int
    id: str
    label: str | None
    loss: Loss


class Healed(msgspec.Struct, frozen=True):
    """What was made again, in words, and the checkpoints that still lack something.

    ``current`` are the paths that the newest states lack, by session.
    """

    healed: tuple[str, ...]
    damaged: tuple[DamagedCheckpoint, ...]
    current: dict[str, list[str]]


def heal(
    engine: Engine,
    environment: EnvironmentReader,
    recapture: Recapture,
    *,
    progress: Progress = lambda _: None,
) -> Healed:
    """Make lost objects again where that is possible, and mark checkpoints that lack some.

    The caller holds the upkeep lock.
    """
    found = _find(engine, progress)
    healed: list[str] = []
    if found:
        healed = _Healing(engine, environment, found).run()
        for root in sorted(found.roots):
            # A directory's record has everything in it, so only a whole capture can make it again.
            if recapture(root):
                healed.append(f"directories: captured again from {root}")
        if healed:
            engine.failpoint(Failpoint.REPAIR_HEALED)
            found = _find(engine, progress)
    _mark(engine, found)
    return Healed(tuple(healed), tuple(found.checkpoints.values()), found.current)


class _Losses:
    """What the checkpoints of all sessions lost."""

    def __init__(self) -> None:
        self.by_session: dict[int, dict[int, Loss]] = {}
        self.checkpoints: dict[tuple[int, int], DamagedCheckpoint] = {}
        self.files: dict[tuple[str, Digest], LostFile] = {}
        self.roots: set[str] = set()
        self.keyframes: list[tuple[int, int, Digest]] = []
        self.environment = False
        self.objects: set[Digest] = set()
        self.current: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return any(self.by_session.values()) or bool(self.keyframes or self.objects)


def _find(engine: Engine, progress: Progress) -> _Losses:
    found = _Losses()
    trees, state = LostInTrees(engine), LostInState(engine)
    with engine.pin(), engine.read() as view:
        for record in view.sessions():
            progress(f"session {record.name}")
            _Finder(engine, view, record, trees, state, found).run()
    found.objects = trees.missing | state.missing
    return found


class _Finder:
    """Finds what the checkpoints on one timeline lost."""

    def __init__(
        self,
        engine: Engine,
        view: View,
        record: SessionRecord,
        trees: LostInTrees,
        state: LostInState,
        found: _Losses,
    ) -> None:
        self._engine = engine
        self._view = view
        self._record = record
        self._number = record.number
        self._trees = trees
        self._state = state
        self._found = found
        self._base = record.origin.seq if record.origin else 0

    def run(self) -> None:
        head = self._view.head(self._number).seq
        gaps = self._gaps(head)
        self._check_keyframes(head)
        is_state_lost = self._has_lost_values(head)
        if is_state_lost and (paths := self._lost_state(head)):
            self._found.current[self._record.name] = paths
        losses: dict[int, Loss] = {}
        for seq, _ in self._view.checkpoints(self._number, self._base + 1, head):
            event = event_at(self._view, self._number, seq)
            loss = self._loss(event, gaps, is_state_lost)
            if loss is not None:
                losses[seq] = loss
        self._found.by_session[self._number] = losses
        self._find_nearest(losses, head)

    def _find_nearest(self, losses: dict[int, Loss], head: int) -> None:
        """Note the damaged checkpoints, each with the nearest one that is intact."""
        lost = self._lost_seqs()
        places = self._view.checkpoints(self._number, 1, head)
        intact = [place for place in places if place[0] not in lost]
        for seq, loss in losses.items():
            nearest = _nearest(intact, seq)
            losses[seq] = msgspec.structs.replace(loss, nearest=nearest and nearest[1])
            event = event_at(self._view, self._number, seq)
            identity, label = event.hash[:ID_SIZE].hex(), event.payload.get("label")
            made = DamagedCheckpoint(self._record.name, seq, identity, label, losses[seq])
            self._found.checkpoints[self._number, seq] = made

    def _lost_seqs(self) -> set[int]:
        """Return the seqs of damaged checkpoints on the timeline; ancestors were looked at."""
        lost, record = set(self._found.by_session[self._number]), self._record
        while record.origin is not None:
            base, record = record.origin.seq, self._view.session(record.origin.session)
            lost |= {seq for seq in self._found.by_session.get(record.number, ()) if seq <= base}
        return lost

    def _gaps(self, head: int) -> list[tuple[int, int, int]]:
        """Return the stretches of lost events: first, last, and until where the state is unsure."""
        gaps: list[tuple[int, int, int]] = []
        for event in self._view.remaining(self._number, 1, head):
            if event.kind != LOST_EVENT:
                continue
            if gaps and gaps[-1][1] == event.seq - 1:
                gaps[-1] = (gaps[-1][0], event.seq, gaps[-1][2])
            else:
                gaps.append((event.seq, event.seq, self._next_keyframe(event.seq, head)))
        return gaps

    def _next_keyframe(self, seq: int, head: int) -> int:
        """Return the seq before the next keyframe, from which on the state is exact again."""
        at, found = head, head
        while (keyframe := self._view.keyframe(self._number, at)) is not None:
            if keyframe[0] <= seq:
                break
            found, at = keyframe[0] - 1, keyframe[0] - 1
        return found

    def _check_keyframes(self, head: int) -> None:
        at = head
        while (keyframe := self._view.keyframe(self._number, at)) is not None:
            seq, digest = keyframe
            if seq <= self._base:
                break
            if self._state.lost_below(digest):
                self._found.keyframes.append((self._number, seq, digest))
            at = seq - 1

    def _has_lost_values(self, head: int) -> bool:
        """Whether an event or keyframe on the timeline refers to a value that is lost."""
        before = len(self._state.missing)
        for event in self._view.remaining(self._number, 1, head):
            for digest in references(event.payload):
                self._state.lost_below(digest)
            for tree in _restored_trees(event):
                self._trees.lost_in(tree)
        return before > 0 or bool(self._state.missing)

    def _loss(
        self, event: Event, gaps: list[tuple[int, int, int]], is_state_lost: bool
    ) -> Loss | None:
        files = self._lost_files(event)
        state = self._lost_state(event.seq) if is_state_lost else []
        unsure = [(first, last) for first, last, until in gaps if first <= event.seq <= until]
        record = self._lost_record(event)
        if not (files or state or unsure or record):
            return None
        return Loss(
            files=files[:MAX_PATHS],
            state=state[:MAX_PATHS],
            events=[unsure[0][0], unsure[-1][1]] if unsure else None,
            record=record,
            file_count=len(files),
            state_count=len(state),
        )

    def _lost_files(self, event: Event) -> list[str]:
        tree = event.payload.get("workspace")
        if not tree:
            return []
        lost = self._trees.lost_in(Digest(tree))
        coverage = event.payload.get("coverage")
        root = coverage.get("root") if isinstance(coverage, dict) else None
        for path, file in lost if isinstance(root, str) else ():
            if file is not None:
                self._found.files[f"{root}\0{'/'.join(path)}", file.chunks[0]] = file
            else:
                self._found.roots.add(str(root))
        return [shown(path) or WHOLE for path, _ in lost]

    def _lost_state(self, seq: int) -> list[str]:
        try:
            document = document_at(self._view, self._number, seq, self._engine.load)
            return self._state.lost_paths(document.root)
        except (MulliganError, KeyError, TypeError):
            return [WHOLE]

    def _lost_record(self, event: Event) -> list[str]:
        """Return the names of the parts of a checkpoint's own record that are lost."""
        named = {
            "environment": event.payload["environment"],
            "note": event.payload["note"],
            "list of paths left out": event.payload.get("coverage"),
            "data": event.payload.get("data"),
        }
        lost = [n for n, value in named.items() if any(map(self._is_lost, references(value)))]
        self._found.environment |= "environment" in lost
        return lost

    def _is_lost(self, digest: Digest) -> bool:
        return bool(self._state.lost_below(digest))


def _nearest(places: list[tuple[int, str]], seq: int) -> tuple[int, str] | None:
    return min(places, key=lambda place: abs(place[0] - seq), default=None)


class _Healing:
    """Makes lost objects again."""

    def __init__(self, engine: Engine, environment: EnvironmentReader, found: _Losses) -> None:
        self._engine = engine
        self._environment = environment
        self._found = found

    def run(self) -> list[str]:
        healed: list[str] = []
        for number, seq, digest in sorted(self._found.keyframes):
            if self._committed(partial(self._replay, number, seq, digest)):
                healed.append(f"keyframe #{seq}: computed again from the events")
        if self._found.environment and self._committed(self._put_environment):
            healed.append("the environment of checkpoints: it is still the same")
        for (where, _), file in self._found.files.items():
            root, _, path = where.partition("\0")
            if self._committed(partial(self._read_again, Path(root), path, file)):
                healed.append(f"file {shown(tuple(path.split('/')))}: read again from {root}")
        return healed

    def _committed(self, put: Callable[[PendingObjects], bool]) -> bool:
        """Put objects and make them part of the store; return whether there were any."""
        with self._engine.pin():
            bundle = self._engine.bundle()
            try:
                if not put(bundle):
                    return False
            except (DamageError, StateError, OSError, KeyError, TypeError):
                return False  # it cannot be made again
            with self._engine.write(bundle):
                return True

    def _replay(self, number: int, seq: int, digest: Digest, bundle: PendingObjects) -> bool:
        with self._engine.read() as view:
            before = view.keyframe(number, seq - 1)
            if before is None:
                document = document_at(view, number, seq - 1, self._engine.load)
                document = advance(view, number, document, seq - 1, seq)
            else:
                start = from_keyframe(before[1], self._engine.load)
                document = advance(view, number, start, before[0], seq)
        found = settle_root(document.root, partial(bundle.put, ObjectKind.VALUE))
        return found == digest

    def _put_environment(self, bundle: PendingObjects) -> bool:
        now = environment_value(self._environment.capture())
        digest = settle_root(now, partial(bundle.put, ObjectKind.VALUE))
        return not self._engine.objects.has(digest)

    def _read_again(self, root: Path, path: str, file: LostFile, bundle: PendingObjects) -> bool:
        """Read a file of the workspace; return whether it has what is lost."""
        if not root.is_dir():
            return False
        wanted = _Wanted(bundle, set(file.chunks))
        *above, name = [from_name(part) for part in path.split("/")]
        with Beneath(os.fsencode(root)) as directories, suppress(Unreadable, TooLarge):
            copies = FileCopies(None, self._engine.clock)
            handle = directories.directory(b"/".join(above))
            read_leaf(handle, name, wanted, file.size, copies)
        return wanted.found > 0


class _Wanted:
    """Takes only the objects that are lost; the rest of a file may have changed."""

    def __init__(self, bundle: PendingObjects, digests: set[Digest]) -> None:
        self._bundle = bundle
        self._digests = digests
        self.found = 0

    def put(self, kind: int, data: bytes) -> Digest:
        digest = codec.digest(kind, data)
        if digest in self._digests:
            self.found += 1
            self._bundle.put(kind, data)
        return digest


def _restored_trees(event: Event) -> Iterator[Digest]:
    """Yield the trees that a restore names, which undo may need."""
    if event.kind in (RESTORED, RESTORE_BEGUN):
        yield from set(event_references(event)) - set(references(event.payload))


def _mark(engine: Engine, found: _Losses) -> None:
    """Record what the checkpoints lost, in the session of each timeline that has them."""
    for number, losses in found.by_session.items():
        with engine.read() as view:
            head = view.head(number).seq
            try:
                document = document_at(view, number, head, engine.load)
                before, objects = read_losses(document), read_lost_objects(document)
            except MulliganError:
                before, objects = {}, set()
        if losses == before and found.objects == objects:
            continue
        with engine.pin():
            bundle = engine.bundle()
            put = partial(bundle.put, ObjectKind.VALUE)
            made = new_event(losses_change(losses, before, found.objects), put)
            with engine.write(bundle, session=number) as txn:
                now = engine.clock.now()
                txn.append(number, [made], actor=ACTOR, epoch=0, time=now, fenced=False)
        engine.failpoint(Failpoint.REPAIR_MARKED)
