"""What every test shares: stores of its own, closed when it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from mulligan import Store, opener


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
