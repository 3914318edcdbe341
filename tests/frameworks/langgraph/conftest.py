"""A saver of its own for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[Any]:
    """A saver with a store on disk."""
    from mulligan.integrations.langgraph import MulliganSaver

    with MulliganSaver(tmp_path / "store") as made:
        yield made


@pytest.fixture
def config() -> dict[str, Any]:
    """The config of a thread."""
    return {"configurable": {"thread_id": "thread-1"}}
