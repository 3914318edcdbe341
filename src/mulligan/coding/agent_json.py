"""JSON as coding agents write it: most are JavaScript, whose texts may have half of a character.

A text that was cut between the two halves of a surrogate pair is written with one half as an
escape. That is no text in UTF-8, and a strict reader refuses all of the JSON for it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})"  # half of one
    rb"|.)",
    re.DOTALL,
)
_REPLACEMENT = rb"\ufffd"


def decode(data: bytes) -> Any:
    """Return the value of JSON; half of a surrogate pair becomes U+FFFD.

    Raises ``msgspec.DecodeError``, ``UnicodeDecodeError`` or ``RecursionError``.
    """
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        whole = _ESCAPE.sub(lambda found: _REPLACEMENT if found[1] else found[0], data)
        if whole == data:
            raise
    return msgspec.json.decode(whole)


def whole_characters(text: str) -> str:
    """Return a text in which half of a surrogate pair is U+FFFD, as in :func:`decode`."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
