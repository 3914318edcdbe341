"""Which agents a server serves: a lock that ends with its process, whatever files are left."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mulligan import procfs
from mulligan.errors import UnsafeHelper
from mulligan.resident import place, serving
from mulligan.resident.serving import ServedAgent, is_served
from tests.children import run_child
from tests.nobody import NOBODY

PATIENCE = 60.0
SERVER = """
import sys
from pathlib import Path
from mulligan.resident.serving import ServedAgent
agent = ServedAgent(Path(sys.argv[1]), int(sys.argv[2]))
print(agent.take(), flush=True)
for line in sys.stdin:
    agent.release() if line == "release\\n" else None
    print(agent.take() if line == "take\\n" else None, flush=True)
"""
PLACES = ["link", "link to a file that is locked", "directory", "pipe"]


class Server:
    """A process that serves an agent: this process, unless another one is named."""

    def __init__(self, state: Path, process: int) -> None:
        words = [sys.executable, "-c", SERVER, str(state), str(process)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout is not None
        self.has_lock = self.process.stdout.readline() == "True\n"

    def tell(self, word: str) -> bool:
        """Tell it to take or to release the lock; return whether it took it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline() == "True\n"

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)


Serve = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start servers of agents."""
    started: list[Server] = []

    def start(process: int | None = None) -> Server:
        started.append(Server(tmp_path, process or os.getpid()))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def files(state: Path) -> list[str]:
    return sorted(os.listdir(place.helper_directory(state)))


def test_an_agent_is_served_until_its_server_is_killed(tmp_path: Path, serve: Serve) -> None:
    assert not is_served(tmp_path, os.getpid())
    server = serve()
    assert is_served(tmp_path, os.getpid())
    assert is_served(tmp_path, os.getpid()), "looking at it changes nothing"
    assert not is_served(tmp_path, os.getppid()), "another agent"
    server.kill()
    assert not is_served(tmp_path, os.getpid())
    assert len(files(tmp_path)) == 1, "a file alone says nothing"


def test_a_server_that_comes_second_takes_over_once_the_first_is_gone(
    tmp_path: Path, serve: Serve
) -> None:
    first, second = serve(), serve()
    assert (first.has_lock, second.has_lock) == (True, False)
    assert not second.tell("take")
    first.tell("release")
    assert not is_served(tmp_path, os.getpid())
    assert second.tell("take")
    first.kill()
    assert is_served(tmp_path, os.getpid())


def test_each_agent_has_a_server_of_its_own(tmp_path: Path, serve: Serve) -> None:
    servers = [serve(), serve(os.getppid())]
    assert [server.has_lock for server in servers] == [True, True]
    servers[0].kill()
    assert [is_served(tmp_path, pid) for pid in (os.getpid(), os.getppid())] == [False, True]


def test_the_lock_is_not_handed_down_to_children(tmp_path: Path) -> None:
    """A child that a server forked must not make it look alive."""
    agent = ServedAgent(tmp_path, os.getpid())
    assert agent.take()
    assert agent.take(), "again"
    assert run_child(lambda _: check(is_served(tmp_path, os.getppid()))).finished
    agent.release()
    agent.release()
    assert run_child(lambda _: check(not is_served(tmp_path, os.getppid()))).finished


def check(found: bool) -> None:
    assert found


def test_a_process_id_that_is_used_again_is_another_agent(tmp_path: Path, serve: Serve) -> None:
    """The server of a dead agent may live on, if it is stopped."""
    serve()
    (name,) = files(tmp_path)
    directory = place.helper_directory(tmp_path)
    (directory / name).rename(directory / f"served-{os.getpid()}-1")
    assert not is_served(tmp_path, os.getpid())


def test_files_of_agents_that_ended_are_removed(tmp_path: Path, serve: Serve) -> None:
    directory = place.own_directory(tmp_path)
    ended = subprocess.Popen(["true"])
    ended.wait()
    alive = f"served-{os.getppid()}-{procfs.started(os.getppid())}"
    for name in (f"served-{ended.pid}-7", f"served-{os.getppid()}-1", "served-x", alive, "hook"):
        (directory / name).touch()
    serve()
    own = f"served-{os.getpid()}-{procfs.started(os.getpid())}"
    assert files(tmp_path) == sorted([own, "served-x", alive, "hook"])


@pytest.mark.parametrize("what", PLACES)
def test_what_is_not_a_file_there_serves_nobody(tmp_path: Path, serve: Serve, what: str) -> None:
    directory = place.own_directory(tmp_path)
    own = directory / f"served-{os.getpid()}-{procfs.started(os.getpid())}"
    if what == "directory":
        own.mkdir()
    elif what == "pipe":
        os.mkfifo(own)
    else:
        target = tmp_path / "target"
        if what != "link":
            serve(os.getppid())
            (held,) = files(tmp_path)
            target = directory / held
        own.symlink_to(target)
    assert not is_served(tmp_path, os.getpid())
    if what != "pipe":
        with pytest.raises(OSError, match=str(own)):
            ServedAgent(tmp_path, os.getpid()).take()
    assert not (tmp_path / "target").exists()


def test_the_directory_is_of_the_user_alone(tmp_path: Path, serve: Serve) -> None:
    serve()
    assert stat.S_IMODE(place.helper_directory(tmp_path).stat().st_mode) == 0o700
    (name,) = files(tmp_path)
    file = place.helper_directory(tmp_path) / name
    assert (name[: len(serving.PREFIX)], stat.S_IMODE(file.stat().st_mode)) == ("served-", 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(place.own_directory(tmp_path), NOBODY, NOBODY)
    with pytest.raises(UnsafeHelper):
        ServedAgent(tmp_path, os.getpid()).take()
