"""The suite that the Claude Agent SDK publishes for session stores."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from tests.frameworks.needed import needed

needed("claude_agent_sdk")

from claude_agent_sdk.testing import run_session_store_conformance

from mulligan.integrations.claude_agent_sdk import MulliganSessionStore


@pytest.mark.parametrize("place", ["disk", "memory"])
def test_all_contracts_hold_the_optional_ones_included(place: str, tmp_path: Path) -> None:
    made: list[MulliganSessionStore] = []
    numbers = count()

    def make() -> MulliganSessionStore:
        where = "memory:" if place == "memory" else tmp_path / str(next(numbers))
        made.append(MulliganSessionStore(where))
        return made[-1]

    asyncio.run(run_session_store_conformance(make))
    assert len(made) == 15  # one per contract, and one that is asked which methods it has
    for store in made:
        store.close()
