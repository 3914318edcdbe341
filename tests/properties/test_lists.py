"""Lists of the state beside plain Python lists: any history of changes, read at any point.

Two handles of one session write in turns, so that each has to notice what the other wrote.
"""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

import mulligan
from mulligan import Session
from mulligan.document.history import KEYFRAME_EVERY
from mulligan.session.write import writer

NUMBERS = st.integers(0, 300)
COUNTS = st.sampled_from([0, 1, 2, 5, 63, 64, 65, 130])
ACTIONS = st.sampled_from(
    ["extend", "pop", "truncate", "set", "delete", "put", "put other", "checkpoint", "restore"]
)
SCRIPTS = st.lists(st.tuples(st.booleans(), ACTIONS, NUMBERS, COUNTS), max_size=20)
EDITS = ["grow", "shrink", "change", "insert", "change and grow", "mutate", "number", "same"]


class Model:
    """The list as it should be, now and at every checkpoint."""

    def __init__(self, first: Session, second: Session) -> None:
        self.handles = (first, second)
        self.items: list[Any] = []
        self.past: dict[int, list[Any]] = {}
        self.given: list[list[Any]] = [[], []]
        """The list objects that each handle put last, which are changed in place."""

    def play(self, other: bool, action: str, number: int, count: int) -> None:
        session = self.handles[other]
        getattr(self, f"do_{action.replace(' ', '_')}")(session, number, count)
        assert session.state.length("log") == len(self.items)

    def do_extend(self, session: Session, number: int, count: int) -> None:
        added = [message(number, n) for n in range(count)]
        session.state.extend("log", added)
        self.items += copy.deepcopy(added)

    def do_pop(self, session: Session, number: int, count: int) -> None:
        for _ in range(min(count, 3)):
            expected = self.items.pop() if self.items else "none"
            assert session.state.pop("log", "none") == expected

    def do_truncate(self, session: Session, number: int, count: int) -> None:
        length = max(len(self.items) - count, 0)
        session.state.truncate("log", length)
        del self.items[length:]

    def do_set(self, session: Session, number: int, count: int) -> None:
        if self.items:
            index = number % len(self.items)
            session.state.set(("log", index), count)
            self.items[index] = count

    def do_delete(self, session: Session, number: int, count: int) -> None:
        if self.items:
            index = number % len(self.items)
            session.state.delete(("log", index))
            del self.items[index]

    def do_put(self, session: Session, number: int, count: int) -> None:
        """Put the program's own list again, changed in place since it was put last."""
        which = self.handles.index(session)
        if number % 5 == 0 or not self.given[which]:
            self.given[which] = copy.deepcopy(self.items)
        edit(self.given[which], EDITS[number % len(EDITS)], number, count)
        session.state.put("log", self.given[which])
        self.items = copy.deepcopy(self.given[which])

    def do_put_other(self, session: Session, number: int, count: int) -> None:
        """Put a list that has nothing to do with the one before."""
        session.state.put("log", [number] * count)
        self.items = [number] * count

    def do_checkpoint(self, session: Session, number: int, count: int) -> None:
        self.past[session.checkpoint("routine").seq] = copy.deepcopy(self.items)

    def do_restore(self, session: Session, number: int, count: int) -> None:
        if self.past:
            seq = sorted(self.past)[number % len(self.past)]
            session.restore(seq)
            # The safety checkpoint that keeps the present is on the timeline as well.
            safety = session.checkpoints(limit=1, reverse=True)[0]
            self.past.setdefault(safety.seq, self.items)
            self.items = copy.deepcopy(self.past[seq])


def message(number: int, n: int) -> dict[str, Any]:
    return {"text": f"{number} {n} " * (number % 60), "n": n, "parts": [{"x": [n]}]}


def edit(items: list[Any], how: str, number: int, count: int) -> None:
    where = number % len(items) if items else 0
    if how == "shrink":
        del items[max(len(items) - count, 0) :]
    elif how == "insert":
        items.insert(where, "inserted")
    elif how == "mutate" and items and isinstance(items[where], dict):
        items[where].setdefault("parts", [{"x": [0]}])[0]["x"].append(number)
    elif how == "number" and items:
        # Equal to Python, but another value to the store.
        items[where] = {0: False, 1: True}.get(items[where], 1) if items[where] in (0, 1) else 0
    if how.startswith("change") and items:
        items[where] = f"changed {number}"
    if how.endswith("grow"):
        items += [message(number, n) for n in range(count)]


def strict(value: Any) -> Any:
    """Return a value in which what differs in type differs, as True and 1 and 1.0 do."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [strict(item) for item in value]
    return type(value), value


@given(SCRIPTS, NUMBERS, NUMBERS, st.sampled_from([5, KEYFRAME_EVERY]))
@example([(False, "put", 0, 130), (False, "put", 6, 0), (False, "put", 46, 0)], 0, 9, 5)
@example([(False, "put", 0, 130), (True, "set", 3, 9), (False, "put", 8, 2)], 0, 9, 5)
def test_a_list_is_what_a_python_list_would_be_at_every_point(
    script: list[tuple[bool, str, int, int]], start: int, size: int, keyframe_every: int
) -> None:
    # With a keyframe every few events, walks pass several, and lists are loaded from objects.
    often = patch.object(writer, "KEYFRAME_EVERY", keyframe_every)
    with often, mulligan.open("memory:") as store:
        model = Model(store.session("main"), store.session("main"))
        for step in script:
            model.play(*step)
        fresh = store.session("main")
        for session in (*model.handles, fresh):
            assert strict(session.state.get("log", [])) == strict(model.items)
            assert session.state.slice("log", start, start + size) == model.items[start:][:size]
            assert session.state.slice("log", -start, size) == model.items[-start:size]
            assert session.state.tail("log", size) == (model.items[-size:] if size else [])
        check_past(fresh, model, start, size)
        check_past(model.handles[0], model, start, size)
        assert store.verify().ok


def check_past(session: Session, model: Model, start: int, size: int) -> None:
    walked = [(c.seq, strict(view.get("log", []))) for c, view in session.checkpoints.walk()]
    assert walked == [(seq, strict(model.past[seq])) for seq in sorted(model.past, reverse=True)]
    oldest_first = [
        checkpoint.seq for checkpoint, _ in session.checkpoints.walk(newest_first=False)
    ]
    assert oldest_first == sorted(model.past)
    for seq, items in reversed(model.past.items()):
        view = session.state.at(seq)
        assert view.length("log") == len(items)
        assert view.slice("log", start, start + size) == items[start:][:size]
        assert view.tail("log", size) == (items[-size:] if size else [])
        assert strict(session.state.at(seq).get("log", [])) == strict(items)
