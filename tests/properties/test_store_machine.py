"""The whole store against a plain dictionary: whatever is done in whatever order, they agree."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import mulligan
from mulligan import Session, Store
from mulligan.errors import Conflict, InvalidPath, NothingToUndo, PathNotFound, StateError
from mulligan.journal.chain import GENESIS
from mulligan.session.write import writer

State = dict[str, Any]
Path_ = tuple[str | int, ...]

KEYS = st.sampled_from(["a", "b", "conversation", "k1", "k70", ""])
PARTS = KEYS | st.integers(-2, 70)
PATHS = st.lists(KEYS, min_size=1, max_size=1).map(tuple) | st.lists(
    PARTS, min_size=1, max_size=4
).map(tuple)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.datetimes().map(lambda moment: moment.replace(fold=0))  # which hour, is not stored
)
EXAMPLES: dict[str, Any] = {
    "long text": "x" * 5_000,
    "many bytes": b"\x00" * 70_000,
    "long list": [f"item {n}" for n in range(200)],
    "wide dict": {f"k{n}": n for n in range(150)},
    "heavy dict": {f"k{n}": "v" * 90 for n in range(70)},
    "heavy list": [["y" * 3_000], ["z" * 3_000]],
}
LARGE = st.integers(0, len(EXAMPLES) - 1).map(lambda n: list(EXAMPLES.values())[n])
VALUES = st.recursive(
    SCALARS | LARGE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=6,
)
OPERATIONS = st.one_of(
    st.tuples(st.just("set"), PATHS, VALUES),
    st.tuples(st.just("put"), PATHS, VALUES),
    st.tuples(st.just("append"), PATHS, VALUES),
    st.tuples(st.just("extend"), PATHS, st.lists(VALUES, max_size=3)),
    st.tuples(st.just("delete"), PATHS, st.none()),
)


# --- the model: what each call does to a plain dictionary ------------------------------------


def strict(value: Any) -> Any:
    """Return a value in which what differs in type differs, as True and 1 and 1.0 do."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [strict(item) for item in value]
    return type(value), repr(value)


def position(part: str | int, length: int) -> int | None:
    try:
        index = int(part)
    except ValueError:
        return None
    index += length if index < 0 else 0
    return index if 0 <= index < length else None


def child(node: Any, part: str | int) -> tuple[bool, Any]:
    """Whether there is such a part, and what it is."""
    if isinstance(node, dict) and isinstance(part, str):
        return part in node, node.get(part)
    if isinstance(node, list) and (index := position(part, len(node))) is not None:
        return True, node[index]
    return False, None


def lookup(state: State, path: Path_) -> tuple[bool, Any]:
    found, node = True, state
    for part in path:
        found, node = child(node, part)
        if not found:
            break
    return found, node


def assign(node: Any, part: str | int, value: Any) -> None:
    if isinstance(node, dict) and isinstance(part, str):
        node[part] = value
    elif isinstance(node, list) and (index := position(part, len(node))) is not None:
        node[index] = value
    else:
        raise InvalidPath("model")


def set_(state: State, path: Path_, value: Any) -> None:
    node: Any = state
    for part in path[:-1]:
        found, below = child(node, part)
        if not found:
            below = {}
            assign(node, part, below)
        node = below
    assign(node, path[-1], copy.deepcopy(value))


def extend(state: State, path: Path_, values: list[Any]) -> None:
    found, present = lookup(state, path)
    if found and not isinstance(present, list):
        raise InvalidPath("model")
    set_(state, path, [*(present or []), *values])


def delete(state: State, path: Path_, nothing: None) -> None:
    found, _ = lookup(state, path)
    if not found:
        raise PathNotFound("model")
    _, parent = lookup(state, path[:-1])
    key = path[-1]
    if isinstance(parent, list):
        index = position(key, len(parent))
        assert index is not None
        del parent[index]
    else:
        del parent[key]


MODEL: dict[str, Callable[..., None]] = {
    "set": set_,
    "put": set_,
    "append": lambda state, path, value: extend(state, path, [value]),
    "extend": extend,
    "delete": delete,
}


