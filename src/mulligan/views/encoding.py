"""Views as JSON and as text: the values that JSON does not have, and what terminals obey."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any


def jsonable(value: Any) -> Any:
    """Return a value in JSON's types: bytes as ``{"$bytes": base64}``, times as ISO 8601."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, bytes):
        import base64  # seldom needed

        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    return value


def to_json(value: Any, indent: int | None = 2, *, ascii_only: bool = False) -> str:
    """Return a view, or a value of the state, as JSON text."""
    import json  # slow to import, and what people read is mostly text

    return json.dumps(jsonable(value), indent=indent, ensure_ascii=ascii_only, allow_nan=False)


def clean(text: str) -> str:
    """Return text on one line, without the characters that would command a terminal."""
    return "".join(c if c.isprintable() else _harmless(c) for c in text)


def _harmless(character: str) -> str:
    return " " if character.isspace() else repr(character)[1:-1]
