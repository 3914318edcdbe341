"""Packages of the frameworks' environment, which other environments need not have."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

REQUIRED = "MULLIGAN_TEST_FRAMEWORKS"
"""Set by ``make test-frameworks``: there a missing package fails the tests."""


def needed(package: str) -> Any:
    """Import a package, or skip the module that asks for it; ``make test-frameworks`` fails."""
    if os.environ.get(REQUIRED):
        return importlib.import_module(package)
    return pytest.importorskip(package, reason=f"make test-frameworks installs {package}")
