"""Which line of a TOML text a key stands on, for errors that say where to look."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.config.tables import Place

_HEADER = re.compile(r"\s*(\[\[?)([^\]]+)\]\]?\s*(?:#.*)?")
_ENTRY = re.compile(r"\s*([^=#]+?)\s*=")


def line_of(text: str, place: Place) -> int:
    """Return the line of a key, or of the nearest table around it that the text names."""
    table: Place = ()
    lengths: Counter[Place] = Counter()
    depth, found = 0, 1
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            named = table = _table(_keys(header[2]), lengths, is_item=header[1] == "[[")
        elif entry := _ENTRY.match(line):
            named = (*table, *_keys(entry[1]))
        else:
            continue
        if len(named) > depth and place[: len(named)] == named:
            depth, found = len(named), number
    return found


def _table(keys: tuple[str, ...], lengths: Counter[Place], *, is_item: bool) -> Place:
    """Return the place of a table, with the indexes of the arrays of tables that it is in."""
    place: Place = ()
    for number, key in enumerate(keys, 1):
        place = (*place, key)
        if is_item and number == len(keys):
            lengths[place] += 1
        if length := lengths[place]:
            place = (*place, length - 1)
    return place


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
