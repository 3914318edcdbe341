"""The sink: a process beside the supervisor that may fail, and may not hold it up."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from mulligan.supervisor.sink import Sink

PATIENCE = 60
MANY = 1000
"""More than wait in a socket for a process that does not take them."""


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink()
    yield sink
    with suppress(ProcessLookupError):
        os.kill(sink._process.pid, signal.SIGKILL)
    sink.close()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_sink_that_fails_holds_nobody_up(sink: Sink, number: signal.Signals) -> None:
    os.kill(sink._process.pid, number)
    read, write = os.pipe()

    def hold() -> None:
        for _ in range(MANY):
            sink.hold(read)

    holding = threading.Thread(target=hold, daemon=True)
    holding.start()
    holding.join(PATIENCE)
    assert not holding.is_alive()
    os.close(read)
    os.close(write)
