"""The events that make up the document: how each is encoded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mulligan import codec
from mulligan.document.document import EMBED_LIMIT, settle
from mulligan.document.fold import new_event
from mulligan.model import Digest, Path


@pytest.mark.parametrize("size", [0, 10, EMBED_LIMIT - 100, EMBED_LIMIT, 3 * EMBED_LIMIT])
def test_the_bytes_of_an_event_are_those_of_its_values_one_by_one(size: int) -> None:
    """A small payload is encoded at once; that must not be seen in what is stored."""
    objects: dict[Digest, bytes] = {}

    def put(data: bytes) -> Digest:
        digest = codec.digest(1, data)
        objects[digest] = data
        return digest

    path: Path = ("log", "x" * (size // 3))
    payload: dict[str, Any] = {"value": {"b": "y" * size, "a": [1, True]}, "path": path, "at": 1.5}
    parts = {
        key: value if key == "path" else msgspec.Raw(settle(value, put))
        for key, value in payload.items()
    }
    found = new_event(("state.set", payload), put)
    assert found.payload == codec.encode(parts)
    assert bool(objects) == (size >= EMBED_LIMIT)
