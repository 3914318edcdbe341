"""Several processes and threads on one store: nothing is lost, mixed up or corrupted."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import Conflict
from mulligan.journal.chain import GENESIS

EVENTS = 250


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Run some Python in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def together(*processes: subprocess.Popen[str]) -> list[str]:
    """Let all of them go at once, wait for their end, and return what they said."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.stderr and process.stderr.read()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = []
    for process in processes:
        out, error = process.communicate(timeout=100)
        assert (process.returncode, error) == (0, "")
        said.append(out)
    return said


APPEND = """
    import sys
    import mulligan

    place, name, actor, count = sys.argv[1:]
    with mulligan.open(place) as store:
        session = store.session(name, actor=actor)
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(int(count)):
            text = "x" * (6_000 if number % 10 == 0 else 20)
            session.state.append("all", [actor, number, text])
            if number % 50 == 0:
                session.checkpoint(label=f"{actor} {number}")
"""


def check_chain(session: Session) -> None:
    events = list(session.events())
    assert [event.seq for event in events] == list(range(1, session.head.seq + 1))
    assert [event.prev for event in events] == [GENESIS, *(event.hash for event in events[:-1])]
    times = [event.time for event in events]
    assert times == sorted(times)


def test_processes_appending_to_one_session(tmp_path: Path) -> None:
    actors = ["one", "two"]
    together(*(start(APPEND, tmp_path, "run", actor, EVENTS) for actor in actors))
    with mulligan.open(tmp_path) as store:
        session = store.session("run")
        check_chain(session)
        items = session.state.get("all")
        assert len(items) == 2 * EVENTS
        for actor in actors:
            mine = [(number, len(text)) for who, number, text in items if who == actor]
            assert mine == [(n, 6_000 if n % 10 == 0 else 20) for n in range(EVENTS)]
            order = [
                e.payload["values"][0][1]
                for e in session.events()
                if e.actor == actor and e.kind == "state.append"
            ]
            assert order == list(range(EVENTS))
        assert len(session.checkpoints()) == 2 * EVENTS // 50
        assert session.head.seq == 1 + 2 * EVENTS + 2 * EVENTS // 50
        assert store.verify().ok


def test_processes_appending_to_different_sessions(tmp_path: Path) -> None:
    names = ["run", "run-1", "run-10", "r"]
    together(*(start(APPEND, tmp_path, name, name, EVENTS) for name in names))
    with mulligan.open(tmp_path) as store:
        assert sorted(session.name for session in store.sessions()) == sorted(names)
        for name in names:
            session = store.session(name)
            check_chain(session)
            assert [(who, number) for who, number, _ in session.state.get("all")] == [
                (name, number) for number in range(EVENTS)
            ]
        assert store.verify().ok


COUNT = """
    import sys
    import mulligan
    from mulligan.errors import Conflict

    with mulligan.open(sys.argv[1]) as store:
        session = store.session("run", actor=sys.argv[2])
        print("ready", flush=True)
        sys.stdin.readline()
        done = conflicts = 0
        while done < 100:
            seen = session.state.get("count", 0)
            try:
                session.state.set("count", seen + 1, expected=seen)
                done += 1
            except Conflict:
                conflicts += 1
        print(conflicts)
"""


