"""JSON schemas of what tools take and return, from msgspec structs."""

from __future__ import annotations

from typing import Any

import msgspec


def schema_of(shape: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schema of a struct, with the structs in it as ``$defs``.

    The top is an object, as clients require, not a reference to one.
    """
    (top,), parts = msgspec.json.schema_components((shape,), ref_template="#/$defs/{name}")
    name = str(top["$ref"]).rpartition("/")[2]
    found: dict[str, Any] = parts.pop(name)
    found.pop("title", None)
    if parts:
        found["$defs"] = parts
    return found
