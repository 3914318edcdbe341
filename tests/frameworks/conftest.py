"""What the tests of adapters share; ``needed.py`` says where they run."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep frameworks from reporting to services of their vendors."""
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "false")
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
