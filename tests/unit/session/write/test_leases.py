"""Leases: one writer for an agent, and a wall against those who were replaced."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import mulligan
from mulligan import Store
from mulligan.cli.context import ACTOR
from mulligan.cli.main import run
from mulligan.errors import InvalidName, LeaseHeld, StaleLease
from mulligan.model import Holder as LeaseHolder
from mulligan.session.names import PERSON, PLAIN
from mulligan.session.write.leases import is_dead, this_holder
from mulligan.testing.clock import START, FakeClock
from mulligan.testing.stores import open_store


@pytest.fixture
def store(clock: FakeClock) -> Store:
    return open_store("memory:", clock=clock)


def test_a_lease_says_who_holds_it_until_when(store: Store) -> None:
    session = store.agent("coder", session="run", ttl=10)
    lease = session.agent.lease
    assert lease is not None
    assert (lease.actor, lease.epoch, lease.holder) == ("coder", 1, this_holder())
    assert lease.expires == START + timedelta(seconds=10)
    session.state.set("a", 1)
    [event] = session.events(since=1)
    assert (event.actor, event.epoch) == ("coder", 1)


def test_a_second_writer_of_the_same_agent_waits(store: Store, clock: FakeClock) -> None:
    first = store.agent("coder", session="run", ttl=10)
    with pytest.raises(LeaseHeld, match=r"'coder' in session 'run' is held by process \d+ on "):
        store.agent("coder", session="run")
    store.agent("tester", session="run").state.set("a", 1)
    store.agent("coder", session="other").state.set("a", 1)
    clock.advance(10)
    second = store.agent("coder", session="run")
    assert second.agent.lease is not None
    assert second.agent.lease.epoch == 2
    with pytest.raises(StaleLease):
        first.state.set("b", 1)


def test_every_kind_of_write_of_a_replaced_writer_is_refused(store: Store) -> None:
    first = store.agent("coder", session="run")
    first.state.set("a", 1)
    first.restore(1)
    second = store.agent("coder", session="run", steal=True)
    head = second.head.seq
    for attempt in (
        lambda: first.state.set("a", 2),
        lambda: first.state.append("l", 2),
        lambda: first.state.put("p", {"x": 1}),
        first.checkpoint,
        lambda: first.restore(1),
        first.undo,
        first.internal.renew,
    ):
        with pytest.raises(StaleLease):
            attempt()
    with pytest.raises(StaleLease):
        write_in_batch(first)
    assert second.head.seq == head
    second.state.set("a", 3)
    assert first.state.get("a") == 3


def write_in_batch(session: mulligan.Session) -> None:
    with session.batch():
        session.state.set("a", 2)
        session.state.set("b", 2)


def test_who_has_no_lease_cannot_write_under_a_leased_name(store: Store) -> None:
    store.agent("coder", session="run")
    with pytest.raises(StaleLease):
        store.session("run", actor="coder").state.set("a", 1)


def test_a_released_lease_is_free_at_once(store: Store) -> None:
    first = store.agent("coder", session="run")
    first.internal.release()
    assert first.agent.lease is None
    second = store.agent("coder", session="run")
    assert second.agent.lease is not None
    assert second.agent.lease.epoch == 2
    with pytest.raises(StaleLease):
        first.state.set("a", 1)


def test_releasing_late_does_not_take_the_lease_from_its_new_holder(store: Store) -> None:
    first = store.agent("coder", session="run")
    second = store.agent("coder", session="run", steal=True)
    first.internal.release()
    second.state.set("a", 1)
    with pytest.raises(LeaseHeld):
        store.agent("coder", session="run")


def test_writing_renews_in_passing(store: Store, clock: FakeClock) -> None:
    session = store.agent("coder", session="run", ttl=10)
    for number in range(10):
        clock.advance(6)
        session.state.set("n", number)
        with pytest.raises(LeaseHeld):
            store.agent("coder", session="run")
    clock.advance(6)
    session.internal.renew()
    clock.advance(9)
    with pytest.raises(LeaseHeld):
        store.agent("coder", session="run")


def test_an_expired_lease_still_writes_until_somebody_takes_it(
    store: Store, clock: FakeClock
) -> None:
    session = store.agent("coder", session="run", ttl=10)
    clock.advance(1_000)
    session.state.set("a", 1)
    with pytest.raises(LeaseHeld):
        store.agent("coder", session="run")


def test_a_dead_holder_is_replaced_without_waiting(tmp_path: Path) -> None:
    code = (
        "import mulligan, os, signal, sys\n"
        f"mulligan.open({str(tmp_path)!r}).agent('coder', session='run', ttl=3600)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    with mulligan.open(tmp_path) as store:
        session = store.agent("coder", session="run")
        assert session.agent.lease is not None
        assert session.agent.lease.epoch == 2
        session.state.set("a", 1)


def test_leases_are_compared_by_the_clock_of_the_journal(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines that share a journal may disagree about the time; the journal decides."""
    session = store.agent("coder", session="run")
    assert session.internal.is_held("coder")
    later = store._engine.journal.now() + timedelta(days=1)
    monkeypatch.setattr(store._engine.journal, "now", lambda: later)
    assert not session.internal.is_held("coder")
    taken = store.agent("coder", session="run").agent.lease
    assert taken is not None
    assert taken.epoch == 2
    assert taken.expires > later


