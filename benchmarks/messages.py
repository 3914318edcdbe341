"""What the contenders write: messages of a conversation, the same ones for everybody."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Message = dict[str, Any]

SIZE = 1024
"""The bytes of content in a message."""

_ROLES = ("user", "assistant", "tool")


def text_messages(count: int, size: int = SIZE) -> list[Message]:
    """Messages of prose and code: what agents talk about, and real, so it compresses as it does.

    They are consecutive pieces of the standard library's own sources: no two are alike in the
    first few megabytes, so nobody gains from having seen one before.
    """
    pieces = _pieces(itertools.cycle(_standard_library()), size)
    return [_message(index, next(pieces).decode("ascii")) for index in range(count)]


def noise_messages(count: int, size: int = SIZE) -> list[Message]:
    """Messages of random bytes, which no compression helps with."""
    source = random.Random(20)
    return [_message(index, source.randbytes(size)) for index in range(count)]


def raw_size(messages: Sequence[Message]) -> int:
    """The bytes of what was said and by whom, with nothing around it."""
    return sum(len(message["role"]) + len(message["content"]) for message in messages)


def _message(index: int, content: str | bytes) -> Message:
    return {"role": _ROLES[index % len(_ROLES)], "content": content}


def _standard_library() -> Iterator[bytes]:
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        yield text.encode("ascii", errors="ignore")


def _pieces(texts: Iterable[bytes], size: int) -> Iterator[bytes]:
    held = b""
    for text in texts:
        held += text
        whole = len(held) - len(held) % size
        for start in range(0, whole, size):
            yield held[start : start + size]
        held = held[whole:]
