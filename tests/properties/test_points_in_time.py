"""Files and state of any point are those that were there at that moment, whatever came since.

Random histories of edits, checkpoints, restores of all or parts of it, undo, redo, interrupted
restores and forks are played beside a model that notes, for every event, the state after it and
the files as of the last look at them: a checkpoint with files, or the end of a restore of files.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import given, note
from hypothesis import strategies as st

from mulligan import Session, Store
from mulligan.errors import NothingToUndo, PathNotFound, UnknownPoint
from mulligan.failpoints import Failpoint
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store

FILES = st.sampled_from(["a", "b", "d/a", "d/e/b"])
PARTS = st.sampled_from(
    [None, None, None, ("workspace",), ("memory",), ("a",), ("d", "memory"), ("b",)]
)
WHERE = st.integers(0, 1_000)
INTERRUPTED = st.sampled_from([Failpoint.RESTORE_WRITTEN, Failpoint.RESTORE_DELETED])

EDIT = st.tuples(st.just("write"), FILES, st.integers(0, 3))
CHECKPOINT = st.tuples(st.just("checkpoint"), st.booleans())
RESTORE = st.tuples(st.just("restore"), WHERE, PARTS)
OTHER = st.one_of(
    st.tuples(st.just("delete"), FILES),
    st.tuples(st.just("set"), st.integers(0, 9)),
    st.tuples(st.just("restore state"), WHERE),
    st.tuples(st.just("interrupt"), WHERE, INTERRUPTED, st.booleans(), st.booleans()),
    st.tuples(st.just("undo")),
    st.tuples(st.just("redo")),
    st.tuples(st.just("fork"), WHERE),
)
STEPS = st.tuples(st.integers(0, 2), EDIT, CHECKPOINT | EDIT, EDIT | OTHER, RESTORE | OTHER)
"""A session, and what is done to it: enough of everything that restores have something to do."""
SCRIPTS = st.lists(STEPS, min_size=1, max_size=6)

Content = dict[str, str]


class Moment(NamedTuple):
    """What was there after an event; files are None before anything looked at them."""

    state: Any
    files: Content | None


class Interrupted(Exception):
    """Raised in the middle of a restore."""


class Hook:
    """Interrupts the next restore where it is told to."""

    def __init__(self) -> None:
        self.point: Failpoint | None = None

    def __call__(self, reached: Failpoint) -> None:
        if reached is self.point:
            self.point = None
            raise Interrupted


class Track:
    """A session in a directory of its own, and what the model knows of each of its events."""

    def __init__(self, store: Store, hook: Hook, session: Session, work: Path) -> None:
        self.hook = hook
        self.session = session
        self.work = work
        self.stateless = store.session(session.name)  # writes without files
        self.past: list[Moment] = []
        self.given: list[tuple[str, int]] = []  # labels; a later one moves

    def __len__(self) -> int:
        return len(self.past)

    def play(self, action: str, *rest: Any) -> None:
        before, state = content(self.work), self.session.state.get("")
        with suppress(NothingToUndo, PathNotFound):
            getattr(self, f"do_{action.replace(' ', '_')}")(*rest)
        self.note_events(before, state)

    def note_events(self, before: Content, state: Any) -> None:
        """Give every new event its moment."""
        files = self.past[-1].files if self.past else None
        for event in self.session.events(since=len(self.past) or None):
            if event.kind == "checkpoint.created" and "workspace" in event.payload:
                files = before
            elif event.kind == "restore.applied" and "after" in event.payload.get("files", {}):
                files = content(self.work)
            if event.kind in ("restore.applied", "state.set"):
                state = self.session.state.get("")
            self.past.append(Moment(state, files))

    def seq(self, where: int) -> int:
        return where % len(self.past) + 1

    def do_write(self, path: str, value: int) -> None:
        file = self.work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{path} {value}")

    def do_delete(self, path: str) -> None:
        (self.work / path).unlink(missing_ok=True)

    def do_set(self, value: int) -> None:
        self.session.state.set("memory/x", value)

    def do_checkpoint(self, files: bool) -> None:
        label = f"label {len(self.past) % 3}"  # some move
        taken = (self.session if files else self.stateless).checkpoint(label=label)
        self.given.append((label, taken.seq))

    def do_restore(self, where: int, parts: tuple[str, ...] | None) -> None:
        seq = self.seq(where)
        wanted = self.past[seq - 1]
        try:
            self.session.restore(seq, parts)
        except UnknownPoint:
            assert wanted.files is None
            return
        if parts in (None, ("workspace",)) and wanted.files is not None:
            assert content(self.work) == wanted.files
        if parts is None:
            assert self.session.state.get("") == wanted.state

    def do_restore_state(self, where: int) -> None:
        self.stateless.restore(self.seq(where))

    def do_interrupt(self, where: int, point: Failpoint, writes: bool, ends: bool) -> None:
        """Stop a restore half way, perhaps write something, then finish or abandon it."""
        self.hook.point = point
        before, state = content(self.work), self.session.state.get("")
        with suppress(Interrupted):
            self.session.restore(self.seq(where))
        self.hook.point = None
        self.note_events(before, state)
        if self.session.files.pending is None:
            return
        if writes:
            self.play("set", where)
        before, state = content(self.work), self.session.state.get("")
        if ends:
            self.session.files.recover()
        else:
            self.session.files.abandon()
        self.note_events(before, state)

    def do_undo(self) -> None:
        self.session.undo()

    def do_redo(self) -> None:
        self.session.redo()

    def check(self, scratch: Path) -> None:
        events = list(self.session.events())
        assert len(events) == len(self.past)
        for event, moment in zip(events, self.past, strict=True):
            self.check_point(event.seq, moment, scratch)
        for event in {event.time: event for event in events}.values():  # the last of each time
            self.check_point(event.time, self.past[event.seq - 1], scratch)
        labels = dict(self.given)
        assert {label: at.seq for label, at in self.session.checkpoints.labels().items()} == labels
        for label, seq in labels.items():
            self.check_point(label, self.past[seq - 1], scratch)
        for seq in range(2, len(events) + 1):
            self.check_diff(seq - 1, seq)
            self.check_diff(seq, 1)

    def check_point(self, point: Any, moment: Moment, scratch: Path) -> None:
        assert self.session.state.at(point).get() == moment.state, point
        assert copied(self.session, point, scratch) == moment.files, point

    def check_diff(self, one: int, other: int) -> None:
        before, after = self.past[one - 1].files, self.past[other - 1].files
        if before is None or after is None:
            return
        found = self.session.diff(one, other).files
        changed = {c.path for c in found if c.kind == "file" and c.change in ("added", "changed")}
        moved = {c.path for c in found if c.kind == "file" and c.change == "renamed"}
        assert changed | moved == {p for p, text in after.items() if before.get(p) != text}


def content(work: Path) -> Content:
    return {
        str(path.relative_to(work)): path.read_text() for path in work.rglob("*") if path.is_file()
    }


def copied(session: Session, point: Any, scratch: Path) -> Content | None:
    """Return the files of a point as ``restore --to`` writes them."""
    target = scratch / "copy"
    try:
        assert session.files.copy(point, target) == []
    except UnknownPoint:
        assert session.internal.files_at(point) is None
        return None
    try:
        return content(target)
    finally:
        shutil.rmtree(target)


@contextmanager
def scratch() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="mulligan-property-"))
    try:
        yield place
    finally:
        shutil.rmtree(place)


def fork(store: Store, tracks: list[Track], parent: Track, where: int, place: Path) -> None:
    """Fork with files of its own, where the point has any."""
    seq = parent.seq(where)
    moment = parent.past[seq - 1]
    if moment.files is None or len(tracks) == 3:
        return
    work = place / f"work {len(tracks)}"
    made = parent.session.fork(seq, workspace=work)
    assert content(work) == moment.files
    track = Track(store, parent.hook, made, work)
    track.past = parent.past[:seq]
    track.given = [(label, at) for label, at in parent.given if at <= seq]
    track.note_events(moment.files, moment.state)
    tracks.append(track)


@contextmanager
def played(script: list[Any]) -> Iterator[tuple[Store, list[Track], Path]]:
    """Play a script in a new store; yields the store, its sessions, and where their files are."""
    hook = Hook()
    clock = FakeClock(tick=1.0)
    with scratch() as place, open_store("memory:", clock=clock, failpoint=hook) as store:
        work = place / "work 0"
        work.mkdir()
        first = Track(store, hook, store.session("run", workspace=work), work)
        first.note_events({}, {})
        tracks = [first]
        for which, *actions in script:
            track = tracks[which % len(tracks)]
            for action in actions:
                note(f"{track.session.name} #{len(track)}: {action}")
                if action[0] == "fork":
                    fork(store, tracks, track, action[1], place)
                else:
                    track.play(*action)
        yield store, tracks, place


@given(SCRIPTS)
def test_files_and_state_of_any_point_are_those_of_that_moment(script: list[Any]) -> None:
    with played(script) as (store, tracks, place):
        for track in tracks:
            note(f"{track.session.name}: {[e.kind for e in track.session.events()]}")
            track.check(place)
        assert store.verify().ok
