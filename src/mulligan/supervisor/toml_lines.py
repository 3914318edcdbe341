"""Which line of a TOML text a key stands on, for errors that say where to look."""

from __future__ import annotations

import re
import tomllib
from typing import Any

_HEADER = re.compile(r"\s*\[\[?([^\]]+)\]\]?\s*(?:#.*)?")
_ENTRY = re.compile(r"\s*([^=#]+?)\s*=")


def line_of(text: str, place: tuple[str, ...]) -> int:
    """Return the line of a key, or of the nearest table around it that the text names."""
    table: tuple[str, ...] = ()
    depth, found = 0, 1
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            named = table = _keys(header[1])
        elif entry := _ENTRY.match(line):
            named = (*table, *_keys(entry[1]))
        else:
            continue
        if len(named) > depth and place[: len(named)] == named:
            depth, found = len(named), number
    return found


def _keys(dotted: str) -> tuple[str, ...]:
    """Return the parts of a dotted key, as TOML itself reads them; none if it is no key."""
    try:
        value: Any = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    parts = []
    while isinstance(value, dict):
        [(key, value)] = value.items()
        parts.append(key)
    return tuple(parts)
