"""JSON values of frameworks as values of the state, and back.

Nearly all of them are stored as they are. What JSON allows and the state does not (half of a
surrogate pair, integers of more than 64 bits, very deep nesting) is stored as JSON text, in a
dictionary with one key that nothing else has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from mulligan.document.values import freeze
from mulligan.errors import UnstorableValue

AS_TEXT = "mulligan:json"
"""The only key of a dictionary that holds a value as JSON text."""


def to_stored(value: Any) -> Any:
    """Return a JSON value as the state can hold it."""
    if not _is_text_of_json(value):
        try:
            freeze(value)
        except UnstorableValue:
            pass  # only as text, below
        else:
            return value
    return {AS_TEXT: json.dumps(value)}


def all_to_stored(values: Iterable[Any]) -> list[Any]:
    """Return JSON values as the state can hold them."""
    return [to_stored(value) for value in values]


def from_stored(value: Any) -> Any:
    """Return a value of the state as the framework gave it."""
    return json.loads(value[AS_TEXT]) if _is_text_of_json(value) else value


def all_from_stored(values: Iterable[Any]) -> list[Any]:
    """Return values of the state as the framework gave them."""
    return [from_stored(value) for value in values]


def _is_text_of_json(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and AS_TEXT in value
