"""Where the real agents are, and how long tests wait for them."""

from __future__ import annotations

AGENTS = "MULLIGAN_TEST_AGENTS"
"""The variable that names where the agents are installed; `make test-agents` sets it."""

PATIENCE = 300.0
"""Seconds to wait for what has to come, on however busy a machine."""