def test_who_is_dead(tmp_path: Path) -> None:
    assert not is_dead(this_holder())
    host = socket.gethostname()
    assert is_dead(LeaseHolder(host, os.getpid(), 1)), "the pid was used again"
    assert is_dead(LeaseHolder(host, 2**22 + 1, 12345))
    assert not is_dead(LeaseHolder("elsewhere", 2**22 + 1, 12345)), "it cannot be told from here"
    assert not is_dead(LeaseHolder("else/where", os.getpid(), 1))


@pytest.mark.parametrize(
    "holder",
    [
        LeaseHolder("a-host", 12, 345),
        LeaseHolder("else/where", 1, 0),
        LeaseHolder("no process"),
        LeaseHolder(""),
    ],
)
def test_a_holder_is_read_from_its_text(holder: LeaseHolder) -> None:
    assert LeaseHolder.parse(str(holder)) == holder


@pytest.mark.parametrize("holder", ["", "x", "a/b", "host/x/y", "host/1/"])
def test_what_names_no_process_is_not_known_to_be_dead(holder: str) -> None:
    assert LeaseHolder.parse(holder) == LeaseHolder(holder)
    assert not is_dead(LeaseHolder.parse(holder))


# --- actors that are no agents, and agents that are dead --------------------------------------


@pytest.mark.parametrize("name", ["cli", "main"])
def test_no_agent_is_named_as_people_and_plain_handles_are(store: Store, name: str) -> None:
    for session in ("run", "new"):
        store.session("run")
        with pytest.raises(InvalidName, match=f"No agent can be named {name!r}"):
            store.agent(name, session=session)
    assert [session.name for session in store.sessions()] == ["run"]
    with pytest.raises(InvalidName):
        store.session("run", actor=name).internal.take(30)


@pytest.mark.parametrize("name", ["", " ", None, 5])
def test_an_agent_has_a_name(store: Store, name: object) -> None:
    if name is None:
        assert store.session("run").agent.lease is None
        return
    with pytest.raises(InvalidName):
        store.agent(name, session="run")  # type: ignore[arg-type]
    assert store.sessions() == []


def test_the_names_are_those_that_handles_and_commands_use(store: Store) -> None:
    assert store.session("run").actor == PLAIN
    assert ACTOR == PERSON


HOLD = """
    import sys
    import mulligan
    from mulligan.model import Lease
    from mulligan.session.write.leases import this_holder

    # As a version before did, which gave every name out.
    store = mulligan.open(sys.argv[1])
    session = store.session("run", actor=sys.argv[2])
    with session._engine.write() as txn:
        expires = session.internal.clock.now().replace(year=2099)
        txn.put_lease(session._record.number, Lease(sys.argv[2], 1, this_holder(), expires))
    session.internal.adopt(1, 1_000_000)
    for line in sys.stdin:
        try:
            session.state.set(line.strip(), 1)
            print("written", flush=True)
        except mulligan.errors.StaleLease:
            print("stale", flush=True)
"""


class Holder:
    """Another process that holds the lease of an agent, and writes when it is told to."""

    def __init__(self, store: Path, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(HOLD), str(store), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.write("alive") == "written"

    def write(self, key: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{key}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[[str], Holder]]:
    held: list[Holder] = []

    def start(name: str) -> Holder:
        held.append(Holder(tmp_path / "store", name))
        return held[-1]

    yield start
    for holder in held:
        holder.kill()


@pytest.mark.parametrize("name", ["cli", "main"])
def test_an_agent_of_an_older_store_shuts_nobody_out(
    hold: Callable[[str], Holder], tmp_path: Path, name: str
) -> None:
    holder = hold(name)
    with mulligan.open(tmp_path / "store") as store:
        plain = store.session("run", actor=name)
        plain.state.set("beside", 1)
        plain.checkpoint()
        assert holder.write("mine") == "written"
        with pytest.raises(LeaseHeld):
            store.agent(name, session="run")
        again = store.agent(name, session="run", steal=True)  # it was given out before
        assert holder.write("late") == "stale"
        again.state.set("again", 1)
        plain.state.set("still", 1)
        holder.kill()
        plain.state.set("after", 1)
        expected = {"alive", "beside", "mine", "again", "still", "after"}
        assert plain.state.get("").keys() == expected
        assert store.verify().ok


@pytest.mark.parametrize("name", ["cli", "main"])
def test_commands_work_when_an_agent_of_their_name_has_died(
    hold: Callable[[str], Holder], tmp_path: Path, name: str
) -> None:
    hold(name).kill()
    for args in (["state", "set", "x", "1"], ["checkpoint", "--no-files"], ["restore", "#1", "-y"]):
        assert run([*args[:1], "--store", str(tmp_path / "store"), *args[1:]]) == 0


def test_a_dead_agents_name_can_be_written_under_at_once(
    hold: Callable[[str], Holder], tmp_path: Path
) -> None:
    holder = hold("coder")
    with mulligan.open(tmp_path / "store") as store:
        helper = store.session("run", actor="coder")
        with pytest.raises(StaleLease, match="held by"):
            helper.state.set("x", 1)
        holder.kill()
        helper.state.set("x", 1)
        assert store.agent("coder", session="run").agent.lease is not None
        with pytest.raises(StaleLease):
            helper.state.set("x", 2)
