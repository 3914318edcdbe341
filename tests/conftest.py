"""What every test shares: stores of its own, closed when it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Session, Store, opener
from mulligan.testing.clock import FakeClock


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty directory for the stores that ``mulligan init`` makes, in every process started."""
    made = str(tmp_path_factory.mktemp("state"))
    monkeypatch.setitem(os.environ, "XDG_STATE_HOME", made)
    return made


@pytest.fixture(autouse=True)
def closed_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the stores that a test leaves open.

    Each of them reserves a terabyte of address space, and a process has room for 127.
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
