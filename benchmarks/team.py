"""Teams of agents: how soon a killed one works again, and what supervision costs.

Real processes, really killed: an agent, then the supervisor with all its agents, then twenty
agents that write as fast as agents do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import mulligan
from benchmarks import harness
from benchmarks.harness import Result, Setting, Table, Target
from benchmarks.timing import MILLISECONDS, median, percentile, timed
from mulligan import Event, Session

TARGETS = (
    Target("agent ms", "an agent killed until it works again, less its start", 300, unit=" ms"),
    Target("team s", "a team of 10 killed with its supervisor until all work", 2, unit=" s"),
    Target("lost", "events of 20 agents lost or out of order", 0),
    Target("supervisor %", "the supervisor of 20 agents, of a core", 10, unit=" %"),
    Target("step ms", "heartbeat and checkpoints, per step of an agent", 1, unit=" ms"),
)

SESSION = "bench"
ROOT = Path(__file__).parents[1]

WORKFLOW = """
session = "bench"
checkpoint_interval = "10s"
"""

AGENT = """
[agents.a{number}]
command = ["{python}", "-m", "benchmarks.team_agent", "{role}"]
directory = "{root}"
max_restarts = 100000
quarantine_after = 100000
backoff = {{ initial = "1ms", max = "1ms" }}
"""


# --- the measurements ----------------------------------------------------------------------------


def run(setting: Setting) -> Result:
    """One after the other, each in a store of its own."""
    result = Result()
    start = _own_start()
    killed = _killed_agent(setting.directory / "one", setting.choose(full=15, quick=5))
    teams = [
        _killed_team(setting.directory / f"team-{turn}")
        for turn in range(setting.choose(full=5, quick=2))
    ]
    seconds = setting.choose(full=30, quick=5)
    lost, share, events = _busy(setting.directory / "busy", seconds)
    overhead = _overhead(setting.directory / "steps", setting.choose(full=1000, quick=200))
    result.tables.append(
        Table(
            "a team of agents",
            [
                {"what": "an agent's own start: import, attach, claim", "ms": start * MILLISECONDS},
                {"what": "killed → its task claimed again", "ms": median(killed) * MILLISECONDS},
                {"what": "the same, 95th percentile", "ms": percentile(killed, 95) * MILLISECONDS},
                {"what": "10 agents and supervisor killed → resumed", "ms": median(teams) * 1000},
                {"what": f"20 agents, {events:,} events: lost", "ms": float(lost)},
                {"what": "supervisor, percent of a core", "ms": share * 100},
                {"what": "the loop, per step", "ms": overhead * MILLISECONDS},
            ],
        )
    )
    result.measure("agent ms", (median(killed) - start) * MILLISECONDS)
    result.measure("team s", median(teams))
    result.measure("lost", float(lost))
    result.measure("supervisor %", share * 100)
    result.measure("step ms", overhead * MILLISECONDS)
    return result


def _own_start() -> float:
    """Return what an agent needs by itself: the interpreter, the imports, the first claim."""
    code = (
        "import mulligan, benchmarks.team_agent\n"
        "mulligan.open('memory:').session('s').tasks.claim()"
    )
    command = [sys.executable, "-c", code]
    return median([timed(subprocess.run, command, check=True, cwd=ROOT)[0] for _ in range(7)])


def _killed_agent(directory: Path, rounds: int) -> list[float]:
    """Return the seconds from SIGKILL to the next claim of the same task."""
    seconds = []
    with _team(directory, 1, "hold") as session:
        for _ in range(rounds):
            _until(lambda: (session.state.get("working/a0") or "") != "")
            before = session.head
            pid = session.state.get("agents/a0/process_id")
            began = time.time()
            os.kill(pid, signal.SIGKILL)
            claimed = next(e for e in _following(session, before.seq) if e.kind == "task.claimed")
            seconds.append(claimed.time.timestamp() - began)
            time.sleep(0.3)
    return seconds


def _killed_team(directory: Path) -> float:
    """Return the seconds from the call of ``resume`` until all of ten agents work."""
    with _team(directory, 10, "hold") as session:
        _until(lambda: len(session.state.get("working") or {}) == 10)
        before = session.head
        lease = session.internal.lease_of("supervisor")
        assert lease is not None
        supervisor = lease.holder.process
        agents = [a["process_id"] for a in session.state.get("agents").values()]
        for pid in (supervisor, *agents):
            os.kill(pid, signal.SIGKILL)
        began = time.time()
        resumed = _start(directory, "resume", SESSION)
        seen: set[str] = set()
        for event in _following(session, before.seq):
            if event.kind == "task.claimed":
                seen.add(event.actor)
                last = event.time.timestamp()
            if len(seen) == 10:
                break
        _stop(resumed)
        return last - began


def _busy(directory: Path, seconds: int) -> tuple[int, float, int]:
    """Return how many events are missing, the supervisor's share of a core, and how many came."""
    with _team(directory, 20, f"write:{seconds}") as session:
        lease = session.internal.lease_of("supervisor")
        assert lease is not None
        pid = lease.holder.process
        _until(lambda: len(session.state.get("written") or {}) == 20)
        before, began = _cpu(pid), time.monotonic()
        time.sleep(seconds * 0.7)
        share = (_cpu(pid) - before) / (time.monotonic() - began)
        _until(lambda: len(session.state.get("count") or {}) == 20)
        written, counts = session.state.get("written"), session.state.get("count")
        lost = sum(written[name] != list(range(count)) for name, count in counts.items())
        seqs = [event.seq for event in session.events()]
        lost += seqs != list(range(1, len(seqs) + 1))
        return lost, share, sum(counts.values())


