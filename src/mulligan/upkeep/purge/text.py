"""Finding and replacing secrets in values: text, bytes and the keys of dictionaries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec.msgpack import Ext

from mulligan.codec import EXT_BIGINT, ListBranch, MapBranch, OrderedBranch
from mulligan.errors import PurgeRefused
from mulligan.model import DIGEST_SIZE, Purge

MIN_MATCH, MAX_MATCH = 4, 64 << 10
"""How many bytes a match has. Shorter ones are everywhere; longer ones are not found as a whole."""

MAX_TEXTS = 10_000
"""How many different texts one purge removes."""

_WORDS = (
    "state undo redo pending control path value values changes session seq only mode files before "
    "after safety coverage restored held present root touch abandoned kind label note parent "
    "keyframe environment format schema bytes workspace in_progress completed failed skipped "
    "starting planning working waiting suspended done routine pre_operation recovery manual "
    "conversation tools tasks mailbox context memory agents orchestrator config title status order "
    "owner attempts progress result error data sender subject body priority normal urgent"
)
"""Words that events, states and tasks are made of."""

Where = tuple[str, ...]
"""Keys and indexes that lead to a place inside of a value."""


class Pattern:
    """What to look for: a regular expression over bytes, text being UTF-8.

    ``texts`` collects what it matched. Nothing of that may be printed or stored. ``is_digests``
    says whether bytes are the digests of objects, which stay even if they match by chance.
    """

    def __init__(
        self, expression: str, is_digests: Callable[[bytes], bool] = lambda _: False
    ) -> None:
        self._is_digests = is_digests
        try:
            self._found = re.compile(expression.encode())
        except (re.error, UnicodeEncodeError) as error:
            raise PurgeRefused(f"The regular expression cannot be used: {error}.") from error
        if self._found.match(b""):
            raise PurgeRefused(
                "The regular expression matches the empty text, which is everywhere."
            )
        self._refuse_in(_WORDS.split(), "a word of the store's format")
        self.texts: set[bytes] = set()

    def check(self, purge: Purge) -> None:
        """Refuse an expression that matches its own tombstones."""
        self._refuse_in([marker(purge)], "the tombstone itself: its date, your name or the reason")

    def _refuse_in(self, words: Iterable[str], what: str) -> None:
        if any(self.is_in(word.encode()) for word in words):
            raise PurgeRefused(
                f"The regular expression matches {what}.",
                hint="Nothing was changed. Narrow it down, as in `sk-[A-Za-z0-9]{20,}`.",
            )

    def matches(self, data: bytes) -> Iterator[re.Match[bytes]]:
        """Yield the matches in bytes, and remember what they matched."""
        if self._stays(data):
            return
        for match in self._found.finditer(data):
            self._remember(match[0])
            yield match

    def is_in(self, data: bytes) -> bool:
        """Whether anything in bytes matches; it is not remembered."""
        return self._found.search(data) is not None

    def _remember(self, text: bytes) -> None:
        if len(text) < MIN_MATCH:
            raise PurgeRefused(
                f"The regular expression matches fewer than {MIN_MATCH} bytes somewhere.",
                hint="Nothing was changed. A text that short turns up by chance; narrow it down.",
            )
        self.texts.add(text[:MAX_MATCH])
        if len(self.texts) > MAX_TEXTS:
            raise PurgeRefused(
                f"The regular expression matches more than {MAX_TEXTS:,} different texts.",
                hint="Nothing was changed. Narrow it down.",
            )

    def replaced(self, mark: str) -> Callable[[bytes], bytes]:
        """Return a function that puts a mark in the place of every match."""
        other = mark.encode()

        def replace(data: bytes) -> bytes:
            return data if self._stays(data) else self._found.sub(lambda _: other, data)

        return replace

    def _stays(self, data: bytes) -> bool:
        may_be = bool(data) and len(data) % DIGEST_SIZE == 0
        return may_be and self.is_in(data) and self._is_digests(data)


def marker(purge: Purge) -> str:
    """Return what takes the place of a secret in text."""
    return f"[{purge}]"


def mask(text: bytes) -> str:
    """Return a hint at a secret that does not give it away."""
    shown = text[: min(2, len(text) // 8)].decode("ascii", "replace")
    return f"{shown if shown.isprintable() else ''}… ({len(text)} bytes)"


def places(value: Any, above: Where = ()) -> Iterator[tuple[Where, bytes]]:
    """Yield every text and byte string of a frozen value with where it is; nothing is loaded."""
    if isinstance(value, str):
        yield above, value.encode()
    elif isinstance(value, bytes):
        yield above, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield (*above, key), key.encode()
            yield from places(item, (*above, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*above, str(index)))
    elif isinstance(value, ListBranch | MapBranch | OrderedBranch):
        if isinstance(value, OrderedBranch):
            yield from ((above, key.encode()) for key in value.keys)
        for slot in value.slots:
            yield from places(slot, above)
    elif isinstance(value, Ext) and value.code == EXT_BIGINT:
        yield above, bytes(value.data)


def redacted(value: Any, replace: Callable[[bytes], bytes]) -> Any:
    """Return a frozen value with its texts and byte strings replaced; its shape stays."""
    if isinstance(value, str):
        return replace(value.encode()).decode("utf-8", "replace")
    if isinstance(value, bytes):
        return replace(value)
    if isinstance(value, dict):
        return _redacted_dict(value, replace)
    if isinstance(value, list):
        return [redacted(item, replace) for item in value]
    if isinstance(value, ListBranch):
        slots = [redacted(slot, replace) for slot in value.slots]
        return ListBranch(value.height, value.count, slots)
    if isinstance(value, MapBranch):
        slots = [redacted(slot, replace) for slot in value.slots]
        return MapBranch(value.depth, value.count, slots)
    if isinstance(value, OrderedBranch):
        slots = [redacted(slot, replace) for slot in value.slots]
        # Other keys might be out of order, and no key would be found.
        is_changed = any(redacted(key, replace) != key for key in value.keys)
        return OrderedBranch(value.height, [] if is_changed else value.keys, value.counts, slots)
    if isinstance(value, Ext) and value.code == EXT_BIGINT:
        digits = bytes(value.data)
        text = replace(digits)
        return value if text == digits else text.decode("ascii", "replace")
    return value


def _redacted_dict(value: dict[str, Any], replace: Callable[[bytes], bytes]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = base = redacted(key, replace)
        count = 1
        # Two secret keys of one dictionary get different names: no entry may be lost.
        while name in found or (name != key and name in value):
            count += 1
            name = f"{base} {count}"
        found[name] = redacted(item, replace)
    return found
