"""The helper: one by lock, checked by version and user, idle by its clock."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mulligan.errors import UnsafeHelper
from mulligan.resident import place, server
from mulligan.resident.messages import HookRequest, encode_request
from mulligan.resident.server import ANSWER_SECONDS, Helper, Settings
from mulligan.testing.clock import FakeClock
from tests.nobody import NOBODY, as_nobody, place_of_nobody

PATIENCE = 60.0


class Recorder:
    """Stands for the runner of one environment."""

    def __init__(self, request: HookRequest, served: Served) -> None:
        self.served = served
        self.variables = request.variables
        self.events: list[tuple[bytes, str, str | None]] = []
        self.closed = False

    def handle(self, data: bytes, agent: str, id: str | None = None) -> bytes:
        self.events.append((data, agent, id))
        self.served.clock.advance(self.served.seconds)
        return b"reply to " + data

    def close(self) -> None:
        self.closed = True


class Served:
    """A helper in a directory, with the runners that it made."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.clock = FakeClock()
        self.seconds = 0.0
        """How long an event takes."""
        self.runners: list[Recorder] = []
        self.directory = directory
        settings = Settings(directory, "1", self._runner, self.clock, **options)
        self.helper = Helper(settings)

    def _runner(self, request: HookRequest) -> Recorder:
        self.runners.append(Recorder(request, self))
        return self.runners[-1]

    def ask(self, data: bytes, version: str = "1", **variables: str) -> bytes:
        """Send a request, let the helper answer it, and return the reply."""
        request = HookRequest(version, "id-1", "claude", "", variables, data)
        return self.send(encode_request(request))

    def send(self, data: bytes) -> bytes:
        """Send bytes, let the helper answer, and return what it said."""
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(PATIENCE)
        client.connect(str(self.directory / place.SOCKET))
        serving = Thread(target=self.helper.serve_one, args=(PATIENCE,))
        serving.start()
        with client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            said = b"".join(iter(lambda: client.recv(4096), b""))
        serving.join(PATIENCE)
        return said


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state directory with the helper's directory in it; the current one stays."""
    before = os.getcwd()
    place.make_directory(tmp_path)
    yield tmp_path
    os.chdir(before)


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user can look into; the current one stays."""
    before = os.getcwd()
    with place_of_nobody() as where:
        os.chown(where, os.geteuid(), -1)
        where.chmod(0o755)
        yield where
    os.chdir(before)


@pytest.fixture
def served(state: Path) -> Iterator[Served]:
    """A helper that listens."""
    made = Served(place.helper_directory(state))
    assert made.helper.open()
    yield made
    made.helper.close()


def test_an_event_is_handled_with_the_variables_of_its_agent(served: Served) -> None:
    assert served.ask(b"one", HOME="/a") == b"kreply to one"
    assert served.ask(b"two", HOME="/a") == b"kreply to two"
    assert served.ask(b"three", HOME="/b") == b"kreply to three"
    assert [r.variables for r in served.runners] == [{"HOME": "/a"}, {"HOME": "/b"}]
    assert served.runners[0].events[0] == (b"one", "claude", "id-1")


def test_socket_and_directory_are_of_the_user_alone(served: Served) -> None:
    assert stat.S_IMODE((served.directory / place.SOCKET).stat().st_mode) == 0o600
    assert stat.S_IMODE(served.directory.stat().st_mode) == 0o700


def test_a_second_helper_does_not_serve_nor_take_the_socket(served: Served) -> None:
    second = Served(served.directory)
    assert not second.helper.open()
    second.helper.close()
    assert served.ask(b"still here") == b"kreply to still here"


def test_a_socket_that_a_killed_helper_left_is_replaced(state: Path) -> None:
    directory = place.helper_directory(state)
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(directory / place.SOCKET))
    left.close()
    served = Served(directory)
    assert served.helper.open()
    assert served.ask(b"x") == b"kreply to x"
    served.helper.close()
    assert not (directory / place.SOCKET).exists()


def test_a_client_of_another_version_ends_the_helper_and_is_not_handled(served: Served) -> None:
    assert served.ask(b"x", version="2") == b"v"
    assert served.helper.ended
    assert served.runners == []
    served.helper.serve()  # ends at once


def test_a_program_that_was_replaced_ends_the_helper(state: Path) -> None:
    replaced = []
    served = Served(place.helper_directory(state), changed=lambda: bool(replaced))
    served.helper.open()
    assert served.ask(b"x")[:1] == b"k"
    replaced.append(True)
    assert served.ask(b"y") == b"v"
    assert served.helper.ended
    served.helper.close()
    assert served.runners[0].closed


def test_a_helper_ends_when_it_was_idle_for_long(state: Path) -> None:
    served = Served(place.helper_directory(state), idle=600.0)
    served.helper.open()
    served.clock.advance(599)
    assert not served.helper.is_unneeded()
    served.ask(b"x")
    served.clock.advance(599)
    assert not served.helper.is_unneeded()
    served.clock.advance(1)
    assert served.helper.is_unneeded()
    served.helper.serve()  # ends at once
    served.helper.close()


def test_a_helper_whose_socket_was_removed_ends(served: Served) -> None:
    assert not served.helper.is_unneeded()
    (served.directory / place.SOCKET).unlink()
    assert served.helper.is_unneeded()


def test_bytes_that_are_no_request_are_answered_and_the_helper_goes_on(served: Served) -> None:
    assert served.send(b"GET / HTTP/1.1\r\n\r\n") == b"e"
    assert served.send(b"") == b"e"
    assert served.ask(b"x") == b"kreply to x"


def test_a_client_that_dies_disturbs_nothing(served: Served) -> None:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(served.directory / place.SOCKET))
    client.close()
    assert served.helper.serve_one(PATIENCE)
    assert served.ask(b"x") == b"kreply to x"


def test_an_event_that_took_longer_than_its_hook_waits_is_noted(state: Path) -> None:
    notes: list[str] = []
    served = Served(place.helper_directory(state), note=notes.append)
    served.helper.open()
    served.ask(b"quick")
    assert notes == []
    served.seconds = ANSWER_SECONDS
    assert served.ask(b"slow") == b"kreply to slow"
    assert notes == ["An event of claude took 20 s; its hook did not wait for it."]
    served.helper.close()


def test_the_clients_wait_as_long_as_the_helper_thinks() -> None:
    source = Path(server.__file__).parent
    seconds = f"{ANSWER_SECONDS:g}"
    assert f"\nSECONDS = {seconds}.0\n" in (source / "client.py").read_text()
    assert f"#define SECONDS {seconds}\n" in (source / "client.c").read_text()


def test_old_environments_are_closed(served: Served) -> None:
    for number in range(10):
        served.ask(b"x", HOME=f"/{number}")
    assert [runner.closed for runner in served.runners] == [True] * 2 + [False] * 8


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_another_user_is_not_answered(open_place: Path) -> None:
    served = Served(place.make_directory(open_place))
    assert served.helper.open()
    served.directory.chmod(0o755)  # as if someone had opened it to all
    (served.directory / place.SOCKET).chmod(0o666)
    serving = Thread(target=served.helper.serve_one, args=(PATIENCE,))
    serving.start()

    def ask() -> None:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(PATIENCE)
        client.connect(str(served.directory / place.SOCKET))
        try:
            client.sendall(encode_request(HookRequest("1", "i", "claude", "", {}, b"x")))
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
        except (BrokenPipeError, ConnectionResetError):
            pass  # closed before it was read: refused all the more

    as_nobody(ask)
    serving.join(PATIENCE)
    served.helper.close()
    assert served.runners == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_a_directory_of_another_user_is_refused(state: Path) -> None:
    directory = place.helper_directory(state)
    os.chown(directory, NOBODY, NOBODY)
    with pytest.raises(UnsafeHelper):
        Served(directory).helper.open()


def test_a_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    place.helper_directory(tmp_path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeHelper):
        place.make_directory(tmp_path)


def test_a_long_path_is_no_problem(tmp_path: Path) -> None:
    before = os.getcwd()
    state = tmp_path / ("x" * 120) / ("y" * 120)
    served = Served(place.make_directory(state))
    assert served.helper.open()
    assert os.path.exists(place.SOCKET)  # the helper's current directory is its own
    served.helper.close()
    os.chdir(before)
