"""What every test shares: stores of its own, closed when it ends."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import mulligan
from mulligan import Session, Store, opener, procfs
from mulligan.journal.lmdb import open_environments
from mulligan.testing.clock import FakeClock
from tests.scale import SCALE, times

# A failure prints the blob that replays it. No deadline: the machine may be busy.
settings.register_profile(
    "mulligan",
    max_examples=times(25),
    stateful_step_count=20,
    deadline=None,
    # The same examples in every run of `make test`; `make crash` draws others, and more.
    derandomize=SCALE == 1,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("mulligan")

MEMORY = Path("/dev/shm")
NEEDED_BYTES = 2 << 30

ON_DISK = re.compile(
    r"tests/(unit/workspace|properties|e2e|docs|agents)/"
    r"|tests/crash/test_(busy|capture|disk|pending|power|restore|workspace)"
)
"""Tests of files, and of what people run. A filesystem in memory does not show all that is written
to it, and is captured in another way."""


def pytest_configure(config: pytest.Config) -> None:
    """Let the other tests work in memory if there is room: there a sync costs nothing."""
    if _is_usable(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def _is_usable(place: Path) -> bool:
    if not os.access(place, os.W_OK) or shutil.disk_usage(place).free < NEEDED_BYTES:
        return False
    return not os.statvfs(place).f_flag & os.ST_NOEXEC  # some tests start programs there


@pytest.fixture(scope="session")
def disk_for_tests(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory on disk for the tests of this process; it stays when one of them failed."""
    made = Path(tempfile.mkdtemp(prefix="mulligan-test-")).resolve()
    yield made
    if not request.session.testsfailed:
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An empty directory, on disk for tests that depend on it."""
    if not ON_DISK.match(request.node.nodeid):
        return tmp_path
    made: Path = request.getfixturevalue("disk_for_tests") / f"{tmp_path.name}-{next(_numbers)}"
    made.mkdir(mode=0o700)
    return made


_numbers = itertools.count()


@pytest.fixture(autouse=True, scope="session")
def ctrl_c() -> Iterator[None]:
    """Let SIGINT interrupt, here and in every process started.

    A background job of a script has it ignored, and children inherit that. They do not inherit a
    handler: with one here, they start with the default.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def only_new_processes() -> Iterator[None]:
    """Let captures and restores look only at processes that started after the tests.

    No other can have a file of a test open. To read the mappings of all of them, for each of
    thousands of captures, took a tenth of the time, and a quarter on a busy machine.
    """
    real, before = procfs.pids, {pid: started(pid) for pid in procfs.pids()}

    def pids() -> list[int]:
        # A number may be used again.
        return [pid for pid in real() if pid not in before or started(pid) != before[pid]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(procfs, "pids", pids)
        yield


def started(pid: int) -> bytes:
    """Return when a process started, in ticks since boot, with as little work as possible."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        return file.read(1024).rpartition(b")")[2].split()[19]
    return b""


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty directory for the stores that ``mulligan init`` makes, in every process started."""
    made = str(tmp_path_factory.mktemp("state"))
    monkeypatch.setitem(os.environ, "XDG_STATE_HOME", made)
    return made


@pytest.fixture(autouse=True)
def closed_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the stores that a test leaves open.

    Each of them has files open, and reserves address space. A transaction that a test leaves open
    would hold up every later fork of the process.
    """
    opened: list[Store] = []
    real = opener.open_store

    def open_store(*args: Any, **kwargs: Any) -> Store:
        store = real(*args, **kwargs)
        opened.append(store)
        return store

    monkeypatch.setattr(opener, "open_store", open_store)
    yield
    for store in opened:
        store.close()
    assert [shared for shared in open_environments._environments.values() if shared.active] == []


@pytest.fixture
def clock() -> FakeClock:
    """A clock that moves only when it is told to."""
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store on disk, outside of ``work``."""
    with mulligan.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An empty workspace."""
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture
def session(store: Store, work: Path) -> Session:
    """A session with the files of ``work``."""
    return store.session("run", workspace=work)
