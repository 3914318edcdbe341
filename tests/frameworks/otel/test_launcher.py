"""Commands that are started by opentelemetry-instrument, with a receiver of OTLP on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.needed import needed

needed("opentelemetry.distro")
needed("opentelemetry.exporter.otlp.proto.http")

import mulligan
from tests.frameworks.otel.receiver import Received, attributes, over_grpc, over_http

BIN = Path(sys.executable).parent

KILLED_ONCE = 'test "$MULLIGAN_RESTARTS" = 1 || kill -9 $$'
"""An agent whose first process is killed."""

KILLS_ITS_SUPERVISOR = "test -e started || { touch started; kill -9 $PPID; }"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory of work whose store is in it, with a session."""
    made = tmp_path / "work"
    made.mkdir()
    (made / "a.txt").write_text("one")
    with mulligan.open(made) as store:
        store.session("main")
    return made


def mulligan_in(
    place: Path, *words: str, sending_to: str | None, protocol: str = "http/protobuf", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of mulligan, under opentelemetry-instrument if it is to send."""
    launcher = [] if sending_to is None else [str(BIN / "opentelemetry-instrument")]
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
        "XDG_STATE_HOME": str(place.parent / "state"),
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        **({} if sending_to is None else {"OTEL_EXPORTER_OTLP_ENDPOINT": sending_to}),
        **more,
    }
    command = [*launcher, str(BIN / "mulligan"), *words]
    return subprocess.run(
        command, cwd=place, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_the_restart_of_a_killed_agent_and_the_checkpoints_arrive(
    place: Path, protocol: str
) -> None:
    received = Received()
    receiving = over_grpc if protocol == "grpc" else over_http
    with receiving(received) as address:
        words = ("run", "--", "sh", "-c", KILLED_ONCE)
        done = mulligan_in(place, *words, sending_to=address, protocol=protocol)
    assert done.returncode == 0, done.stderr
    first, second = received.attributes("mulligan.start agent")
    of = {"gen_ai.conversation.id": "main", "gen_ai.agent.name": "agent"}
    assert first == {**of, "mulligan.agent.restarts": 0, "process.pid": first["process.pid"]}
    assert second == {
        **of,
        "mulligan.agent.restarts": 1,
        "mulligan.agent.ended": "was ended by SIGKILL",
        "process.pid": second["process.pid"],
    }
    with mulligan.open(place, read_only=True) as store:
        taken = [one.id for one in store.session("main", create=False).checkpoints()]
    sent = [one["mulligan.checkpoint.id"] for one in received.attributes("mulligan.checkpoint")]
    assert sorted(sent) == sorted(taken)  # each of them once
    [restarts] = received.metrics["mulligan.agent.restarts"]
    assert restarts.as_int == 1
    assert attributes(restarts) == {"session": "main", "agent": "agent"}


def test_a_recovery_after_the_death_of_the_supervisor_arrives(place: Path) -> None:
    received = Received()
    with over_http(received) as address:
        words = ("run", "--", "sh", "-c", KILLS_ITS_SUPERVISOR)
        assert mulligan_in(place, *words, sending_to=address).returncode == -9
        done = mulligan_in(place, "resume", sending_to=address)
    assert done.returncode == 0, done.stderr
    [recovery] = received.attributes("mulligan.recovery")
    assert recovery["gen_ai.conversation.id"] == "main"
    started = received.attributes("mulligan.start agent")[-1]
    assert started["mulligan.agent.restarts"] == 1


def test_a_command_that_supervises_nothing_sends_nothing(place: Path) -> None:
    received = Received()
    with over_http(received) as address:
        for words in (["checkpoint"], ["status"], ["log"], ["resume", "--dry-run"]):
            done = mulligan_in(place, *words, sending_to=address)
            assert done.returncode == 0, done.stderr
    assert (received.spans, received.metrics) == ({}, {})


def test_a_receiver_that_is_not_there_changes_no_result(place: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: every connection is refused
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        words = ("run", "--restart=never", "--", "sh", "-c", "echo said; exit 7")
        done = mulligan_in(place, *words, sending_to=address, OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert done.returncode == 7
    assert done.stdout.startswith("said\n")


def test_nothing_is_imported_when_opentelemetry_is_not_set_up(place: Path) -> None:
    profiled = mulligan_in(place, "run", "--", "true", sending_to=None, PYTHONPROFILEIMPORTTIME="1")
    assert profiled.returncode == 0, profiled.stderr
    assert "mulligan.supervisor" in profiled.stderr
    assert "opentelemetry" not in profiled.stderr
    assert "mulligan.integrations" not in profiled.stderr