def _overhead(directory: Path, count: int) -> float:
    """Return what the loop adds to a step, measured in a process of its own."""
    store = mulligan.open(directory)
    session = store.agent("a", session=SESSION)
    assert session.agent.lease is not None
    from mulligan.opener import agent_variables

    supervisor = store.agent("supervisor", session=SESSION, ttl=3600)
    beat = directory / "beat"
    found = agent_variables(
        str(directory),
        SESSION,
        "a",
        session.agent.lease.epoch,
        heartbeat=beat,
        checkpoint_interval=3600,
    )
    steps = []
    for role in ("bare", "loop", "bare", "loop"):
        command = [sys.executable, "-m", "benchmarks.team_agent", f"{role}:{count}"]
        done = subprocess.run(
            command, check=True, cwd=ROOT, env={**os.environ, **found}, stdout=subprocess.PIPE
        )
        steps.append(float(done.stdout))
    supervisor.close()
    store.close()
    return (steps[1] + steps[3] - steps[0] - steps[2]) / 2


# --- the means -----------------------------------------------------------------------------------


@contextmanager
def _team(directory: Path, count: int, role: str) -> Iterator[Session]:
    """Run a team in a store of its own for as long as the block lasts."""
    directory.mkdir()
    store = mulligan.open(directory)
    session = store.session(SESSION, actor="driver")
    session.tasks.plan([f"t{number}" for number in range(count)])
    python = sys.executable
    agents = [AGENT.format(number=n, python=python, role=role, root=ROOT) for n in range(count)]
    (directory / "team.toml").write_text(WORKFLOW + "".join(agents))
    process = _start(directory, "up", str(directory / "team.toml"))
    try:
        _until(lambda: len(session.state.get("agents") or {}) == count)
        yield session
    finally:
        _stop(process)
        store.close()


def _start(directory: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mulligan", "--store", str(directory), *arguments]
    log = (directory / "supervisor.log").open("ab")
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        # A benchmark under nohup ignores SIGINT, and would hand that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a supervisor and, through it, its agents; at once, because nobody waits for them."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
    process.wait(60)


def _following(session: Session, seq: int) -> Iterator[Event]:
    return session.events(since=seq, follow=True)


def _until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("what was waited for did not come")
        time.sleep(0.01)


def _cpu(pid: int) -> float:
    """Return the seconds of processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


BENCHMARK = harness.Benchmark("team", "Teams of agents", TARGETS, run)

if __name__ == "__main__":
    raise SystemExit(harness.main(BENCHMARK))
