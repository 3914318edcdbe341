"""Processes of agents: their end, their groups, their output, and those left behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import mulligan
from mulligan import opener
from mulligan.errors import StaleLease, StillRunning
from mulligan.model import Holder
from mulligan.session.write.leases import is_dead
from mulligan.supervisor import orphans
from mulligan.supervisor.heartbeat import HeartbeatReader, heartbeat_reader
from mulligan.supervisor.orphans import end_orphans, find_orphans
from mulligan.supervisor.process import Ending, Process, _Lines, start
from mulligan.supervisor.stimuli import Beat, Progressed
from mulligan.supervisor.terminal import Terminal

PATIENCE = 60


async def ended(
    begin: Callable[[Callable[[Ending], None]], Process], then: object = None
) -> Ending:
    """Start a process and return how it ended; ``then`` is done to it while it runs."""
    future: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
    process = begin(future.set_result)
    if callable(then):
        result = then(process)
        if isinstance(result, Awaitable):
            await result
    return await asyncio.wait_for(future, PATIENCE)


def run(*command: str, then: object = None, **settings: object) -> Ending:
    variables = dict(os.environ)
    return asyncio.run(
        ended(lambda gone: start(command, None, variables, gone, **settings), then)  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9)])
def test_how_a_process_ended(script: str, status: int) -> None:
    assert run("sh", "-c", script).status == status


def test_what_a_process_used() -> None:
    used = run(sys.executable, "-c", "sum(range(3_000_000))").resources
    assert used["user_seconds"] > 0
    assert used["max_rss_bytes"] > 1_000_000


def test_a_death_is_noticed_without_looking_for_it() -> None:
    def kill(process: Process) -> None:
        process.kill(signal.SIGKILL)

    assert run("sleep", "1000", then=kill).status == -9


def test_a_process_that_has_ended_and_is_not_collected_yet_has_not_stopped() -> None:
    async def look() -> Ending:
        future: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        manager, terminal = pty.openpty()
        try:
            process = start(["true"], None, {}, future.set_result, terminal=Terminal(terminal))
            # The loop does not run here: the process has ended, and nobody has collected it.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            process.look_for_stop()
            return await asyncio.wait_for(future, PATIENCE)
        finally:
            os.close(manager)
            os.close(terminal)

    assert asyncio.run(look()).status == 0


def test_the_whole_group_ends_with_its_leader(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    run("sh", "-c", f"sleep 1000 & echo $! > {file}; exit 0")
    child = int(file.read_text())
    until = time.monotonic() + PATIENCE
    while is_running(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_running(child)


def test_a_stopped_process_can_be_told_to_end() -> None:
    def stop(process: Process) -> None:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        process.kill(signal.SIGTERM)

    assert run("sleep", "1000", then=stop).status == -signal.SIGTERM


def test_a_process_is_known_by_more_than_its_number() -> None:
    seen: list[str] = []

    def look(process: Process) -> None:
        seen.append(process.identity)
        assert not is_dead(Holder.parse(process.identity))
        process.kill(signal.SIGKILL)

    run("sleep", "1000", then=look)
    assert is_dead(Holder.parse(seen[0]))


def test_a_command_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        run("/no/such/program")


def test_output_comes_in_whole_lines_and_nothing_of_it_is_lost() -> None:
    lines: list[bytes] = []
    run("sh", "-c", "printf 'a\\nb\\n'; printf 'c' >&2; printf 'd\\nlast'", show=lines.append)
    assert lines == [b"a", b"b", b"cd", b"last"]
    lines.clear()
    run(sys.executable, "-c", "for i in range(50_000): print(i)", show=lines.append)
    assert lines == [str(i).encode() for i in range(50_000)]


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    lines: list[bytes] = []
    run(sys.executable, "-c", "print('x' * 1_000_000, end='')", show=lines.append)
    assert b"".join(lines) == b"x" * 1_000_000
    assert max(map(len, lines)) < 200_000


def test_what_a_process_leaves_running_can_print_on(tmp_path: Path) -> None:
    is_apart, is_gone, is_through = (tmp_path / name for name in ("apart", "gone", "through"))
    daemon = (
        "import os, time\n"
        f"open({str(is_apart)!r}, 'w')\n"
        f"while not os.path.exists({str(is_gone)!r}): time.sleep(0.01)\n"
        "print('x' * 1_000_000, flush=True)\n"
        f"open({str(is_through)!r}, 'w')\n"
    )
    lines: list[bytes] = []

    async def left_behind() -> None:
        held: list[int] = []

        def hold(process: Process) -> None:
            assert process.output is not None
            held.append(os.dup(process.output))  # as the sink does

        script = f'setsid "$@" & until [ -e {is_apart} ]; do sleep 0.01; done; printf last'
        command = ("sh", "-c", script, "sh", sys.executable, "-c", daemon)
        variables = dict(os.environ)
        await ended(lambda gone: start(command, None, variables, gone, lines.append), hold)
        assert lines == [b"last"]
        is_gone.touch()
        until = time.monotonic() + PATIENCE
        while not is_through.exists() and time.monotonic() < until:
            await asyncio.sleep(0.01)
        os.close(held[0])

    asyncio.run(left_behind())
    assert is_through.exists()


def test_a_process_that_prints_without_end_after_its_leader_holds_nobody_up() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    seen = 0

    def show(line: bytes) -> None:
        nonlocal seen
        seen += len(line)
        assert seen < 100_000_000
        with contextlib.suppress(BlockingIOError):
            os.write(write, b"x" * 65535 + b"\n")  # there is always more, as from another process

    async def drain() -> None:
        with open(read, "rb") as pipe, subprocess.Popen("true") as process:
            process.stdout = pipe
            lines = _Lines(process, show)
            show(b"")
            lines.drain()
            asyncio.get_running_loop().remove_reader(pipe)

    asyncio.run(drain())
    os.close(write)


def test_a_process_that_cannot_be_watched_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def refuse(pid: int) -> int:
        seen.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        run("sleep", "1000")
    assert not is_running(seen[0])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_heartbeat_is_seen_once_and_a_step_when_it_begins(tmp_path: Path) -> None:
    beats = heartbeat_reader(str(tmp_path), "main", "a/b", 3)
    assert list(beats.look("a")) == []
    touch(beats, 1)
    assert list(beats.look("a")) == [Beat("a")]
    assert list(beats.look("a")) == []
    beats.file.write_text('{"deadline": 5, "doing": "x", "more": 1}')
    touch(beats, 2)
    assert list(beats.look("a")) == [Beat("a"), Progressed("a", 5)]
    touch(beats, 3)
    assert list(beats.look("a")) == [Beat("a")]
    beats.file.write_text('{"deadline": 5, "doing": "x", "number": 2}')
    touch(beats, 4)
    assert list(beats.look("a")) == [Beat("a"), Progressed("a", 5)]
    beats.file.write_text("not ours")
    touch(beats, 5)
    assert Beat("a") in list(beats.look("a"))
    beats.forget()
    beats.forget()
    assert list(tmp_path.rglob("*-3")) == []


def touch(beats: HeartbeatReader, second: int) -> None:
    beats.file.touch()
    os.utime(beats.file, (second, second))


@pytest.fixture
def store(tmp_path: Path) -> mulligan.Store:
    store = mulligan.open(tmp_path)
    store.session("main")
    return store


def orphan(store: mulligan.Store, **changes: str) -> subprocess.Popen[bytes]:
    """Start a process as a supervisor would."""
    session = store.session("main", actor="a")
    epoch = session.internal.take(30, steal=True).epoch
    variables = opener.agent_variables(
        str(store.path), "main", "a", epoch, heartbeat=Path("/dev/null"), checkpoint_interval=1
    )
    return subprocess.Popen(
        ["sleep", "1000"], env={**os.environ, **variables, **changes}, start_new_session=True
    )


def test_strays_are_shut_out_and_ended(store: mulligan.Store) -> None:
    writer = store.agent("a", session="main")
    process = orphan(store)
    try:
        [found] = find_orphans(store, "main")
        assert (found.pid, found.agent, found.epoch) == (process.pid, "a", 2)
        assert end_orphans(store, "main") == [found]
        assert process.wait(PATIENCE) == -signal.SIGKILL
        with pytest.raises(StaleLease):
            writer.state.set("x", 1)
        with pytest.raises(StaleLease):
            store.session("main", actor="a").internal.adopt(2, 30)
        assert end_orphans(store, "main") == []
    finally:
        process.kill()
        process.wait()


def test_a_stray_that_does_not_end_is_named(
    store: mulligan.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, number: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(orphans, "_END_SECONDS", 0.0)
    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    process = orphan(store)
    try:
        with pytest.raises(StillRunning, match=f"cannot be ended: {process.pid} of a"):
            end_orphans(store, "main")
        with pytest.raises(StaleLease):
            store.session("main", actor="a").internal.adopt(1, 30)
    finally:
        process.kill()
        process.wait()


def test_one_that_was_replaced_shuts_nobody_out(store: mulligan.Store) -> None:
    replaced = store.agent("supervisor", session="main").agent.lease
    store.session("main", actor="supervisor").internal.take(30, steal=True)
    process = orphan(store)
    try:
        with pytest.raises(StaleLease):
            end_orphans(store, "main", replaced)
        store.session("main", actor="a").internal.adopt(1, 30)
    finally:
        process.kill()
        process.wait()


def test_a_shell_of_an_agent_from_which_a_session_is_resumed_lives_on(
    store: mulligan.Store,
) -> None:
    store.session("main")
    script = (
        "import os, sys, mulligan; from mulligan.supervisor.orphans import find_orphans; "
        "os.setpgid(0, 0); print(find_orphans(mulligan.open(sys.argv[1]), 'main'))"
    )
    variables = opener.agent_variables(
        str(store.path), "main", "a", 1, heartbeat=Path("/dev/null"), checkpoint_interval=1
    )
    done = subprocess.run(
        ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", script, str(store.path)],
        env={**os.environ, **variables},
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {opener.SESSION: "other"},
        {opener.STORE: "/elsewhere/.mulligan"},
        {opener.EPOCH: ""},
        {opener.AGENT: ""},
    ],
    ids=["session", "store", "no epoch", "no agent"],
)
def test_what_is_not_of_this_session_is_left_alone(
    store: mulligan.Store, changes: dict[str, str]
) -> None:
    process = orphan(store, **changes)
    try:
        assert end_orphans(store, "main") == []
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