def after(state: State, *operations: tuple[str, Path_, Any]) -> State | type[StateError]:
    """Return the state after the operations, or the error of the first that cannot be."""
    changed = copy.deepcopy(state)
    try:
        for name, path, value in operations:
            MODEL[name](changed, path, value)
    except StateError as error:
        return type(error)
    return changed


def perform(state: mulligan.State, name: str, path: Path_, value: Any) -> None:
    arguments = () if name == "delete" else (value,)
    getattr(state, name)(path, *arguments)


class OneBranch:
    """What the model knows of a session."""

    def __init__(self, name: str, state: State) -> None:
        self.name = name
        self.state = state
        self.points: dict[int, State] = {}
        self.labels: dict[str, int] = {}
        self.checkpoints: list[tuple[int, str]] = []
        self.undo: list[tuple[State, list[str] | None]] = []
        self.redo: list[tuple[State, list[str] | None]] = []


WAYS = ("batch", "checkpoint", "nested", "transaction", "both")
"""How several operations become one transaction."""


def perform_each(state: mulligan.State, operations: list[tuple[str, Path_, Any]]) -> None:
    """Perform operations, each of which may be refused."""
    for operation in operations:
        with suppress(StateError):
            perform(state, *operation)


class Fail(Exception):
    """Raised inside a batch to leave it."""


