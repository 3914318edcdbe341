"""LangGraph's own conformance suite, with all of its capabilities."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.needed import needed

conformance = needed("langgraph.checkpoint.conformance")
CAPABILITIES = sorted(c.value for c in conformance.capabilities.Capability)


def test_no_capability_is_missing(saver: Any) -> None:
    found = conformance.capabilities.DetectedCapabilities.from_instance(saver)
    assert found.missing == frozenset()


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_conformance(capability: str, tmp_path: Path) -> None:
    from mulligan.integrations.langgraph import MulliganSaver

    @conformance.checkpointer_test(name="MulliganSaver")
    async def savers() -> AsyncIterator[Any]:
        with MulliganSaver(tmp_path / "store") as saver:
            yield saver

    report = asyncio.run(conformance.validate(savers, capabilities={capability}))
    result = report.results[capability]
    assert (result.failures, result.passed) == ([], True)
    assert result.tests_passed >= 5
