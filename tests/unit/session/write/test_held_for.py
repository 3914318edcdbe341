"""A lease that names another process: the hooks of an agent write for it, one after the other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import mulligan
from mulligan import Store
from mulligan.errors import LeaseHeld, StaleLease
from mulligan.recovery.detect import interrupted
from mulligan.recovery.watch import RecoveryWatch
from mulligan.session.write.leases import identity, this_process
from mulligan.store import HOLD_TTL
from mulligan.testing.clock import START, FakeClock
from mulligan.testing.stores import open_store

HOOK = """
import sys, mulligan
store, agent, text, state = sys.argv[1:]
with mulligan.open(store) as opened:
    with opened.agent("claude", session="run", process=int(agent)) as session:
        with session.batch():
            session.state.append("said", text)
            session.agent.update(state=state)
        print(session.agent.lease.epoch)
"""


class Agent:
    """A process that knows nothing of Mulligan, and does nothing."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self.pid = self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    made.kill()


@pytest.fixture
def store(clock: FakeClock) -> Store:
    return open_store("memory:", clock=clock)


def hook(place: Path, agent: int, text: str, state: str = "working") -> str:
    """Write for an agent in a process of its own, and return its output or its error."""
    command = [sys.executable, "-c", HOOK, str(place), str(agent), text, state]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-2]


def test_the_lease_names_the_agent(store: Store, agent: Agent) -> None:
    session = store.agent("claude", session="run", process=agent.pid)
    lease = session.agent.lease
    assert lease is not None
    assert str(lease.holder) == identity(agent.pid)
    assert lease.expires == START + timedelta(seconds=HOLD_TTL)
    session.state.set("a", 1)
    [event] = session.events(since=1)
    assert (event.actor, event.epoch) == ("claude", 1)


def test_the_hooks_of_an_agent_share_its_epoch(store: Store, agent: Agent) -> None:
    first = store.agent("claude", session="run", process=agent.pid)
    first.state.set("a", 1)
    second = store.agent("claude", session="run", process=agent.pid)
    second.state.set("b", 1)
    first.state.set("c", 1)
    first.close()
    second.state.set("d", 1)
    assert [event.epoch for event in second.events(since=1)] == [1] * 4
    # Closing the last one leaves the lease with the agent.
    second.close()
    assert store.session("run").internal.is_held("claude")
    with pytest.raises(StaleLease):
        second.state.set("e", 1)


def test_another_process_cannot_write_for_the_agent(store: Store, agent: Agent) -> None:
    session = store.agent("claude", session="run", process=agent.pid)
    with pytest.raises(LeaseHeld):
        store.agent("claude", session="run")
    other = Agent()
    with pytest.raises(LeaseHeld):
        store.agent("claude", session="run", process=other.pid)
    replaced = store.agent("claude", session="run", process=other.pid, steal=True)
    with pytest.raises(StaleLease):
        session.state.set("a", 1)
    replaced.state.set("a", 2)
    # A hook of the agent that was replaced does not get the lease back.
    with pytest.raises(LeaseHeld):
        store.agent("claude", session="run", process=agent.pid)
    other.kill()


def test_an_agent_that_ended_in_order_leaves_no_lease(store: Store, agent: Agent) -> None:
    session = store.agent("claude", session="run", process=agent.pid)
    session.agent.update(state="done")
    session.internal.release_hold()
    assert not store.session("run").internal.is_held("claude")
    # The same process may go on with the session later.
    again = store.agent("claude", session="run", process=agent.pid)
    assert again.agent.lease is not None
    assert again.agent.lease.epoch == 2


def test_a_handle_that_takes_its_own_lease_writes_for_itself(store: Store, agent: Agent) -> None:
    session = store.agent("claude", session="run", process=agent.pid)
    session.internal.release_hold()
    session.internal.take(60)
    assert session._writer.process == this_process()
    session.close()
    # Its own lease is released with it, and another writer need not wait.
    assert not store.session("run").internal.is_held("claude")
    store.agent("claude", session="run").close()


def test_a_long_pause_of_the_agent_does_not_cost_its_lease(
    store: Store, clock: FakeClock, agent: Agent
) -> None:
    store.agent("claude", session="run", process=agent.pid)
    clock.advance(HOLD_TTL * 0.9)
    with pytest.raises(LeaseHeld):
        store.agent("claude", session="run")
    session = store.agent("claude", session="run", process=agent.pid)
    assert session.agent.lease is not None
    assert session.agent.lease.expires == clock.now() + timedelta(seconds=HOLD_TTL)


def test_no_lease_is_held_for_a_process_that_does_not_run(store: Store, agent: Agent) -> None:
    agent.kill()
    with pytest.raises(StaleLease, match=f"process {agent.pid}"):
        store.agent("claude", session="run", process=agent.pid)


def test_a_call_that_a_hook_began_is_in_doubt_when_the_agent_is_dead(
    tmp_path: Path, agent: Agent
) -> None:
    with open_store(tmp_path) as store:
        session = store.agent("claude", session="run", process=agent.pid)
        entered = session.tools.call("Bash", {"command": "make"})
        entered.__enter__()
        reader = store.session("run")
        assert [call.status for call in reader.tools.list()] == ["called"]
        agent.kill()
        assert [call.status for call in reader.tools.list()] == ["in_doubt"]


def test_an_agent_that_is_killed_is_found(tmp_path: Path, agent: Agent) -> None:
    place = tmp_path / "store"
    with mulligan.open(place) as store:
        assert hook(place, agent.pid, "one") == "1"
        assert hook(place, agent.pid, "two") == "1"
        assert interrupted(store) == []
        agent.kill()
        [found] = interrupted(store)
        assert found.session == "run"
        assert "claude is dead" in found.why
        started: list[str] = []

        class Helper:
            pid = 7

            def __init__(self, name: str, rung: str) -> None:
                started.append(name)

            def poll(self) -> int | None:
                return None

        RecoveryWatch(store, Helper).look()
        assert started == ["run"]
        assert store.session("run").state.get("said") == ["one", "two"]
        # A hook of the dead agent that comes too late is refused, and its writes are not lost in
        # silence.
        assert "StaleLease" in hook(place, agent.pid, "three")
        next_agent = Agent()
        assert hook(place, next_agent.pid, "four") == "2"
        assert interrupted(store) == []
        next_agent.kill()


def test_an_agent_that_ended_is_not_found(tmp_path: Path, agent: Agent) -> None:
    place = tmp_path / "store"
    with mulligan.open(place) as store:
        hook(place, agent.pid, "one")
        hook(place, agent.pid, "two", state="done")
        agent.kill()
        assert interrupted(store) == []