def test_compare_and_set_counts_exactly(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("run").state.set("count", 0)
    said = together(*(start(COUNT, tmp_path, f"actor {n}") for n in range(3)))
    with mulligan.open(tmp_path) as store:
        session = store.session("run")
        assert session.state.get("count") == 300
        values = [e.payload["value"] for e in session.events() if e.kind == "state.set"]
        assert values == list(range(301))
        assert store.verify().ok
    assert sum(map(int, said)) > 0, "they never met, so nothing was shown"


FOLLOW = """
    import sys
    import mulligan

    with mulligan.open(sys.argv[1]) as store:
        session = store.session("run", create=False)
        print("ready", flush=True)
        for event in session.events(follow=True):
            print(event.seq, event.kind, event.hash.hex(), flush=True)
            if event.kind == "checkpoint.created" and event.payload["label"] == "the end":
                break
"""


def test_a_follower_in_another_process_sees_everything_in_order(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        session = store.session("run")
        session.state.set("before", 1)
        follower = start(FOLLOW, tmp_path)
        assert follower.stdout is not None
        assert follower.stdout.readline() == "ready\n"
        for number in range(300):
            session.state.append("list", "x" * (7_000 if number % 50 == 0 else 5))
        with session.batch():
            session.state.set("a", 1)
            session.state.set("b", 2)
        session.restore(2)
        session.checkpoint(label="the end")
        seen = [line.split() for line in follower.stdout]
        assert follower.wait(60) == 0
        assert seen == [[str(e.seq), e.kind, e.hash.hex()] for e in session.events()]


FORKS = """
    import sys
    import mulligan

    with mulligan.open(sys.argv[1]) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        session = store.session("run")
        for number in range(40):
            fork = session.fork("#2")
            fork.state.set("by", sys.argv[2])
            print(fork.name)
"""


def test_processes_forking_at_once_get_names_of_their_own(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("run").state.set("a", 1)
    said = together(*(start(FORKS, tmp_path, f"actor {n}") for n in range(3)))
    names = [name for out in said for name in out.split()]
    assert len(set(names)) == 120
    with mulligan.open(tmp_path) as store:
        for number, out in enumerate(said):
            for name in out.split():
                state = store.session(name, create=False).state.get("")
                assert state == {"a": 1, "by": f"actor {number}"}
        assert store.verify().ok


OPEN = """
    import sys
    import mulligan

    print("ready", flush=True)
    sys.stdin.readline()
    with mulligan.open(sys.argv[1]) as store:
        store.session("run").state.append("opened", "x" * 8_000)
"""


def test_processes_making_the_same_store_at_once_agree(tmp_path: Path) -> None:
    together(*(start(OPEN, tmp_path / "new") for _ in range(4)))
    with mulligan.open(tmp_path / "new", create=False) as store:
        assert store.session("run").state.get("opened") == ["x" * 8_000] * 4
        assert store.verify().ok


@pytest.mark.parametrize("place", ["memory:", "disk"])
def test_threads_sharing_one_session(tmp_path: Path, place: str) -> None:
    with mulligan.open(tmp_path if place == "disk" else place) as store:
        session = store.session("run")
        session.state.set("count", 0)

        def work(thread: int) -> None:
            for number in range(40):
                session.state.append(("lists", str(thread)), [number, "x" * (number * 200)])
                with session.batch():
                    session.state.set("count", session.state.get("count") + 1)
                    session.state.set(("last", str(thread)), number)
                if number % 20 == 0:
                    session.checkpoint(label=f"{thread} {number}")

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
        state = session.state.get("")
        assert state["count"] == 240
        assert state["last"] == {str(n): 39 for n in range(6)}
        for thread in range(6):
            assert [item[0] for item in state["lists"][str(thread)]] == list(range(40))
        assert len(session.checkpoints()) == 12
        check_chain(session)
        assert store.verify().ok


def test_threads_with_handles_of_their_own(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("run").state.set("count", 0)

        def work(thread: int) -> int:
            session = store.session("run", actor=f"thread {thread}")
            conflicts = 0
            for _ in range(30):
                while True:
                    seen = session.state.get("count")
                    try:
                        session.state.set("count", seen + 1, expected=seen)
                        break
                    except Conflict:
                        conflicts += 1
            return conflicts

        with ThreadPoolExecutor(5) as pool:
            list(pool.map(work, range(5)))
        assert store.session("run").state.get("count") == 150
        assert store.verify().ok


def test_a_follower_in_another_thread_is_woken_by_a_writer(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        session = store.session("run")
        seen: list[int] = []
        done = threading.Event()

        def follow() -> None:
            for event in store.session("run").events(since=1, follow=True):
                seen.append(event.seq)
                if event.seq == 51:
                    done.set()
                    return

        follower = threading.Thread(target=follow)
        follower.start()
        for number in range(50):
            session.state.set("n", number)
        assert done.wait(60)
        follower.join()
        assert seen == list(range(2, 52))
