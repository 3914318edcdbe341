"""The store: its sessions, found by their names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan.errors import InvalidName, NotAStore, UnsafeWorkspace
from mulligan.journal import kv_view


def test_sessions_by_prefix_are_the_oldest_first_and_no_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with mulligan.open("memory:") as store:
        for number in range(50):
            store.session(f"other-{number}")
        for name in ("claude-b", "claude-a", "claude-", "claudia"):
            store.session(name)
        read: list[bytes] = []
        opened = kv_view.opened

        def counted(table: str, key: bytes, value: Any) -> Any:
            read.append(key)
            return opened(table, key, value)

        monkeypatch.setattr(kv_view, "opened", counted)
        assert [s.name for s in store.sessions("claude-")] == ["claude-b", "claude-a", "claude-"]
        assert len(read) <= 3 * 3
        assert [s.name for s in store.sessions(prefix="other-4")][:2] == ["other-4", "other-40"]
        assert store.sessions("nothing") == []
        assert len(store.sessions()) == 54
        with pytest.raises(InvalidName):
            store.sessions(7)  # type: ignore[arg-type]


def test_a_store_shows_its_directory_in_a_notebook(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        assert repr(store) == f"<Store '{tmp_path}/.mulligan'>"
    with mulligan.open("memory:") as store:
        assert repr(store) == "<Store 'memory:'>"


@pytest.mark.parametrize("path", ["postgresql://ann:secret@host/db", "sqlite:///a.db", ":memory:"])
def test_the_name_of_a_database_is_not_made_a_directory(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs pass what they gave another saver before."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotAStore, match="A store is a directory") as raised:
        mulligan.open(path)
    assert "secret" not in str(raised.value)
    assert os.listdir(tmp_path) == []


def test_a_workspace_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with mulligan.open("memory:") as store:
        for missing in (tmp_path / "nowhere", Path(__file__) / "inside"):
            with pytest.raises(UnsafeWorkspace, match=f"no directory {re.escape(str(missing))}"):
                store.session("main", workspace=missing)


UNCLOSED = """
import gc, os, sys, mulligan
for number in range(3):
    session = mulligan.open(f"left-{number}").session("main")
    session.state.set("a", 1)  # a session is enough to keep its store open
    del session
gc.collect()
with mulligan.open("next"):
    files = [os.readlink(entry) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry)]
    print([file for file in files if "left-" in file])
print(mulligan.open("left-1").session("main").state.get("a"))
"""


def test_stores_that_are_left_open_are_released_by_the_next_open(tmp_path: Path) -> None:
    """Each has descriptors, and a map of which a process can have about a hundred."""
    assert output_of(UNCLOSED, tmp_path) == "[]\n1\n"


ONE_OF_TWO = """
import gc, mulligan
with mulligan.open("store") as store:
    session = store.session("main")
    for number in range(3):
        mulligan.open("store").session("main").state.append("list", number)
        gc.collect()
    mulligan.open("store").close()
    session.state.append("list", 3)
    print(session.state.get("list"))
"""


def test_a_handle_that_is_left_open_takes_no_other_with_it(tmp_path: Path) -> None:
    assert output_of(ONE_OF_TWO, tmp_path) == "[0, 1, 2, 3]\n"


CLOSED_BY_GARBAGE = """
import gc, os, mulligan

class Agent:
    def __init__(self):
        self.store = mulligan.open("store")
        self.session = self.store.session("main")
        if {writes}:
            self.session.state.set("a", os.urandom(10_000))
        self.last = Last(self)

class Last:  # younger than the store: its end comes after that of the store's own objects
    def __init__(self, agent):
        self.agent = agent
    def __del__(self):
        if {writes}:
            self.agent.session.state.set("b", os.urandom(10_000))
        self.agent.store.close()

mulligan.open("store").session("main").state.set("c", 1)
other = mulligan.open("store")
Agent()
gc.collect()
mulligan.open("next").close()
print(sorted(other.session("main").state.get()))
"""


@pytest.mark.parametrize("writes", [False, True])
def test_a_store_can_be_used_and_closed_while_it_is_collected(tmp_path: Path, writes: bool) -> None:
    """By the ``__del__`` of an object that is garbage together with it."""
    expected = ["a", "b", "c"] if writes else ["c"]
    assert output_of(CLOSED_BY_GARBAGE.format(writes=writes), tmp_path) == f"{expected}\n"


CLOSED_WHILE_ANOTHER_OPENS = """
import gc, sys, mulligan
from mulligan.journal.lmdb.lockfile import LockFile
from mulligan.journal.lmdb.open_environments import acquire

class Agent:
    def __init__(self):
        self.store, self.me = mulligan.open("store"), self
    def __del__(self):
        self.store.close()
        print("closed")

def collect(frame, event, arg):
    if event == "c_return" and frame.f_code is {where}.__code__:
        gc.collect()

gc.disable()
Agent()
sys.setprofile(collect)
with mulligan.open("{place}") as store:
    store.session("main").state.set("a", 1)
    print(store.session("main").state.get("a"))
"""


@pytest.mark.parametrize(("where", "place"), [("LockFile.__init__", "next"), ("acquire", "store")])
def test_a_store_can_be_collected_while_this_thread_opens_one(
    tmp_path: Path, where: str, place: str
) -> None:
    """By a collection that starts where this thread has a lock that closing takes, too."""
    program = CLOSED_WHILE_ANOTHER_OPENS.format(where=where, place=place)
    assert output_of(program, tmp_path) == "closed\n1\n"


def output_of(program: str, directory: Path) -> str:
    """Run a program of its own: a test holds every store that it opens until it ends."""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    return ran.stdout
