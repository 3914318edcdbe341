"""Replay gives the document that the writer had, whatever is written in a row."""

from __future__ import annotations

import random
from typing import Any

import mulligan


def test_a_replay_ends_where_each_write_did() -> None:
    chance = random.Random(7)
    with mulligan.open("memory:") as store:
        session = store.session("main")
        seen: dict[int, Any] = {}
        for number in range(300):
            _write(session, chance, number)
            seen[session.head.seq] = session.state.get("")
        for seq in chance.sample(sorted(seen), 60):
            # A new handle knows no document: it replays from the start or a keyframe.
            assert store.session("main").state.at(f"#{seq}").get() == seen[seq]
            assert session.state.at(f"#{seq}").get() == seen[seq]


def test_appends_around_a_restore_and_a_deleted_list_stay_apart() -> None:
    with mulligan.open("memory:") as store:
        session = store.session("main")
        session.state.append("log", 1)
        point = session.checkpoint("manual")
        session.state.append("log", 2)
        session.state.delete("log")
        session.state.append("log", 3)
        session.restore(point)
        session.state.append("log", 4)
        assert session.state.get("log") == [1, 4]
        assert store.session("main").state.get("log") == [1, 4]


def _write(session: mulligan.Session, chance: random.Random, number: int) -> None:
    kind = chance.choice(["append"] * 6 + ["extend", "empty", "set", "delete", "checkpoint"])
    name = chance.choice(["conversation", "log/one", "log/two"])
    if kind == "append":
        session.state.append(name, {"number": number})
    elif kind == "extend":
        session.state.extend(name, list(range(number % 40)))
    elif kind == "empty":
        session.state.extend(name, [])
    elif kind == "set":
        session.state.set("value", number)
    elif kind == "delete" and session.state.get(name) is not None:
        session.state.delete(name)
    else:
        session.checkpoint("routine")
