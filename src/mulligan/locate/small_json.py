"""Reading the small JSON files that locate stores: pointers, and the directories of a store."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from mulligan.decoding import ready

T = TypeVar("T")


def decoded(data: bytes, kind: type[T]) -> T:
    """Return the content of a file as a struct; raises ``ValueError`` or ``RecursionError``."""
    try:
        return msgspec.json.decode(data, type=ready(kind))
    except (msgspec.DecodeError, UnicodeDecodeError):
        # A path that is not UTF-8 is written with lone surrogates, which msgspec refuses.
        import json  # slow to import, and seldom needed

        return msgspec.convert(json.loads(data), ready(kind))


def encoded(value: object) -> bytes:
    """Return the same bytes as ``json.dumps``; most of the time without importing it."""
    try:
        data = msgspec.json.format(msgspec.json.encode(value), indent=0)
    except UnicodeEncodeError:
        data = b"\\"  # a lone surrogate
    # Anything else is escaped in another way, or not at all.
    if data.isascii() and not {*b"\\\x7f"} & {*data}:
        return data
    import json

    return json.dumps(value).encode()