class StoreMachine(RuleBasedStateMachine):
    """Every rule acts on a random session through one of two handles on it."""

    persistent = True
    keyframe_every = 512

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory(prefix="mulligan-machine-")
        self._path = Path(self._directory.name) if self.persistent else "memory:"
        self._stores: list[Store] = []
        self._handles: dict[str, list[Session]] = {}
        self._branches: list[OneBranch] = []
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(writer, "KEYFRAME_EVERY", self.keyframe_every)
        self._open()

    def teardown(self) -> None:
        try:
            for branch in self._branches:
                self._check_history(branch)
            report = self._stores[0].verify()
            assert report.ok, report.problems
            assert report.sessions == len(self._branches)
        finally:
            self._patch.undo()
            for store in self._stores:
                store.close()
            self._directory.cleanup()

    def _open(self) -> None:
        # Two handles on one store in one process share what must be shared.
        first = mulligan.open(self._path)
        self._stores = [first, mulligan.open(self._path) if self.persistent else first]
        for branch in self._branches:
            self._attach(branch)

    def _attach(self, branch: OneBranch) -> None:
        self._handles[branch.name] = [store.session(branch.name) for store in self._stores]

    def _pick(self, data: st.DataObject) -> tuple[OneBranch, Session]:
        branch = data.draw(st.sampled_from(self._branches), label="session")
        handle = data.draw(st.sampled_from(range(2)), label="handle")
        return branch, self._handles[branch.name][handle]

    def _remember(self, branch: OneBranch, session: Session) -> None:
        branch.points[session.head.seq] = branch.state

    def _check_history(self, branch: OneBranch) -> None:
        session = self._handles[branch.name][0]
        for seq, state in branch.points.items():
            assert strict(session.state.at(seq).get()) == strict(state)
        for label, seq in branch.labels.items():
            assert session.point(label).seq == seq
        own = [(found.seq, found.id) for found in session.checkpoints()]
        assert set(branch.checkpoints) <= set(own)
        events = list(session.events())
        assert [event.seq for event in events] == list(range(1, session.head.seq + 1))
        assert [e.prev for e in events] == [GENESIS, *(e.hash for e in events[:-1])]

    # --- rules ---------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        for name in ("run", "run-1"):
            branch = OneBranch(name, {})
            self._branches.append(branch)
            self._attach(branch)
            self._remember(branch, self._handles[name][0])

    @rule(data=st.data(), operation=OPERATIONS)
    def change(self, data: st.DataObject, operation: tuple[str, Path_, Any]) -> None:
        branch, session = self._pick(data)
        expected = after(branch.state, operation)
        if isinstance(expected, type):
            with pytest.raises(expected):
                perform(session.state, *operation)
        else:
            perform(session.state, *operation)
            branch.state = expected
        self._remember(branch, session)

    @rule(data=st.data(), operations=st.lists(OPERATIONS, max_size=5), fails=st.booleans())
    def batch(
        self, data: st.DataObject, operations: list[tuple[str, Path_, Any]], fails: bool
    ) -> None:
        branch, session = self._pick(data)
        before = session.head.seq
        expected = after(branch.state, *operations)
        error = expected if isinstance(expected, type) else Fail if fails else None
        if error is None:
            self._run_batch(session, operations, False)
            assert not isinstance(expected, type)
            branch.state = expected
        else:
            with pytest.raises(error):
                self._run_batch(session, operations, fails)
            assert session.head.seq == before
        self._remember(branch, session)

    def _run_batch(
        self, session: Session, operations: list[tuple[str, Path_, Any]], fails: bool
    ) -> None:
        with session.batch():
            for operation in operations:
                perform(session.state, *operation)
            if fails:
                raise Fail

    @rule(data=st.data(), operations=st.lists(OPERATIONS, max_size=6), how=st.sampled_from(WAYS))
    def transaction(
        self, data: st.DataObject, operations: list[tuple[str, Path_, Any]], how: str
    ) -> None:
        """What raises inside is caught: nothing of it is kept, and everything else is."""
        branch, session = self._pick(data)
        for operation in operations:
            expected = after(branch.state, operation)
            if not isinstance(expected, type):
                branch.state = expected
        with session.batch() if how != "transaction" else nullcontext() as batch:
            if how == "checkpoint":
                batch.checkpoint("own", data={"operations": len(operations)})
            with session.batch() if how == "nested" else nullcontext():
                if how in ("transaction", "both"):
                    session.state.transaction(lambda state: perform_each(state, operations))
                else:
                    perform_each(session.state, operations)
        if how == "checkpoint":
            assert batch.result.seq == batch.seq == session.head.seq
            assert batch.result.data == {"operations": len(operations)}
            branch.checkpoints.append((batch.seq, batch.result.id))
        self._remember(branch, session)

    @rule(data=st.data())
    def checkpoint_if_changed(self, data: st.DataObject) -> None:
        branch, session = self._pick(data)
        latest, before = session.checkpoints(1), session.head
        made = session.checkpoint(if_changed=True)
        if any(
            not one.safety and strict(session.state.at(one).get()) == strict(branch.state)
            for one in latest
        ):
            assert (made, session.head) == (latest[0], before)
        else:
            assert made.seq == session.head.seq == before.seq + 1
            branch.checkpoints.append((made.seq, made.id))
        self._remember(branch, session)

    @rule(data=st.data(), value=VALUES, right=st.booleans())
    def compare_and_set(self, data: st.DataObject, value: Any, right: bool) -> None:
        branch, session = self._pick(data)
        present = branch.state.get("a", mulligan.MISSING)
        expected = present if right else "certainly something else"
        if right:
            session.state.set("a", value, expected=expected)
            branch.state = {**branch.state, "a": value}
        else:
            with pytest.raises(Conflict):
                session.state.set("a", value, expected=expected)
        self._remember(branch, session)

    @rule(data=st.data())
    def burst(self, data: st.DataObject) -> None:
        branch, session = self._pick(data)
        with session.batch():
            for number in range(self.keyframe_every + 5):
                session.state.set(("burst", f"n{number % 3}"), number)
        state = dict(branch.state, burst=dict(branch.state.get("burst", {})))
        for number in range(self.keyframe_every + 5):
            state["burst"][f"n{number % 3}"] = number
        branch.state = state
        self._remember(branch, session)

    @rule(data=st.data(), labelled=st.booleans(), kind=st.sampled_from(["manual", "my own"]))
    def checkpoint(self, data: st.DataObject, labelled: bool, kind: str) -> None:
        branch, session = self._pick(data)
        label = f"label {len(self._branches)}.{session.head.seq}" if labelled else None
        made = session.checkpoint(kind, note="why not", label=label)
        assert (made.seq, made.kind, made.label) == (session.head.seq, kind, label)
        branch.checkpoints.append((made.seq, made.id))
        if label is not None:
            branch.labels[label] = made.seq
        assert session.point(made.id[:12]) == session.point(made)
        self._remember(branch, session)

    @rule(data=st.data(), selective=st.booleans())
    def restore(self, data: st.DataObject, selective: bool) -> None:
        branch, session = self._pick(data)
        seq = data.draw(st.sampled_from(sorted(branch.points)), label="point")
        target = branch.points[seq]
        known = sorted({*target, *branch.state})
        only = None
        if selective and known:
            only = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=2, unique=True))
        branch.undo.append((branch.state, only))
        branch.redo.clear()
        paths = None if only is None else [(key,) for key in only]
        done = session.restore(seq, paths)
        assert strict(session.state.at(done.safety).get()) == strict(branch.state)
        branch.state = brought_back(branch.state, target, only)
        self._remember(branch, session)

    @rule(data=st.data(), mode=st.sampled_from(["undo", "redo"]))
    def walk(self, data: st.DataObject, mode: str) -> None:
        branch, session = self._pick(data)
        source, target = (
            (branch.undo, branch.redo) if mode == "undo" else (branch.redo, branch.undo)
        )
        if not source:
            with pytest.raises(NothingToUndo):
                getattr(session, mode)()
            return
        before, only = source.pop()
        target.append((branch.state, only))
        getattr(session, mode)()
        branch.state = brought_back(branch.state, before, only)
        self._remember(branch, session)

    @precondition(lambda self: 0 < len(self._branches) < 5)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent, session = self._pick(data)
        seq = data.draw(st.sampled_from(sorted(parent.points)), label="point")
        forked = session.fork(seq, f"run-{len(self._branches)}")
        branch = OneBranch(forked.name, parent.points[seq])
        branch.points = {at: state for at, state in parent.points.items() if at <= seq}
        branch.labels = {label: at for label, at in parent.labels.items() if at <= seq}
        branch.checkpoints = [(at, name) for at, name in parent.checkpoints if at <= seq]
        self._branches.append(branch)
        self._attach(branch)
        self._remember(branch, forked)
        assert forked.parent == session.point(seq)

    @rule(data=st.data())
    def look_back(self, data: st.DataObject) -> None:
        branch, session = self._pick(data)
        one, other = (
            data.draw(st.sampled_from(sorted(branch.points)), label="point") for _ in range(2)
        )
        before, later = session.state.at(one).get(), session.state.at(f"#{other}").get()
        assert strict(before) == strict(branch.points[one])
        assert strict(later) == strict(branch.points[other])
        equal = strict(before) == strict(later)
        assert bool(session.diff(one, other)) != equal
        assert (session.internal.state_digest(one) == session.internal.state_digest(other)) == equal
        if branch.labels:
            label, seq = data.draw(st.sampled_from(sorted(branch.labels.items())), label="label")
            assert strict(session.state.at(label).get()) == strict(branch.points[seq])

    @precondition(lambda self: self.persistent)
    @rule()
    def reopen(self) -> None:
        for store in self._stores:
            store.close()
        self._open()

    @rule()
    def verify_quickly(self) -> None:
        report = self._stores[0].verify(full=False)
        assert report.ok, report.problems

    @invariant()
    def every_handle_shows_the_model(self) -> None:
        for branch in self._branches:
            for session in self._handles[branch.name]:
                assert strict(session.state.get("")) == strict(branch.state)


def brought_back(state: State, target: State, only: list[str] | None) -> State:
    if only is None:
        return target
    kept = {key: value for key, value in state.items() if key not in only}
    return kept | {key: target[key] for key in only if key in target}


class MemoryMachine(StoreMachine):
    """The same in memory."""

    persistent = False


class KeyframeMachine(StoreMachine):
    """The same with a keyframe after every few events, so that all reading goes through them."""

    keyframe_every = 4


@pytest.mark.parametrize("machine", [StoreMachine, MemoryMachine, KeyframeMachine])
def test_the_store_does_what_a_dictionary_does(machine: type[StoreMachine]) -> None:
    run_state_machine_as_test(machine)
