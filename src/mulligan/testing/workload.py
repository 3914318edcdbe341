"""A mixed workload that reports what it is about to do and what it has done.

It runs in a child process that will be killed. Before each call it writes an *intent* line, and
after the call has returned an *acknowledgement*. Everything acknowledged must be found in the store
afterwards, and the last intent must have happened completely or not at all. The expected state
comes from a plain dictionary that this module keeps, never from the store.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
from collections.abc import Callable
from typing import Any

import msgspec

from mulligan.session import Session
from mulligan.store import Store

COMPONENTS = ("conversation", "memory", "queue", "team", "files")
MAX_SESSIONS = 6
MAX_POINTS = 12

CHECKPOINTED_BATCH = "checkpointed-batch"
"""The call that writes state and a checkpoint of it in one transaction."""

State = dict[str, Any]


class Intent(msgspec.Struct, frozen=True, tag="intent"):
    """What the next call will do to one session: the state after it, if it completes."""

    call: str
    session: str
    state: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """What a completed call did: the newest event of the session, and the state there."""

    call: str
    session: str
    seq: int
    hash: str
    state: str
    checkpoint: str | None = None
    label: str | None = None
    key: str | None = None


Line = Intent | Done
Report = Callable[[Line], None]


def fingerprint(state: State) -> str:
    """Return a digest of a plain value, computed independently of the code under test."""
    text = json.dumps(state, sort_keys=True, default=lambda raw: {"bytes": raw.hex()})
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def report_to_pipe(fd: int) -> Report:
    """Return a function that reports a line with one atomic write to a pipe."""

    def report(line: Line) -> None:
        # A pipe write of this size is atomic: a killed child leaves whole lines only.
        os.write(fd, msgspec.json.encode(line) + b"\n")

    return report


class _Walk:
    """A restore that can be undone: the state just before it, and the affected parts."""

    def __init__(self, before: State, only: list[str] | None) -> None:
        self.before = before
        self.only = only


class _Track:
    """One session with its expected state."""

    def __init__(self, session: Session, state: State) -> None:
        self.session = session
        self.state = state
        self.points: list[tuple[int, State]] = []
        self.undo: list[_Walk] = []
        self.redo: list[_Walk] = []


class _Rollback(Exception):
    """Raised inside a batch to abort it."""


class Workload:
    """Random calls on the sessions whose names start with a prefix."""

    def __init__(self, store: Store, rng: random.Random, report: Report, prefix: str) -> None:
        self._store = store
        self._rng = rng
        self._report = report
        self._prefix = prefix
        self._tracks = [
            _Track(session, session.state.get(""))
            for session in store.sessions()
            if session.name.startswith(prefix)
        ]
        self._calls: dict[Callable[[_Track], None], int] = {
            self._set_small: 6,
            self._set_large: 3,
            self._set_huge: 1,
            self._append: 6,
            self._extend: 3,
            self._delete: 2,
            self._put: 3,
            self._batch: 4,
            self._failing_batch: 1,
            self._checkpointed_batch: 2,
            self._checkpoint: 4,
            self._restore: 2,
            self._undo: 2,
            self._redo: 1,
            self._fork: 1,
        }

    def run(self, calls: int) -> None:
        """Make this many calls."""
        if not self._tracks:
            self._begin()
        for _ in range(calls):
            [call] = self._rng.choices(list(self._calls), list(self._calls.values()))
            call(self._rng.choice(self._tracks))

    # --- reporting -----------------------------------------------------------------------------

    def _begin(self) -> None:
        name = f"{self._prefix}-0"
        self._report(Intent("begin", name, fingerprint({})))
        track = _Track(self._store.session(name), {})
        self._tracks.append(track)
        self._acknowledge("begin", track)

    def _change(self, call: str, track: _Track, after: State, act: Callable[[], object]) -> None:
        self._report(Intent(call, track.session.name, fingerprint(after)))
        act()
        track.state = after
        self._acknowledge(call, track)

    def _acknowledge(self, call: str, track: _Track, **more: str | None) -> None:
        seq = track.session.head.seq
        [event] = track.session.events(since=seq - 1) if seq > 1 else track.session.events()
        done = Done(
            call, track.session.name, seq, event.hash.hex(), fingerprint(track.state), **more
        )
        self._report(done)
        if self._rng.random() < 0.3:
            track.points = [*track.points, (seq, track.state)][-MAX_POINTS:]

    # --- values ------------------------------------------------------------------------------

    def _component(self) -> str:
        return self._rng.choice(COMPONENTS)

    def _text(self, size: int) -> str:
        return self._rng.randbytes(size // 2).hex()

    def _value(self) -> Any:
        roll = self._rng.random()
        if roll < 0.3:
            return self._rng.randrange(-(10**6), 10**6)
        if roll < 0.6:
            return self._text(20)
        if roll < 0.8:
            return {f"k{n}": self._text(8) for n in range(self._rng.randrange(5))}
        return [self._rng.random() for _ in range(self._rng.randrange(5))]

    def _place(self, name: str, depth: int = 20) -> tuple[str, str]:
        return name, f"key-{self._rng.randrange(depth)}"

    # --- calls -------------------------------------------------------------------------------

    def _set_at(self, call: str, track: _Track, value: Any) -> None:
        name, key = self._place("memory")
        after = _with(track.state, name, {**track.state.get(name, {}), key: value})
        self._change(call, track, after, lambda: track.session.state.set((name, key), value))

    def _set_small(self, track: _Track) -> None:
        self._set_at("set", track, self._value())

    def _set_large(self, track: _Track) -> None:
        self._set_at("set-large", track, self._text(self._rng.randrange(5_000, 60_000)))

    def _set_huge(self, track: _Track) -> None:
        value = self._rng.randbytes(1_200_000)
        after = _with(track.state, "files", {"huge": value})
        act = lambda: track.session.state.set("files", {"huge": value})  # noqa: E731
        self._change("set-huge", track, after, act)

    def _append(self, track: _Track) -> None:
        value = {"role": "assistant", "content": self._text(self._rng.choice((40, 400, 8_000)))}
        after = _with(track.state, "conversation", [*track.state.get("conversation", []), value])
        act = lambda: track.session.state.append("conversation", value)  # noqa: E731
        self._change("append", track, after, act)

    def _extend(self, track: _Track) -> None:
        values = [self._value() for _ in range(self._rng.choice((0, 1, 5, 90)))]
        after = _with(track.state, "queue", [*track.state.get("queue", []), *values])
        act = lambda: track.session.state.extend("queue", values)  # noqa: E731
        self._change("extend", track, after, act)

    def _delete(self, track: _Track) -> None:
        if not track.state:
            return
        name = self._rng.choice(sorted(track.state))
        after = {key: value for key, value in track.state.items() if key != name}
        self._change("delete", track, after, lambda: track.session.state.delete(name))

    def _put(self, track: _Track) -> None:
        agents = copy.deepcopy(track.state.get("team", {}))
        for _ in range(self._rng.randrange(1, 6)):
            agents[f"agent-{self._rng.randrange(100)}"] = {"state": self._value()}
        if len(agents) > 3 and self._rng.random() < 0.5:
            del agents[self._rng.choice(sorted(agents))]
        after = _with(track.state, "team", agents)
        self._change("put", track, after, lambda: track.session.state.put("team", agents))

    def _batch(self, track: _Track) -> None:
        after = copy.deepcopy(track.state)
        writes = [
            (self._place("memory"), self._text(self._rng.choice((10, 6_000))))
            for _ in range(self._rng.randrange(2, 7))
        ]
        for (name, key), value in writes:
            after.setdefault(name, {})[key] = value

        def act() -> None:
            with track.session.batch():
                for place, value in writes:
                    track.session.state.set(place, value)

        self._change("batch", track, after, act)

    def _checkpointed_batch(self, track: _Track) -> None:
        place, value = self._place("memory"), self._text(self._rng.choice((10, 6_000)))
        after = copy.deepcopy(track.state)
        after.setdefault(place[0], {})[place[1]] = value
        self._report(Intent(CHECKPOINTED_BATCH, track.session.name, fingerprint(after)))
        with track.session.batch() as batch:
            track.session.state.set(place, value)
            batch.checkpoint("routine", data={"state": fingerprint(after)})
        track.state = after
        taken = batch.result
        self._acknowledge(CHECKPOINTED_BATCH, track, checkpoint=taken.id if taken else None)

    def _failing_batch(self, track: _Track) -> None:
        def act() -> None:
            try:
                with track.session.batch():
                    track.session.state.set(("memory", "lost"), self._text(9_000))
                    raise _Rollback
            except _Rollback:
                pass

        self._change("failing-batch", track, track.state, act)

    def _checkpoint(self, track: _Track) -> None:
        label = f"label-{self._rng.randrange(10**12)}" if self._rng.random() < 0.5 else None
        self._report(Intent("checkpoint", track.session.name, fingerprint(track.state)))
        key = f"key-{self._rng.randrange(10**12)}" if self._rng.random() < 0.5 else None
        made = track.session.checkpoint("routine", note=self._text(30), label=label, key=key)
        self._acknowledge("checkpoint", track, checkpoint=made.id, label=label, key=key)

    def _restore(self, track: _Track) -> None:
        if not track.points:
            return
        seq, target = self._rng.choice(track.points)
        known = sorted({*target, *track.state})
        only = [self._rng.choice(known)] if known and self._rng.random() < 0.5 else None
        walk = _Walk(track.state, only)
        after = _brought_back(track.state, target, only)
        self._change("restore", track, after, lambda: track.session.restore(seq, only))
        track.undo.append(walk)
        track.redo.clear()

    def _undo(self, track: _Track) -> None:
        self._walk("undo", track, track.undo, track.redo)

    def _redo(self, track: _Track) -> None:
        self._walk("redo", track, track.redo, track.undo)

    def _walk(self, mode: str, track: _Track, source: list[_Walk], target: list[_Walk]) -> None:
        if not source:
            return
        walk = source[-1]
        back = _Walk(track.state, walk.only)
        after = _brought_back(track.state, walk.before, walk.only)
        self._change(mode, track, after, getattr(track.session, mode))
        target.append(back)
        source.pop()

    def _fork(self, track: _Track) -> None:
        if len(self._tracks) >= MAX_SESSIONS or not track.points:
            return
        seq, state = self._rng.choice(track.points)
        name = f"{self._prefix}-{self._rng.randrange(10**9)}"
        self._report(Intent("fork", name, fingerprint(state)))
        forked = _Track(track.session.fork(seq, name), state)
        self._tracks.append(forked)
        self._acknowledge("fork", forked)


def _with(state: State, name: str, value: Any) -> State:
    return {**state, name: value}


def _brought_back(state: State, target: State, only: list[str] | None) -> State:
    if only is None:
        return target
    kept = {key: value for key, value in state.items() if key not in only}
    return kept | {key: target[key] for key in only if key in target}
