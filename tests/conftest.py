"""No test touches the stores of the person who runs it."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty directory for the stores that ``mulligan init`` makes, in every process started."""
    made = str(tmp_path_factory.mktemp("state"))
    monkeypatch.setitem(os.environ, "XDG_STATE_HOME", made)
    return made
