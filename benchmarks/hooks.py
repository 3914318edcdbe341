"""Hooks of a coding agent, as the agent sees them: from the start of a hook to its reply.

The same two events go through every way that hooks can take: a tool of the MCP server, beside which
Claude Code runs a client that finds nothing to do; the resident helper with its client in C or in
Python; and a fresh process. Shadow git, which other tools use for the same purpose, takes its
snapshot (``add -A`` and ``write-tree``) of the same edits in the same run. Processor time is that
of the client and of the process that does the work.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import harness
from benchmarks.harness import Result, Row, Setting, Table, Target
from benchmarks.timing import MILLISECONDS, Spent, median, percentile, ratio
from mulligan.coding.mcp_input import ARGUMENTS
from mulligan.coding.settings.claude_settings import UNLESS_SERVED
from mulligan.make_store import make_store
from mulligan.resident.install import HOOK, install_client
from mulligan.resident.place import SOCKET, helper_directory
from mulligan.resident.version import version

SIZES = (2_000, 20_000, 100_000)
COMPARED = 20_000
"""The size at which shadow git and a fresh process have targets."""

EDITS = 5
PRE, BATCH = "PreToolUse", "PostToolBatch"
LIMITS = {PRE: 40, BATCH: 60}
FRESH_LIMIT = 250
WARM_UPS = 3
STARTED_SECONDS = 120

SERVER, BESIDE = "MCP server", "C client beside it"
IN_C, IN_PYTHON, FRESH = "helper, C", "helper, Python", "fresh process"
GIT = "shadow git"

TARGETS = (
    *(
        Target(
            f"{way} {event} {files}",
            f"{event} through the {way} in {files:,} files",
            at_most=LIMITS[event],
            unit=" ms",
            full_only=files > min(SIZES),
        )
        for files in SIZES
        for event in (PRE, BATCH)
        for way in (SERVER, IN_C)
    ),
    Target(
        f"{FRESH} {BATCH} {COMPARED}",
        f"{BATCH} as a fresh process in {COMPARED:,} files",
        at_most=FRESH_LIMIT,
        unit=" ms",
        full_only=True,
    ),
    *(
        Target(
            f"{way} against git{of}",
            f"shadow git's time{of} over that of {BATCH} through the {way}, {COMPARED:,} files",
            at_least=5,
            unit="×",
            full_only=True,
        )
        for of in ("", ", processor")
        for way in (SERVER, IN_C)
    ),
)

Send = Callable[[dict[str, Any]], Spent]


class Agent:
    """A coding agent in a project of small files: its transcript, its events, its edits."""

    def __init__(self, home: Path, count: int) -> None:
        self.home, self.project = home, home / "project"
        self.transcript = home / "transcript.jsonl"
        self.state = home / "state" / "mulligan"
        self.variables = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "XDG_STATE_HOME": str(home / "state"),
            "CLAUDE_PROJECT_DIR": str(self.project),
            "CLAUDE_PID": str(os.getpid()),
        }
        self._files = list(_written(self.project, count))
        self._turn = 0
        make_store(self.project, self.variables)

    def edit(self) -> None:
        """Change five files, as a batch of tool calls does."""
        self._turn += 1
        for number in range(EDITS):
            file = self._files[(self._turn * 397 + number * 41) % len(self._files)]
            file.write_text(f"edited = {self._turn}\n" * 20)

    def event(self, name: str, session: str) -> dict[str, Any]:
        """Return the JSON of an event, after what precedes it in the transcript."""
        id = f"toolu_{self._turn}_{os.urandom(4).hex()}"
        call = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": id}
        base = {
            "hook_event_name": name,
            "session_id": session,
            "cwd": str(self.project),
            "transcript_path": str(self.transcript),
        }
        if name == PRE:
            return {**base, **call}
        with self.transcript.open("a") as file:
            for role in ("assistant", "user"):
                entry = {"type": role, "uuid": id, "message": {"role": role, "content": "x" * 500}}
                file.write(json.dumps(entry) + "\n")
        return {**base, "tool_calls": [{**call, "tool_response": "done"}]}


def run(setting: Setting) -> Result:
    """Measure every way at every size."""
    result = Result()
    for count in SIZES if not setting.quick else SIZES[:1]:
        _measure(setting, result, count)
    return result


def _measure(setting: Setting, result: Result, count: int) -> None:
    agent = Agent(setting.directory / f"hooks-{count}", count)
    rounds = setting.choose(full=21, quick=7)
    spent: dict[tuple[str, str], list[Spent]] = {}
    for way, opened in WAYS.items():
        with opened(agent) as send:
            if send is None:
                continue
            for event in (PRE, BATCH):
                spent[way, event] = _rounds(agent, send, event, f"{way}-1", rounds)
    git = _shadow_git(agent, rounds)
    if git:
        spent[GIT, "snapshot"] = git
    rows = [_row(way, event, taken) for (way, event), taken in spent.items()]
    result.tables.append(Table(f"{count:,} files, {EDITS} of them changed before each batch", rows))
    for (way, event), taken in spent.items():
        result.measure(f"{way} {event} {count}", _wall_ms(taken))
    if git and count == COMPARED:
        for way in (SERVER, IN_C):
            taken = spent.get((way, BATCH), [])
            result.measure(f"{way} against git", ratio(_wall_ms(git), _wall_ms(taken)))
            result.measure(f"{way} against git, processor", ratio(_cpu_ms(git), _cpu_ms(taken)))
    shutil.rmtree(agent.home)


def _rounds(agent: Agent, send: Send, event: str, session: str, rounds: int) -> list[Spent]:
    """Send an event several times; the first ones open the store and do not count."""
    found = []
    for turn in range(rounds + WARM_UPS):
        if event == BATCH:
            agent.edit()
        taken = send(agent.event(event, session))
        found += [taken] if turn >= WARM_UPS else []
    return found


@contextmanager
def _server(agent: Agent) -> Iterator[Send | None]:
    """Yield how to send events to an MCP server."""
    command = [sys.executable, "-m", "mulligan", "mcp"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=agent.project, env=agent.variables, stdin=pipe, stdout=pipe
    ) as server:
        to, answers = server.stdin, server.stdout
        assert to is not None
        assert answers is not None
        number = 0

        def send(event: dict[str, Any]) -> Spent:
            nonlocal number
            number += 1
            given = {name: _as_text(event.get(name)) for name in ARGUMENTS}
            params = {"name": "hook", "arguments": given}
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            before, start = _processor(server.pid), perf_counter()
            to.write(json.dumps(message).encode() + b"\n")
            to.flush()
            answers.readline()
            wall = perf_counter() - start
            return Spent(wall, _processor(server.pid) - before)

        yield send
        to.close()


@contextmanager
def _beside(agent: Agent) -> Iterator[Send | None]:
    """Yield how to send events to a client that finds that the server gets them, too."""
    command = [sys.executable, "-m", "mulligan", *HOOK]
    client = install_client(agent.state, version(), command)
    if client.path is None or client.language != "C":
        yield None
        return
    words = [str(client.path), "claude", UNLESS_SERVED]
    with _server(agent) as send:
        assert send is not None
        send(agent.event(PRE, "beside"))  # from then on, the server says that it is there
        yield lambda event: _process(agent, words, event)


@contextmanager
def _helper(agent: Agent, compiler: str | None) -> Iterator[Send | None]:
    """Yield how to send events through a client of the resident helper."""
    directory = helper_directory(agent.state)
    command = [sys.executable, "-m", "mulligan", *HOOK]
    client = install_client(agent.state, version(), command, compiler=compiler)
    if client.path is None or (compiler is None and client.language != "C"):
        yield None
        return
    (directory / SOCKET).unlink(missing_ok=True)
    started = [sys.executable, "-m", "mulligan.resident", str(agent.state)]
    with subprocess.Popen(started, env=agent.variables, cwd=directory) as helper:
        until = time.monotonic() + STARTED_SECONDS
        while not (directory / SOCKET).exists() and time.monotonic() < until:
            time.sleep(0.01)
        words = [str(client.path), "claude"]

        def send(event: dict[str, Any]) -> Spent:
            before = _processor(helper.pid)
            taken = _process(agent, words, event)
            return Spent(taken.wall, taken.cpu + _processor(helper.pid) - before)

        yield send
        helper.terminate()


@contextmanager
def _fresh(agent: Agent) -> Iterator[Send | None]:
    words = [str(Path(sys.executable).with_name("mulligan")), "hook", "claude"]
    yield lambda event: _process(agent, words, event)


WAYS: Mapping[str, Any] = {
    SERVER: _server,
    BESIDE: _beside,
    IN_C: lambda agent: _helper(agent, None),
    IN_PYTHON: lambda agent: _helper(agent, ""),
    FRESH: _fresh,
}


def _process(agent: Agent, words: Sequence[str], event: dict[str, Any]) -> Spent:
    """Run a hook as a process, and return what it takes."""
    data = json.dumps(event).encode()
    start = perf_counter()
    process = subprocess.Popen(
        words,
        cwd=agent.project,
        env=agent.variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.close()
    _, status, usage = os.wait4(process.pid, 0)
    wall = perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, words)
    return Spent(wall, usage.ru_utime + usage.ru_stime)


def _processor(pid: int) -> float:
    """Return the seconds that all threads of a process have run."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def _shadow_git(agent: Agent, rounds: int) -> list[Spent]:
    """Return what a snapshot of the same edits takes with git, beside the project."""
    git = shutil.which("git")
    if git is None:
        return []
    words = [git, f"--git-dir={agent.home / 'git'}", f"--work-tree={agent.project}"]
    variables = {"HOME": str(agent.home), "PATH": os.environ["PATH"]}

    def snapshot(*commands: Sequence[str]) -> Spent:
        start, before = perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        for command in commands:
            subprocess.run([*words, *command], env=variables, check=True, stdout=subprocess.DEVNULL)
        wall, after = perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Spent(wall, cpu)

    snapshot(["init", "--quiet"], ["add", "-A"], ["write-tree"])
    found = []
    for _ in range(rounds):
        agent.edit()
        found.append(snapshot(["add", "-A"], ["write-tree"]))
    return found


def _written(project: Path, count: int) -> Iterator[Path]:
    """Write a project of small files, and yield them."""
    for number in range(count):
        file = project / f"{number // 400:04}" / f"{number // 20 % 20:02}" / f"{number}.py"
        if number % 20 == 0:
            file.parent.mkdir(parents=True)
        file.write_text(f"x = {number}\n" * (number % 50 + 3))
        yield file


def _as_text(value: Any) -> str:
    """Return a value as the agent fills it in."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _wall_ms(spent: Sequence[Spent]) -> float | None:
    return median([one.wall for one in spent]) * MILLISECONDS if spent else None


def _cpu_ms(spent: Sequence[Spent]) -> float | None:
    return median([one.cpu for one in spent]) * MILLISECONDS if spent else None


def _row(way: str, event: str, spent: Sequence[Spent]) -> Row:
    return {
        "through": way,
        "event": event,
        "median ms": _wall_ms(spent),
        "p95 ms": percentile([one.wall for one in spent], 95) * MILLISECONDS,
        "processor ms": _cpu_ms(spent),
    }


BENCHMARK = harness.Benchmark("hooks", "Hooks of a coding agent", TARGETS, run)

if __name__ == "__main__":
    raise SystemExit(harness.main(BENCHMARK))
