"""Pieces of a test in another thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def elsewhere(function: Callable[[], T]) -> T:
    """Run a function in a thread of its own, as another writer would; return its result."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(60)
