"""Leases: one writer for an agent, and a wall against those who were replaced."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import mulligan
from mulligan import Store
from mulligan.errors import LeaseHeld, StaleLease
from mulligan.session.leases import is_dead, this_process
from mulligan.testing.clock import START, FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Store:
    return mulligan.open("memory:", clock=clock)


def test_a_lease_says_who_holds_it_until_when(store: Store) -> None:
    session = store.session("run", agent="coder", ttl=10)
    lease = session.lease
    assert lease is not None
    assert (lease.actor, lease.epoch, lease.holder) == ("coder", 1, this_process())
    assert lease.expires == START + timedelta(seconds=10)
    session.state.set("a", 1)
    [event] = session.events(since=1)
    assert (event.actor, event.epoch) == ("coder", 1)


def test_a_second_writer_of_the_same_agent_waits(store: Store, clock: FakeClock) -> None:
    first = store.session("run", agent="coder", ttl=10)
    with pytest.raises(LeaseHeld, match="'coder' in session 'run' is held by"):
        store.session("run", agent="coder")
    store.session("run", agent="tester").state.set("a", 1)
    store.session("other", agent="coder").state.set("a", 1)
    clock.advance(10)
    second = store.session("run", agent="coder")
    assert second.lease is not None
    assert second.lease.epoch == 2
    with pytest.raises(StaleLease):
        first.state.set("b", 1)


def test_every_kind_of_write_of_a_replaced_writer_is_refused(store: Store) -> None:
    first = store.session("run", agent="coder")
    first.state.set("a", 1)
    first.restore(1)
    second = store.session("run", agent="coder", steal=True)
    head = second.head.seq
    for attempt in (
        lambda: first.state.set("a", 2),
        lambda: first.state.append("l", 2),
        lambda: first.state.put("p", {"x": 1}),
        first.checkpoint,
        lambda: first.restore(1),
        first.undo,
        first.renew,
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
    store.session("run", agent="coder")
    with pytest.raises(StaleLease):
        store.session("run", actor="coder").state.set("a", 1)


def test_a_released_lease_is_free_at_once(store: Store) -> None:
    first = store.session("run", agent="coder")
    first.release()
    assert first.lease is None
    second = store.session("run", agent="coder")
    assert second.lease is not None
    assert second.lease.epoch == 2
    with pytest.raises(StaleLease):
        first.state.set("a", 1)


def test_releasing_late_does_not_take_the_lease_from_its_new_holder(store: Store) -> None:
    first = store.session("run", agent="coder")
    second = store.session("run", agent="coder", steal=True)
    first.release()
    second.state.set("a", 1)
    with pytest.raises(LeaseHeld):
        store.session("run", agent="coder")


def test_writing_renews_in_passing(store: Store, clock: FakeClock) -> None:
    session = store.session("run", agent="coder", ttl=10)
    for number in range(10):
        clock.advance(6)
        session.state.set("n", number)
        with pytest.raises(LeaseHeld):
            store.session("run", agent="coder")
    clock.advance(6)
    session.renew()
    clock.advance(9)
    with pytest.raises(LeaseHeld):
        store.session("run", agent="coder")


def test_an_expired_lease_still_writes_until_somebody_takes_it(
    store: Store, clock: FakeClock
) -> None:
    session = store.session("run", agent="coder", ttl=10)
    clock.advance(1_000)
    session.state.set("a", 1)
    with pytest.raises(LeaseHeld):
        store.session("run", agent="coder")


def test_a_dead_holder_is_replaced_without_waiting(tmp_path: Path) -> None:
    code = (
        "import mulligan, os, signal, sys\n"
        f"mulligan.open({str(tmp_path)!r}).session('run', agent='coder', ttl=3600)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    with mulligan.open(tmp_path) as store:
        session = store.session("run", agent="coder")
        assert session.lease is not None
        assert session.lease.epoch == 2
        session.state.set("a", 1)


def test_who_is_dead(tmp_path: Path) -> None:
    assert not is_dead(this_process())
    host = socket.gethostname()
    assert is_dead(f"{host}/{os.getpid()}/1"), "the pid was used again"
    assert is_dead(f"{host}/{2**22 + 1}/12345")
    assert not is_dead(f"elsewhere/{2**22 + 1}/12345"), "nobody can tell from here"
    assert not is_dead(f"else/where/{os.getpid()}/1")


@pytest.mark.parametrize("holder", ["", "x", "a/b", "host/x/y", "host/1/"])
def test_what_names_no_process_is_not_known_to_be_dead(holder: str) -> None:
    assert not is_dead(holder)
